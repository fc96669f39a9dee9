"""What bundles come from, on the command line: models, recipes, keys."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003  typer reads the annotations
from typing import Annotated

import typer

from edged import bundles
from edged.cli.output import AsJson, print_json

model_app = typer.Typer(help="Small networks without a framework.", no_args_is_help=True)
recipe_app = typer.Typer(
    help="Recipe validation: ways to train, compared on recorded data.", no_args_is_help=True
)
keys_app = typer.Typer(help="Keys for signed bundles and commands.", no_args_is_help=True)


@model_app.command("new")
def model_new(
    kind: Annotated[str, typer.Argument(help="mlp, autoencoder, cnn1d, cnn2d or gru")],
    out: Annotated[Path, typer.Option("-o", help="file to write")],
    inputs: Annotated[
        str | None,
        typer.Option(
            "--inputs", help="number of features; of windows readings x channels: 128x9; of images 3x32x32"
        ),
    ] = None,
    outputs: Annotated[int | None, typer.Option("--outputs", min=1, help="classes or targets")] = None,
    window: Annotated[int | None, typer.Option("--window", min=2, help="readings in a window")] = None,
    channels: Annotated[int | None, typer.Option("--channels", min=1, help="numbers in a reading")] = None,
    hidden: Annotated[
        str | None, typer.Option("--hidden", help="layers such as 64,32; of a cnn1d filters, of a gru units")
    ] = None,
    features: Annotated[
        str,
        typer.Option("--features", help="statistics,spectrum: what an mlp sees of a window instead of it"),
    ] = "",
    seed: Annotated[int, typer.Option("--seed", min=0, help="of the initial weights")] = 0,
) -> None:
    """Build a small network without PyTorch."""
    bundles.require()
    from edged.bundles.commands import Inputs, new_model

    taken = Inputs.parse(inputs, window, channels)
    model = new_model(
        kind, inputs=taken, outputs=outputs, hidden=hidden, out=out, seed=seed, features=features
    )
    sys.stderr.write(f"{out}: {model.graph.name}, {out.stat().st_size:,} bytes\n")


@keys_app.command("new")
def keys_new(
    out: Annotated[Path, typer.Option("-o", help="file of the private key; the public one is FILE.pub")],
) -> None:
    """Make an Ed25519 key pair."""
    from edged.signing import new_pair

    public = new_pair(out)
    sys.stderr.write(f"{out}: private, for whoever signs; {public}: for the devices\n")


@recipe_app.command("run")
def recipe_run(
    recipes: Annotated[Path, typer.Argument(metavar="RECIPE.yaml", help="what to train")],
    data: Annotated[Path, typer.Option("--data", help="recorded stream, .npz or .csv[.gz]")],
    out: Annotated[Path, typer.Option("-o", help="directory for report.html and report.json")],
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="trainings at a time; a core each")
    ] = None,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="CONFIG", help="configuration and bundle of the winner")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train every recipe off the device; learning curves and a ranking as HTML and JSON."""
    bundles.require()
    from edged.workbench.experiments.command import run_recipes

    report = run_recipes(recipes, data, out, jobs, write, quiet=as_json)
    if as_json:
        print_json(report)
