"""Turns TeX into MathML when the site is built: formulas need no script, no font and no network to be read."""

import html
import re

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\(\(|\[)(.*?)\\(?:\)|\])</\1>', re.DOTALL)
# Letters that docstrings write as they are, where TeX has a command (the converter takes them for variables).
SYMBOLS = {"−": "-", "‖": r"\|", "²": "^2", "·": r"\cdot ", "≤": r"\le ", "≥": r"\ge ", "×": r"\times ", "Σ": r"\sum "}


def on_page_content(content: str, **_) -> str:
    """Replaces what `pymdownx.arithmatex` marked in a page."""
    return FORMULA.sub(_to_mathml, content)


def _to_mathml(match: re.Match) -> str:
    tex = html.unescape(match[3]).strip()
    tex = re.sub(r"\\[bB]igg?[lr]?\\\|", r"\\|", tex)  # the converter prints \Big\| as it stands
    for symbol, command in SYMBOLS.items():
        tex = tex.replace(symbol, command)
    return convert(tex, display="block" if match[1] == "div" else "inline")
