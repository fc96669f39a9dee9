"""`edged backup` and `edged restore`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads the annotations
from typing import Annotated

import typer

from edged.cli_json import AsJson, print_json


def backup(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="configuration file (YAML)")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="the backup to write")],
    key: Annotated[Path | None, typer.Option("--key", help="private key that signs it")] = None,
    as_json: AsJson = False,
) -> None:
    """Write samples, models, checkpoints and journal to one file, while the daemon runs or not."""
    from edged import configfile
    from edged.backup import back_up
    from edged.screens import show_pairs

    told = back_up(configfile.load(config), file, key)
    print_json(told) if as_json else show_pairs("backup", told)


def restore(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="configuration file (YAML)")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="the backup")],
    replace: Annotated[bool, typer.Option("--replace", help="a state that is there goes, for good")] = False,
    key: Annotated[
        list[Path] | None, typer.Option("--key", help="public key; one of those named must have signed it")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put a backup in the place of the state directory, whole or not at all; no daemon may run."""
    from edged import configfile
    from edged.backup import restore as put_back
    from edged.screens import show_pairs

    told = put_back(configfile.load(config), file, replace=replace, keys=key or ())
    print_json(told) if as_json else show_pairs("restored", told)
