"""The offline commands: networks and keys, and bundles: built, looked at, signed, packed, exported."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from edged import bundles
from edged.cli import output
from edged.cli.options import AsJson, Force, Stream, check_directory, check_file, new_directory, print_json
from edged.errors import ConfigError

artifacts_app = typer.Typer(help="Build, inspect, sign, export and verify bundles.", no_args_is_help=True)
model_app = typer.Typer(help="Build small networks without PyTorch.", no_args_is_help=True)
keys_app = typer.Typer(help="Make and list keys for signed bundles and commands.", no_args_is_help=True)
# Options of several commands, and those whose help takes a line of its own.
ModelPath = Annotated[Path, Argument(metavar="MODEL.onnx")]
BundlePath = Annotated[Path, Argument()]
LossName = Annotated[str, Option(help="cross_entropy, mse, bce_with_logits, l1, or losses.py:function")]
Standardised = Annotated[
    bool | None, Option(help="standardise inputs in the graph; by default for networks of `edged model new`")
]
OptimizerName = Annotated[str, Option(help="adamw, adamw_pytorch, sgd or sgd_momentum; see docs/losses.md")]
Decay = Annotated[float | None, Option(help="default 0; 0.01 for adamw_pytorch")]
ClipNorm = Annotated[float | None, Option(help="maximum gradient norm; default 0: unlimited")]
Trained = Annotated[list[str] | None, Option(help="parameters to train: globs, or last:2 for two layers")]
EngineName = Annotated[str, Option(help="portable, or native: onnxruntime-training")]
OpLibrary = Annotated[
    Path | None,
    Option("--op-library", metavar="FILE.onnx", help="ONNX functions for custom operators"),
]
SequenceLength = Annotated[
    int | None,
    Option(
        "--sequence", min=1, metavar="LENGTH", help="length of the sequence axis if the model leaves it open"
    ),
]
ClassNames = Annotated[str | None, Option(help="class names in the order of the outputs: ok,worn")]
NamesFrom = Annotated[Path | None, Option(help="take names and units from this configuration of a device")]
CheckpointForm = Annotated[
    str, Option(help="full, or nominal: parameters in a separate parameters.safetensors")
]
PublicKeys = Annotated[
    list[Path] | None, Option(help="public key, repeatable; one of them must have signed the bundle")
]


@artifacts_app.command("build")
def artifacts_build(
    model: ModelPath,
    out: Annotated[Path, Option("-o", help="bundle directory")],
    loss: LossName,
    class_weights: Annotated[str | None, Option(help="for cross_entropy, such as 1,2,0.5")] = None,
    ignore_index: Annotated[int | None, Option(help="class that cross_entropy ignores")] = None,
    label_smoothing: Annotated[float, Option(help="for cross_entropy; 0.1 is usual")] = 0.0,
    optimizer: OptimizerName = "adamw",
    weight_decay: Decay = None,
    clip_norm: ClipNorm = None,
    momentum: Annotated[float | None, Option(help="for sgd_momentum; default 0.9")] = None,
    train: Trained = None,
    freeze: Annotated[list[str] | None, Option(help="parameters to freeze, the same way")] = None,
    data: Annotated[
        Path | None, Option(help="recorded stream from which the standardisation is computed")
    ] = None,
    standardise: Standardised = None,
    engine: EngineName = "portable",
    library: OpLibrary = None,
    sequence: SequenceLength = None,
    features: Annotated[str | None, Option(help="names of the inputs, in order: temp,vib.x")] = None,
    units: Annotated[str | None, Option(help="units of the inputs: °C,g")] = None,
    classes: ClassNames = None,
    target_units: Annotated[str | None, Option(help="units of the outputs of a regression")] = None,
    config: NamesFrom = None,
    checkpoint: CheckpointForm = "full",
    of_stream: Stream = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Build a bundle from MODEL.onnx: training, eval and optimizer graphs, checkpoint and base model."""
    bundles.require()
    from edged.bundles.build import build
    from edged.bundles.graph.naming import Naming
    from edged.bundles.inspect import inspect
    from edged.bundles.losses.objective import parse
    from edged.bundles.request import BuildRequest
    from edged.config.loader import load_stream
    from edged.domain.training.optimizers import Optimizer
    from edged.storage.models.bundles import refuse_foreign

    refuse_foreign(out)
    check_directory(out, "*", force=force)
    stream = None if config is None else load_stream(config, of_stream)
    naming = Naming() if stream is None else Naming.of(stream.to_schema())
    request = BuildRequest(
        model=model,
        loss=parse(loss, class_weights, ignore_index, label_smoothing),
        optimizer=Optimizer.of(optimizer, weight_decay=weight_decay, clip_norm=clip_norm, momentum=momentum),
        train=train or (),
        freeze=freeze or (),
        engine=engine,
        standardise=standardise,
        data=data,
        stream=stream,
        naming=naming.given(features=features, units=units, classes=classes, target_units=target_units),
        library=library,
        sequence=sequence,
        checkpoint=checkpoint,
    )
    notes: list[str] = []
    build(request, out, notes.append)
    report = replace(inspect(out), notes=tuple(notes))
    print_json(report.to_json()) if as_json else output.show_bundle(report)


@artifacts_app.command("check")
def artifacts_check(
    model: ModelPath,
    loss: LossName = "mse",
    optimizer: Annotated[str, Option(help="as for build")] = "adamw",
    train: Annotated[list[str] | None, Option(help="parameters to train, as for build")] = None,
    freeze: Annotated[list[str] | None, Option(help="parameters to freeze, as for build")] = None,
    engine: EngineName = "portable",
    standardise: Standardised = None,
    library: OpLibrary = None,
    sequence: SequenceLength = None,
    as_json: AsJson = False,
) -> None:
    """Check whether an engine can train a model, and what to change if not. Writes nothing."""
    bundles.require()
    from edged.bundles.build import check
    from edged.bundles.losses.objective import parse
    from edged.bundles.request import BuildRequest
    from edged.domain.training.optimizers import Optimizer

    request = BuildRequest(
        model=model,
        loss=parse(loss),
        optimizer=Optimizer.of(optimizer),
        train=train or (),
        freeze=freeze or (),
        engine=engine,
        standardise=standardise,
        library=library,
        sequence=sequence,
    )
    report = check(request)
    if as_json:
        print_json({"model": str(model), **report.to_json()})
    else:
        output.show_check(model, report)
    if not report.ok:
        raise typer.Exit(1)


@artifacts_app.command("inspect")
def artifacts_inspect(bundle: BundlePath, as_json: AsJson = False) -> None:
    """Show the contents of a bundle (directory or file): parameters, loss, optimizer, names, sizes."""
    bundles.require()
    from edged.bundles.inspect import inspect
    from edged.storage.models.bundle_archive import as_folder

    with as_folder(bundle) as folder:
        report = replace(inspect(folder), path=bundle)
    print_json(report.to_json()) if as_json else output.show_bundle(report)


@artifacts_app.command("verify")
def artifacts_verify(bundle: BundlePath, key: PublicKeys = None, as_json: AsJson = False) -> None:
    """Verify that a bundle (directory or file) is complete and signed, and that it trains here."""
    bundles.require()
    from edged.bundles.inspect import verify
    from edged.storage.models.bundle_archive import as_folder
    from edged.storage.models.signatures import open_bundle

    with as_folder(bundle) as folder:
        if key:
            open_bundle(folder, key)
        values = replace(verify(folder), path=bundle, signed=True if key else None)
    signed = "signed, " if key else ""
    print_json(values.to_json()) if as_json else sys.stdout.write(
        f"{bundle}: {signed}whole, loads and trains here\n"
    )


@artifacts_app.command("sign")
def artifacts_sign(
    bundle: BundlePath,
    key: Annotated[Path, Option(help="private key, made by `edged keys new`")],
    version: Annotated[
        int | None,
        Option(
            min=0, help="version of the bundle: devices then reject lower ones; the Unix time when absent"
        ),
    ] = None,
    expires: Annotated[
        str | None,
        Option(help="expiry, after which devices reject it: 90d, or a date such as 2027-01-31 (UTC)"),
    ] = None,
    force: Annotated[bool, Option("--force", help="replace the signature of another key")] = False,
) -> None:
    """Sign a bundle, for devices that only accept signed ones."""
    from edged.storage.models.signatures import refuse_other_signature, sign_bundle

    if not force:
        refuse_other_signature(bundle, key)
    signed = sign_bundle(bundle, key, version, None if expires is None else _expiry(expires))
    sys.stderr.write(f"{bundle}: signed as version {signed}\n")


def _expiry(text: str) -> float:
    """The end of a duration from now on, or of the beginning of a day, in Unix seconds."""
    from edged.config.values import parse_duration

    try:
        day = datetime.fromisoformat(text)
    except ValueError:
        try:
            return time.time() + float(parse_duration(text))
        except ValueError:
            raise ConfigError(
                f"{text!r} is neither a duration nor a date", where="--expires", remedy="90d, or 2027-01-31"
            ) from None
    return (day if day.tzinfo else day.replace(tzinfo=timezone.utc)).timestamp()


@artifacts_app.command("pack")
def artifacts_pack(
    bundle: BundlePath,
    out: Annotated[Path, Option("-o", help="file to write, usually NAME.edged")],
    force: Force = False,
) -> None:
    """Pack a bundle into one file, for the command bundle.install."""
    from edged.storage.models.bundle_archive import pack_bundle

    check_file(out, force=force)
    sys.stderr.write(f"{out}: {pack_bundle(bundle, out):,} bytes\n")


@artifacts_app.command("unpack")
def artifacts_unpack(
    file: Annotated[Path, Argument(metavar="NAME.edged")],
    out: Annotated[Path, Option("-o", help="directory to write")],
    key: PublicKeys = None,
    force: Force = False,
) -> None:
    """Unpack a bundle file into a directory; a damaged file leaves nothing behind."""
    from edged.storage.models.bundle_archive import unpack_to
    from edged.storage.models.bundles import refuse_foreign
    from edged.storage.models.signatures import open_bundle

    refuse_foreign(out)
    with new_directory(out, "*", force=force) as folder:
        name = folder.name
        bundle = unpack_to(file, folder.parent, lambda _: name, lambda one: open_bundle(one.path, key or []))
    sys.stderr.write(f"{out}: {len(bundle.files)} files\n")


@artifacts_app.command("params")
def artifacts_params(
    bundle: Annotated[Path, Argument(help="bundle or checkpoint (file or directory)")],
    get: Annotated[str | None, Option(help="write this parameter to -o FILE.npy")] = None,
    out: Annotated[Path | None, Option("-o", help="file to write")] = None,
    put: Annotated[
        list[str] | None, Option("--set", help="NAME=FILE.npy: set the initial value of a parameter")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Show, read and set the parameters of a bundle."""
    bundles.require()
    from edged.bundles.export import parameters

    if get is not None:
        if out is not None:
            check_file(out, force=force)
        parameters.write_parameter(bundle, get, out)
        return
    if put:
        parameters.put(bundle, parameters.read_parameters(put))
    report = parameters.describe(bundle)
    print_json(report.to_json()) if as_json else output.show_parameters(str(bundle), report)


@artifacts_app.command("export")
def artifacts_export(
    source: Annotated[Path, Argument(help="bundle, directory of a stored model, or ONNX file")],
    out: Annotated[Path, Option("-o", help="file to write, .onnx or .ort")],
    outputs: Annotated[str, Option(help="tensors to use as outputs, such as logits,relu")] = "",
    optimise: Annotated[str, Option(help="none, basic, extended or all")] = "none",
    quantise: Annotated[str, Option(help="int8, or none")] = "none",
    data: Annotated[
        Path | None, Option(help="recorded stream on which outputs before and after are compared")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Export a model for other programs: other outputs, optimised, or quantised."""
    bundles.require()
    from edged.bundles.export.export import ExportRequest, export

    if quantise not in ("none", "int8"):
        raise ConfigError(f"unknown {quantise!r}", where="--quantise", remedy="int8, or none")
    check_file(out, force=force)
    wish = ExportRequest(tuple(name for name in outputs.split(",") if name), optimise, quantise == "int8")
    report = export(source, out, wish, data=data)
    print_json(report.to_json()) if as_json else output.show_export(report)


@artifacts_app.command("ops")
def artifacts_ops(
    bundle: BundlePath,
    out: Annotated[Path | None, Option("-o", help="file to write; stdout when absent")] = None,
    purpose: Annotated[str, Option("--for", help="serving, or all: training too")] = "all",
    types: Annotated[
        bool, Option("--types", help="add the types of each operator, for a build with reduced types")
    ] = False,
    force: Force = False,
) -> None:
    """List the operators that a bundle needs, in the format of a reduced build of onnxruntime."""
    bundles.require()
    from edged.bundles.export.export import required_operators
    from edged.storage.files.atomic import publish_file

    if out is not None:
        check_file(out, force=force)
    text = required_operators(bundle, purpose, types=types)
    sys.stdout.write(text) if out is None else publish_file(out, text.encode())


@model_app.command("new")
def model_new(
    kind: Annotated[str, Argument(help="mlp, autoencoder, cnn1d, cnn2d or gru")],
    out: Annotated[Path, Option("-o", help="file to write")],
    inputs: Annotated[
        str, Option(help="number of features; for windows readings x channels: 128x9; for images 3x32x32")
    ],
    outputs: Annotated[int | None, Option(min=1, help="classes or targets")] = None,
    hidden: Annotated[
        str | None, Option(help="hidden layers such as 64,32; for a cnn1d filters, for a gru units")
    ] = None,
    seed: Annotated[int, Option(min=0, help="seed of the initial weights")] = 0,
    force: Force = False,
) -> None:
    """Build a small network without PyTorch."""
    bundles.require()
    from edged.bundles.new_model import new_model, parse_inputs, parse_sizes

    check_file(out, force=force)
    model = new_model(
        kind,
        inputs=parse_inputs(inputs),
        outputs=outputs,
        hidden=None if hidden is None else parse_sizes(hidden),
        out=out,
        seed=seed,
    )
    sys.stderr.write(f"{out}: {model.graph.name}, {out.stat().st_size:,} bytes\n")


@keys_app.command("new")
def keys_new(
    out: Annotated[Path, Option("-o", help="file of the private key; the public one is FILE.pub")],
    force: Force = False,
) -> None:
    """Make an Ed25519 key pair."""
    from edged.signing import new_pair
    from edged.storage.files.atomic import staging_path

    check_file(out, force=force)
    public = out.with_name(f"{out.name}.pub")
    check_file(public, force=force)
    staged = staging_path(out.parent, out.name)
    for made, final in zip((new_pair(staged), staged), (public, out), strict=True):
        made.replace(final)
    sys.stderr.write(f"{out}: private, for whoever signs; {public}: for the devices\n")


@keys_app.command("list")
def keys_list(
    config: Annotated[Path, Argument(help="a device's configuration")],
    stream: Stream = None,
    as_json: AsJson = False,
) -> None:
    """List the keys that are valid on this device now, without those replaced or revoked by command."""
    from edged.config import loader
    from edged.device.commands.keys import counting
    from edged.storage.models.trust import Trust

    loaded = loader.load(config, stream=stream)
    found = counting(loaded, Trust(loaded.storage.dir))
    if as_json:
        print_json({"keys": found})
        return
    for key in found:
        sys.stdout.write(f"{key['id']}  {' and '.join(key['for'])}  {key['file']}\n")
