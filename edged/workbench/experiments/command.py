"""What `edged recipe run` does between its arguments and its exit code."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from edged import logs
from edged.errors import EdgedError
from edged.workbench.experiments import ExperimentOptions, run
from edged.workbench.experiments.progress import RecipeProgress, show_report

if TYPE_CHECKING:
    from pathlib import Path


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
