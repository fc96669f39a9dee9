"""`edged audit`, `edged backup`, `edged restore` and `edged import`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from edged.cli import output
from edged.cli.options import AsJson, ConfigPath, Force, Stream, check_directory, check_file, print_json
from edged.cli.progress import ImportBar


def audit(
    config: ConfigPath,
    verify: Annotated[bool, Option("--verify", help="only check that the log is unchanged")] = False,
    head: Annotated[
        str | None, Option(help="SEQ:HASH as published earlier: the log must contain this entry")
    ] = None,
    stream: Stream = None,
    as_json: AsJson = False,
) -> None:
    """Show who changed what and when, and verify that the log is complete and unchanged."""
    from edged.config import loader
    from edged.device.admin.local_state import entries_of

    entries, last = entries_of(loader.load(config, stream=stream).storage.dir, head)
    if as_json:
        listed = {} if verify else {"log": [entry.to_json() for entry in entries]}
        print_json({"entries": len(entries), "head": last, **listed})
    elif verify:
        sys.stdout.write(f"{len(entries)} entries, complete and unchanged; the last is {last}\n")
    else:
        output.show_audit(entries)


def backup(
    config: ConfigPath,
    file: Annotated[Path, Argument(metavar="FILE", help="backup to write; of several streams a directory")],
    key: Annotated[Path | None, Option(help="private key that signs the backup")] = None,
    stream: Stream = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Back up samples, models, checkpoints and journal to one file a stream; the daemon can keep running."""
    from edged.config import loader
    from edged.device.admin.backup import back_up

    configs = loader.load_all(config)
    if stream is None and len(configs) > 1:
        from edged.device.admin.backup import back_up_streams

        check_directory(file, *(one.name for one in configs), force=force)
        result = back_up_streams(configs, file, key).to_json()
    else:
        check_file(file, force=force)
        result = back_up(loader.load(config, stream=stream), file, key).to_json()
    print_json(result) if as_json else output.show_pairs("backup", result)


def restore(
    config: ConfigPath,
    file: Annotated[
        Path, Argument(metavar="FILE", help="backup to restore; of several streams their directory")
    ],
    replace: Annotated[bool, Option("--replace", help="discard an existing state permanently")] = False,
    key: Annotated[
        list[Path] | None, Option(help="public key, repeatable; one of them must have signed the backup")
    ] = None,
    stream: Stream = None,
    as_json: AsJson = False,
) -> None:
    """Replace the state directory with a backup, atomically; the daemon must be stopped."""
    from edged.config import loader
    from edged.device.admin.backup import restore as put_back
    from edged.device.admin.backup import restore_streams

    if stream is None and file.is_dir():
        result = restore_streams(loader.load_all(config), file, replace=replace, keys=key or ()).to_json()
    else:
        report = put_back(loader.load(config, stream=stream), file, replace=replace, keys=key or ())
        result = report.to_json()
    print_json(result) if as_json else output.show_pairs("restored", result)


def import_data(
    config: ConfigPath,
    files: Annotated[list[Path], Argument(metavar="FILE...", help="recorded data, oldest first")],
    known: Annotated[
        str | None,
        Option(
            "--format",
            help="csv, parquet, jsonl, influx (line protocol), homeassistant (recorder), npz; from the file"
            " name when absent",
        ),
    ] = None,
    stream: Stream = None,
    as_json: AsJson = False,
) -> None:
    """Import recorded data with labels, times and keys into the sample log; the daemon must be stopped.

    After an interruption the same command continues. A file that was imported before changes nothing.
    """
    from edged.config import loader
    from edged.device.admin.importing import import_files

    with ImportBar() as bar:
        report = import_files(loader.load(config, stream=stream), files, known, bar.update)
    print_json(report.to_json()) if as_json else output.show_import(report)
