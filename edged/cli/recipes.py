"""`edged recipe run`: ways to train, compared on recorded data, and what a person sees of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from typer import Argument, Option

from edged import bundles, logs
from edged.cli.output import AsJson, Bars, new_table, out, print_json, say

if TYPE_CHECKING:
    from edged.workbench.experiments.job import EpochDone, TrialOrder

recipe_app = typer.Typer(
    help="Recipe validation: ways to train, compared on recorded data.", no_args_is_help=True
)


@recipe_app.command("run")
def recipe_run(
    recipes: Annotated[Path, Argument(metavar="RECIPE.yaml", help="what to train")],
    data: Annotated[Path, Option(help="recorded stream, .npz or .csv[.gz]")],
    folder: Annotated[Path, Option("-o", help="directory for report.html and report.json")],
    jobs: Annotated[int | None, Option(min=1, help="trainings at a time; a core each")] = None,
    write: Annotated[
        Path | None, Option(metavar="CONFIG", help="configuration and bundle of the winner")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train every recipe off the device; learning curves and a ranking as HTML and JSON."""
    bundles.require()
    from edged.workbench.experiments import ExperimentOptions, run

    logs.configure("warning", "auto")
    options = ExperimentOptions(folder, jobs or len(os.sched_getaffinity(0)), write)
    with RecipeProgress() as progress:
        report = run(recipes, data, options, progress)
    if as_json:  # without the curves, which are in the files
        rows = [{k: v for k, v in row.items() if k not in ("curves", "shown")} for row in report["ranking"]]
        print_json(report | {"ranking": rows})
    else:
        _show_report(report, folder / "report.html")


class RecipeProgress(Bars):
    """A bar over all trainings, and one for each that is going on."""

    def __init__(self) -> None:
        super().__init__("{task.description}", "{task.completed:.0f}/{task.total:.0f}", "{task.fields[note]}")
        self._tasks: dict[tuple[str, int], Any] = {}
        self._lock = threading.Lock()

    def begin(self, orders: Sequence[TrialOrder]) -> None:
        """Know how many trainings there are."""
        self._whole = self._progress.add_task("trainings", total=len(orders), note="")

    def advanced(self, order: TrialOrder, point: EpochDone) -> None:
        """Show the epoch of a training and its validation metric."""
        key = (order.recipe.name, order.seed)
        with self._lock:
            if key not in self._tasks:
                name = f"  {escape(order.recipe.name)}, seed {order.seed}"
                self._tasks[key] = self._progress.add_task(name, total=point.epochs, note="")
            value = point.validation_metric
            note = f"{order.metric.replace('_', ' ')} {f'{value:.4g}' if isfinite(value) else '-'}"
            self._progress.update(self._tasks[key], completed=point.epoch, note=note)

    def ended(self, order: TrialOrder) -> None:
        """Remove the bar of a training, and count it."""
        with self._lock:
            task = self._tasks.pop((order.recipe.name, order.seed), None)
            if task is not None:
                self._progress.remove_task(task)
            self._progress.advance(self._whole)


def _show_report(report: Mapping[str, Any], page: Path) -> None:
    metric = report["metric"]
    figures = (metric.replace("_", " "), "± 95 %", "test", "step µs", "memory MB", "bundle kB")
    table = new_table("ranking", ("", "recipe", *figures))
    for column in table.columns[2:]:
        column.justify = "right"
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
            say(f"failed: {row['name']}, seed {seeds}: {reason['reason']}")
    say(f"report: {page}")
    if report["written"]:
        say(f"written: {report['written']['config']}, {report['written']['bundle']}")
