"""`edged weights`: updates that travel between devices and those who look after them."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003  typer reads the annotations
from typing import Annotated

import typer

from edged.cli_json import AsJson, print_json

weights_app = typer.Typer(help="Updates of weights that were received over MQTT.", no_args_is_help=True)


@weights_app.command("unpack")
def weights_unpack(
    source: Annotated[
        Path, typer.Argument(metavar="DIR|FILE", help="manifest and chunks as published, or one file")
    ],
    out: Annotated[Path | None, typer.Option("-o", help=".safetensors, or .onnx with --bundle")] = None,
    base: Annotated[
        list[Path] | None, typer.Option("--base", help="what a difference is to: bundle, safetensors, update")
    ] = None,
    bundle: Annotated[Path | None, typer.Option("--bundle", help="the bundle whose model to write")] = None,
    as_json: AsJson = False,
) -> None:
    """Check an update, put it together, and write the weights or a model with them."""
    from edged.domain.deltas import fingerprint
    from edged.loop.unpacking import unpacked, write

    bases = [*(base or []), *([bundle] if bundle is not None else [])]
    parameters = unpacked(source, bases)
    size = None if out is None else write(parameters, out, bundle)
    told = {
        "parameters": {name: list(value.shape) for name, value in sorted(parameters.items())},
        "fingerprint": fingerprint(parameters),
        "bytes": size,
    }
    if as_json:
        print_json(told)
        return
    for name, value in sorted(parameters.items()):
        sys.stdout.write(f"{name}  {list(value.shape)}\n")
    if out is not None:
        sys.stderr.write(f"{out}: {size:,} bytes\n")
