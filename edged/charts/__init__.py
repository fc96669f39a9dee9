"""Pages that a person opens in a browser: one file each, nothing loaded from elsewhere."""

from __future__ import annotations

from html import escape
from importlib import resources


def document(title: str, body: str, style: str = "") -> str:
    """A whole page around its body; `style` is CSS of its own, beside that of all pages."""
    common = resources.files("edged.charts").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{common}{style}</style></head>"
        f"<body><main><h1>{escape(title)}</h1>{body}</main></body></html>\n"
    )
