"""The pages come before the reference where somebody searches: who types words looks for an explanation."""

from typing import Any


def on_page_markdown(_: str, page: Any, **__: Any) -> None:
    """Called by mkdocs for each page; the theme's search reads the number."""
    if page.file.src_uri.startswith("api/"):
        page.meta["search"] = {"boost": 0.3}
