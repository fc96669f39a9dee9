"""Models and keys, which bundles come from, on the command line."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003  typer reads the annotations
from typing import Annotated

import typer
from typer import Argument, Option

from edged import bundles

model_app = typer.Typer(help="Small networks without a framework.", no_args_is_help=True)
keys_app = typer.Typer(help="Keys for signed bundles and commands.", no_args_is_help=True)


@model_app.command("new")
def model_new(
    kind: Annotated[str, Argument(help="mlp, autoencoder, cnn1d, cnn2d or gru")],
    out: Annotated[Path, Option("-o", help="file to write")],
    inputs: Annotated[
        str | None,
        Option(help="number of features; of windows readings x channels: 128x9; of images 3x32x32"),
    ] = None,
    outputs: Annotated[int | None, Option(min=1, help="classes or targets")] = None,
    window: Annotated[int | None, Option(min=2, help="readings in a window")] = None,
    channels: Annotated[int | None, Option(min=1, help="numbers in a reading")] = None,
    hidden: Annotated[
        str | None, Option(help="layers such as 64,32; of a cnn1d filters, of a gru units")
    ] = None,
    features: Annotated[
        str, Option(help="statistics,spectrum: what an mlp sees of a window instead of it")
    ] = "",
    seed: Annotated[int, Option(min=0, help="of the initial weights")] = 0,
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
    out: Annotated[Path, Option("-o", help="file of the private key; the public one is FILE.pub")],
) -> None:
    """Make an Ed25519 key pair."""
    from edged.signing import new_pair

    public = new_pair(out)
    sys.stderr.write(f"{out}: private, for whoever signs; {public}: for the devices\n")
