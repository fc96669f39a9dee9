"""What `edged recipe run` does between its arguments and its exit code, and what it shows a person."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from edged import logs
from edged.errors import EdgedError
from edged.workbench.experiments import ExperimentOptions, run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from edged.workbench.experiments.job import TrialOrder


def run_recipes(
    path: Path, data: Path, out: Path, jobs: int | None, write: Path | None, *, quiet: bool
) -> dict[str, Any]:
    """Train, report, and show it unless `quiet`; the report without the curves, which are in its files.

    Raises
    ------
    EdgedError
        When something stops it, or every recipe failed; the report is written all the same then.
    """
    logs.configure("warning", "auto")
    options = ExperimentOptions(out, jobs or len(os.sched_getaffinity(0)), write)
    with RecipeProgress() as progress:
        report = run(path, data, options, progress.begin)
    if not report["ranking"]:
        reason = report["failed"][0]["reasons"][0]["reason"]
        raise EdgedError(f"all recipes failed, the first because {reason}", where=str(path))
    if not quiet:
        show_report(report, str(out / "report.html"))
    ranked = [{key: row[key] for key in row if key not in ("curves", "shown")} for row in report["ranking"]]
    return report | {"ranking": ranked}


class RecipeProgress:
    """A bar over all trainings, and one for each that is going on."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._tasks: dict[tuple[str, int], Any] = {}
        self._lock = threading.Lock()
        self._whole: Any = None

    def __enter__(self) -> Any:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def begin(self, orders: Sequence[TrialOrder]) -> RecipeProgress:
        """Know how many trainings there are."""
        self._whole = self._bars.add_task("trainings", total=len(orders), note="")
        return self

    def __call__(self, order: TrialOrder, message: dict[str, Any] | None) -> None:
        """A message of a training, or None when it has ended; from any thread."""
        key = (order.recipe.name, order.seed)
        with self._lock:
            if message is None:
                if key in self._tasks:
                    self._bars.remove_task(self._tasks.pop(key))
                self._bars.advance(self._whole)
                return
            if key not in self._tasks:
                name = f"  {escape(order.recipe.name)}, seed {order.seed}"
                self._tasks[key] = self._bars.add_task(name, total=message["epochs"], note="")
            value = message["validation_metric"]
            note = f"{order.metric.replace('_', ' ')} {'-' if value is None else f'{value:.4g}'}"
            self._bars.update(self._tasks[key], completed=message["epoch"], note=note)


def show_report(report: Mapping[str, Any], path: str) -> None:
    """The ranking as a table on stdout."""
    out, metric = Console(), report["metric"]
    table = Table(title="ranking", title_justify="left", header_style="bold", box=None, pad_edge=False)
    columns = ("", "recipe", metric.replace("_", " "), "± 95 %", "test", "step µs", "memory MB", "bundle kB")
    for column in columns:
        table.add_column(column, justify="left" if column in ("", "recipe") else "right")
    for row in report["ranking"]:
        found, test, peak = row["validation"][metric], row["test"], row["peak_bytes"]
        table.add_row(
            str(row["rank"]),
            escape(row["name"]),
            f"{found['mean']:.4f}",
            f"{found['high'] - found['mean']:.4f}" if report["seeds"] > 1 else "-",
            f"{test[metric]['mean']:.4f}" if test else "-",
            f"{row['step_us']:,.0f}",
            f"{peak / 1e6:.0f}" if peak else "-",
            f"{row['bundle_bytes'] / 1e3:,.0f}",
        )
    out.print(table)
    for row in report["failed"]:
        for reason in row["reasons"]:
            seeds = ", ".join(map(str, reason["seeds"]))
            _line(out, f"failed: {row['name']}, seed {seeds}: {reason['reason']}")
    _line(out, f"report: {path}")
    if report["written"]:
        _line(out, f"written: {report['written']['config']}, {report['written']['bundle']}")


def _line(out: Console, text: str) -> None:
    out.print(text, markup=False, highlight=False, soft_wrap=True)
