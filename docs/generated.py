# ruff: noqa: INP001  beside programs, not in a package
"""What the programs that make pages from the code have in common."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def write_or_check(page: Path, text: str, program: str) -> int:
    """Write `text` to `page`; with `--check` only say whether it is what is there. The exit code."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--check", action="store_true", help="write nothing; fail when it is out of date")
    if not arguments.parse_args().check:
        page.write_text(text, encoding="utf-8")
        return 0
    if page.exists() and page.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write(f"{page} is out of date: run python docs/{Path(program).name}\n")
    return 1
