"""What a device begins with: its sample log, and a bundle for a stream that names none.

That bundle is the standard network. Its builder needs `onnx`, which the daemon must not import; so it runs as
a child process, `python -m edged.bundles`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from edged.clock import Clock
from edged.config import Config
from edged.domain.child_orders import CONTEXT, NetworkKind, StandardBundleOrder, StandardNetwork
from edged.errors import BundleError, CorruptError, EdgedError, StorageError, UnavailableError
from edged.host.child_process import run_order
from edged.logs import get_logger
from edged.storage.files.atomic import disk_errors, fsync_directory, publish_file, staging_path
from edged.storage.files.database import CACHE_KIB
from edged.storage.models.bundles import Bundle
from edged.storage.models.trust import KEYS
from edged.storage.samples.log import SampleLog

log = get_logger("edged.bootstrap")

BUILD_SECONDS = 120.0
STREAM_CACHE_KIB = 128  # of each of several streams
# One wide layer learns a stream faster than two narrow ones: +0.3 to +1 point of accuracy in the mean.
STANDARD = [256]
# Without it weights grow with every step of years: +0.8 points of accuracy (docs/studies/learning.md).
DECAY = 0.15
# Samples that are answered rightly still teach: +0.2 points (docs/studies/learning.md).
SMOOTHING = 0.1
HIDDEN = {"autoencoder": [64, 32], "cnn1d": [32, 32], "gru": [64]}
ORDER_FILE = "bundle.hidden.json"
IGNORED = {"hidden": "hidden_ignored", "network": "network_ignored"}


def open_samples(
    config: Config, *, readonly: bool = False, clock: Clock | None = None, beside: SampleLog | None = None
) -> SampleLog:
    """The sample log of a configuration; with `clock`, ages are not fooled by its being set.

    `beside` is the writer of this process, for a reader.
    """
    storage = config.storage
    return SampleLog.open(
        storage.dir / "samples.db",
        config.stream.to_schema(),
        holdout=config.gate.holdout,
        max_bytes=storage.max_bytes,
        max_age=storage.max_age,
        quarantine_rows=storage.constants.quarantine_rows,
        relabels=config.stream.constants.max_relabels,
        tolerance=config.stream.join_tolerance,
        secure=storage.secure,
        readonly=readonly,
        beside=beside,
        clock=clock,
        cache_kib=STREAM_CACHE_KIB if config.name else CACHE_KIB,
    )


def with_bundle(config: Config, statistics: dict[str, list[float]] | None = None) -> Config:
    """The configuration with a bundle in it: a directory, also where one file is named.

    An existing standard bundle is used again.

    `statistics` are `mean` and `scale` of the inputs (and `target_mean`, `target_scale`) to put into the
    graph; without them the first training run fits them. Raises UnavailableError when this machine cannot
    build one; BundleError when building failed for another reason; EdgedError when the bundle file that is
    named is not whole, or not signed as it has to be.
    """
    config = with_own_keys(config)
    given = config.model.bundle
    if given is not None and not given.is_file():
        return with_context(config)
    if given is not None:
        from edged.storage.models.bundle_archive import unpacked

        return with_context(_with(config, unpacked(given, config.storage.dir, config.model.keys)))
    out = config.storage.dir / "bundle"
    if not _usable(config, out):
        try:
            build(config, out, statistics)
        except (BundleError, UnavailableError) as problem:
            if not (out / "bundle.json").exists():
                raise
            log.error("bundle_not_rebuilt", problem=problem.line())
    return _with(with_context(config), out)


def with_context(config: Config) -> Config:
    """The configuration with the context that its model sees samples with, where `stream.context` is not set.

    That is the bundle's, or what one that is still to be built will have. A bundle in one file must have been
    unpacked, else its samples are taken to have none.
    """
    if config.stream.context is not None:
        return config
    given = config.model.bundle
    try:
        context = Bundle.open(given or config.storage.dir / "bundle", verify=False).context
    except (BundleError, StorageError):
        context = CONTEXT if given is None and standard_network(config) == "experts" else ()
    return config.model_copy(update={"stream": config.stream.with_context(context)}) if context else config


def with_own_keys(config: Config) -> Config:
    """The configuration with the keys that came by command beside those of `model.keys`, where there are any.

    They open what a device has taken already: a key that was replaced since signed some of it. What is new
    must be signed by a key that counts now, see `Trust.current`.
    """
    model, own = config.model, config.storage.dir / KEYS
    if not model.keys or own in model.keys or not own.is_dir():
        return config
    return config.model_copy(update={"model": model.model_copy(update={"keys": [*model.keys, own]})})


def _with(config: Config, bundle: Path) -> Config:
    return config.model_copy(update={"model": config.model.model_copy(update={"bundle": bundle})})


def _usable(config: Config, out: Path) -> bool:
    """Whether an earlier standard bundle is there and whole; a damaged one is built again, the same."""
    if not (out / "bundle.json").exists():
        return False  # whatever else is in its place is refused by the builder, not removed
    try:
        outputs = Bundle.open(out).output.width
    except (BundleError, StorageError) as problem:
        # It stays until the new one takes its place: where none can be built, its models still serve.
        log.warning("bundle_damaged", problem=problem.line(), remedy="it is built again")
        return False
    if config.stream.max_classes is not None and outputs < config.stream.max_classes:
        log.info("network_grows", outputs=outputs, classes=config.stream.max_classes)
        return False
    ordered = _ordered(out.with_name(ORDER_FILE))
    for key, chosen in (("hidden", config.model.hidden), ("network", config.model.network)):
        if chosen is not None and ordered.get(key, chosen) != chosen:
            log.warning(
                IGNORED[key],
                where=f"model.{key}",
                remedy=f"the standard bundle has another one; remove {out} to build it again",
            )
    return True


def _ordered(file: Path) -> dict[str, Any]:
    """The kind of network and the layers that the standard bundle was ordered with, as far as is known."""
    try:
        order = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return order if isinstance(order, dict) else {}


def standard_network(config: Config) -> NetworkKind:
    """The kind of network that is built for a stream."""
    stream = config.stream
    if stream.resolved_task == "reconstruct":
        return "autoencoder"
    if config.model.network is not None:
        return config.model.network
    if stream.window is not None:
        return "cnn1d"
    return "experts" if stream.resolved_task == "classify" and stream.context != [] else "mlp"


def weight_decay(config: Config) -> float | None:
    """What the standard network's weights lose by a step, as a multiple of the learning rate."""
    optimizer = config.model.optimizer
    if optimizer.weight_decay is not None or not optimizer.name.startswith("adamw"):
        return optimizer.weight_decay
    return DECAY if _measured(config) else 0.0


def label_smoothing(config: Config) -> float:
    """How much of a label all classes share in the standard network's loss."""
    return SMOOTHING if _measured(config) else 0.0


def _measured(config: Config) -> bool:
    """Whether it is the kind of network and task that defaults were measured with."""
    return config.stream.resolved_task == "classify" and standard_network(config) in ("experts", "mlp")


def build(config: Config, out: Path, statistics: dict[str, list[float]] | None) -> None:
    """Build the standard bundle of this stream into `out`."""
    config = with_context(config)
    schema = config.stream.to_schema()
    network = standard_network(config)
    hidden = config.model.hidden if config.model.hidden is not None else HIDDEN.get(network, STANDARD)
    order = StandardBundleOrder(
        StandardNetwork(
            schema.task,
            schema.width,
            schema.outputs,
            network,
            (schema.steps, schema.channels),
            tuple(hidden),
            config.training.constants.seed,
            schema.context,
            config.stream.forecast_columns,
        ),
        out,
        config.model.optimizer.name,
        config.model.optimizer.options | {"weight_decay": weight_decay(config)},
        config.training.engine,
        label_smoothing(config),
        None if statistics is None else {name: tuple(values) for name, values in statistics.items()},
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    kept: dict[str, Any] = {"network": network, "hidden": hidden}
    if config.name:
        kept["order"] = hashlib.sha256(repr(replace(order, out=Path())).encode()).hexdigest()
        if not out.exists() and _copied(kept, out):
            return
    log.info("building_bundle", out=str(out), task=schema.task, features=schema.width)
    try:
        run_order("edged.bundles", order, BUILD_SECONDS)
    except UnavailableError as problem:
        raise UnavailableError(problem.line(), where="model.bundle") from problem
    except EdgedError as problem:
        raise BundleError(f"cannot be built: {problem.line()}", where="model.bundle") from problem
    publish_file(out.with_name(ORDER_FILE), json.dumps(kept).encode())


def _copied(kept: dict[str, Any], out: Path) -> bool:
    """Copy the bundle that was built to the same order for another stream; False where there is none."""
    for file in sorted(out.parent.parent.glob(f"*/{ORDER_FILE}")):
        source = file.with_name("bundle")
        if _ordered(file).get("order") != kept["order"]:
            continue
        staging = staging_path(out.parent, out.name)
        try:
            Bundle.open(source)
            with disk_errors("copying a bundle", out):
                shutil.copytree(source, staging)
                for path in (*staging.rglob("*"), staging):
                    fsync_directory(path)
                staging.rename(out)
            fsync_directory(out.parent)
            publish_file(out.with_name(ORDER_FILE), json.dumps(kept).encode())
        except (BundleError, CorruptError, StorageError) as problem:
            log.warning("bundle_not_copied", problem=problem.line(), action="building it")
            shutil.rmtree(staging, ignore_errors=True)
            continue
        log.info("bundle_copied", out=str(out), source=str(source))
        return True
    return False
