"""`edged recipe run`: ways to train, compared on recorded data, and what a person sees of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from edged import bundles
from edged.cli import output
from edged.cli.json_output import AsJson, print_json
from edged.cli.outputs import Force, check_file, new_directory
from edged.cli.progress import RecipeProgress

recipe_app = typer.Typer(help="Compare ways to train on recorded data.", no_args_is_help=True)


@recipe_app.command("run")
def recipe_run(
    recipes: Annotated[Path, Argument(metavar="RECIPE.yaml", help="recipe file")],
    data: Annotated[Path, Option(help="recorded stream: .npz, .csv, .parquet, .jsonl, .lp or .db")],
    folder: Annotated[Path, Option("-o", help="directory for report.html and report.json")],
    jobs: Annotated[int | None, Option(min=1, help="parallel trainings; one per core when absent")] = None,
    write: Annotated[
        Path | None, Option(metavar="CONFIG", help="write the winner's configuration and bundle")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Train every recipe off the device, and rank the results in an HTML and a JSON report."""
    bundles.require()
    from edged import logs
    from edged.workbench.experiments import ExperimentOptions, run

    logs.configure("warning", "auto")
    if write is not None:
        check_file(write, force=force)
    with new_directory(folder, "report.*", force=force) as out, RecipeProgress() as progress:
        options = ExperimentOptions(out, jobs or len(os.sched_getaffinity(0)), write, force)
        report = run(recipes, data, options, progress)
    if as_json:  # without the curves, which are in the files
        hidden = ("curves", "shown")
        rows = [{k: v for k, v in row.to_json().items() if k not in hidden} for row in report.ranking]
        print_json({**report.to_json(), "ranking": rows})
    else:
        output.show_recipes(report, folder / "report.html")
