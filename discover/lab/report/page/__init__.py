"""``report.html``: what it says (`page.py`), its interactive curves (`charts.py`), its markup, style and script."""

from discover.lab.report.page.page import render_page, write_page

__all__ = ["render_page", "write_page"]
