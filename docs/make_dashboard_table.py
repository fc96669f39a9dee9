# ruff: noqa: INP001  a program, not a package
"""Writes the table of docs/monitor.md from the dashboard; `--check` only says whether it is up to date.

Run from anywhere: `python docs/make_dashboard_table.py`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from generated import write_or_check

PAGE = Path(__file__).with_name("monitor.md")
DASHBOARD = PAGE.parents[1] / "deploy" / "grafana" / "edged.json"
BEGIN = "<!-- dashboard: by docs/make_dashboard_table.py -->\n"
END = "<!-- end of dashboard -->"
DEVICE = 'instance=~"$instance"'


def rows() -> Iterator[str]:
    """A row for each panel, with the queries of all its curves."""
    above = ""
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        if panel["type"] == "row":
            above = panel["title"]
            continue
        queries = [target["expr"].replace(f"{{{DEVICE}}}", "") for target in panel["targets"]]
        yield f"| {above} | {panel['title']} | {', '.join(f'`{query}`' for query in queries)} |\n"


def page(text: str) -> str:
    """The page with a new table."""
    before, rest = text.split(BEGIN)
    table = "| row | panel | queries |\n|---|---|---|\n" + "".join(rows())
    return f"{before}{BEGIN}{table}{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page(PAGE.read_text(encoding="utf-8")), __file__))
