"""A report's page and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import resources

DESIGN = "design.css"


def design() -> str:
    """The CSS that the device page, the fleet page and reports share (`DESIGN`)."""
    return resources.files("edged.charts").joinpath(DESIGN).read_text(encoding="utf-8")


def document(title: str, body: str, style: str = "") -> str:
    """A whole page around its body; `style` is CSS of its own, beside that of all pages."""
    common = design() + resources.files("edged.charts").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{common}{style}</style></head>"
        f"<body><main><h1>{escape(title)}</h1>{body}</main></body></html>\n"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]], style: str = "") -> str:
    """A table; cells are text, the first column names the row."""
    top = "".join(f"<th>{escape(cell)}</th>" if cell else "<td></td>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<{'th' if i == 0 else 'td'}>{escape(cell)}</{'th' if i == 0 else 'td'}>"
                         for i, cell in enumerate(row)) + "</tr>"
        for row in rows
    )  # fmt: skip
    whole = f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="wide" tabindex="0"><table class="{style}">{whole}</table></div>'
