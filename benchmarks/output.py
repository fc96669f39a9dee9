"""What the benchmark programs share: their options, and how results are printed and kept."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def options(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options of every benchmark: `--json` and `--out FILE`."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--out", type=Path, help="also write the JSON to this file")
    return parser


def pairs(row: Row) -> str:
    """A row as names and values."""
    return "  ".join(f"{name} {value}" for name, value in row.items() if value is not None)


def command(name: str, args: argparse.Namespace) -> str:
    """The command that was called, with DATA for the path of the recorded streams."""
    data = str(getattr(args, "data", None))
    words = ["DATA" if word == data else word for word in sys.argv[1:]]
    return shlex.join(["python", f"benchmarks/{name}.py", *words])


def finish(
    name: str,
    rows: list[Row],
    args: argparse.Namespace,
    line: Callable[[Row], str] = pairs,
    heading: str = "",
    **about: str,
) -> None:
    """Print the rows, as lines or as one JSON object with the command that made them; keep the object.

    Parameters
    ----------
    name
        The program's name, without `.py`.
    rows
        The results.
    args
        What `options` has parsed.
    line
        How a row is shown to people.
    heading
        The first line for people.
    about
        What else belongs to the object.
    """
    result = {
        "benchmark": name,
        "command": command(name, args),
        "cpus": os.cpu_count(),
        **about,
        "rows": rows,
    }
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if args.json:
        print(json.dumps(result))
        return
    if heading:
        print(heading)
    for row in rows:
        print(line(row))
