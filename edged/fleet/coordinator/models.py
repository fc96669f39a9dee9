"""The fleet's model: how it begins, what a round makes of it, and how it leaves as one ONNX file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from edged.domain.training.weight_coding import Weights, fingerprint
from edged.errors import (
    ConfigError,
    CorruptError,
    NonFiniteError,
    StorageError,
)
from edged.fleet.config import CoordinatorConfig
from edged.fleet.coordinator.journal import CoordinatorJournal, read_blob, read_course
from edged.fleet.rules.layout import Layout
from edged.fleet.rules.rounds import FleetState
from edged.mqtt.weight_encoding import unpack
from edged.storage.files.atomic import disk_errors, publish_file

# ---- the first model -------------------------------------------------------------------------


def first_model(config: CoordinatorConfig) -> tuple[Weights, str]:
    """Return the weights that a fleet begins with, and the fingerprint of the bundle that devices need.

    Raises StorageError or BundleError when the model cannot be read; ConfigError when there is none.
    """
    if not config.model.exists():
        raise ConfigError(
            "there is no initial model", where=str(config.model), remedy="name a bundle or safetensors"
        )
    if not (config.model / "bundle.json").is_file():
        return _read_file(config.model), config.bundle
    # With onnxruntime's help: memory that a coordinator needs here alone, at its first start.
    from edged.engines.model_parameters import initial_parameters
    from edged.storage.models.bundles import Bundle

    bundle = Bundle.open(config.model)
    return initial_parameters(bundle), config.bundle or bundle.fingerprint


def begun(config: CoordinatorConfig, journal: CoordinatorJournal) -> FleetState:
    """Return the stored state of a fleet; at the first start one with the model that `config` names.

    Raises as `first_model`, and ConfigError when devices could not fetch the model.
    """
    course, budget = journal.course(), config.rollout.device_bytes
    if course is None:
        weights, bundle = first_model(config)
        if not bundle:
            raise ConfigError(
                f"{config.model.name} is no bundle: the bundle that devices need is unknown",
                where="bundle",
                remedy="set it to the fingerprint that `edged artifacts inspect BUNDLE` shows",
            )
        base = journal.add(weights, fingerprint(weights), {"round": 0, "parent": None})
        course = FleetState(base, bundle)
        journal.store(course)
    if budget is not None and budget < course.standing.bytes:
        raise ConfigError(
            f"{budget} bytes a day, but the model has {course.standing.bytes}",
            where="rollout.device_bytes", remedy="raise it",
        )  # fmt: skip
    return course


def _read_file(path: Path) -> Weights:
    with disk_errors("reading", path):
        data = path.read_bytes()
    if path.suffix != ".safetensors":
        return unpack(data)
    try:
        weights = dict(load(data))
    except SafetensorError as problem:
        raise CorruptError(f"no safetensors: {problem}", where=str(path)) from None
    if wrong := [name for name, value in weights.items() if value.dtype != "float32"]:
        raise ConfigError(f"parameter {wrong[0]!r} is not float32", where=str(path))
    return weights


# ---- the model of a round --------------------------------------------------------------------


def advanced(base: Weights, change: NDArray[np.float64], layout: Layout) -> Weights:
    """Return the weights after a change `(layout.size,)`; NonFiniteError when they are not all finite."""
    with np.errstate(over="ignore"):
        weights = layout.weights(layout.vector(base).astype(np.float64) + change)
    if not all(np.isfinite(value).all() for value in weights.values()):
        raise NonFiniteError("the model of the round has numbers that are not finite", where="fleet")
    return weights


# ---- export ----------------------------------------------------------------------------------


def export(config: CoordinatorConfig, out: Path, bundle: Path | None = None) -> FleetState:
    """Write the model that the fleet has now to `out`, and return the state of the fleet.

    Raises ConfigError when there is no bundle or it is another than the devices'; StorageError when no
    coordinator has run here.
    """
    from edged.engines.model_parameters import BaseModel
    from edged.storage.models.bundles import Bundle
    from edged.storage.models.model_metadata import ModelMetadata

    folder = config.dir
    course = read_course(folder)
    if course is None:
        raise StorageError("no coordinator has run here", where=str(folder), remedy="start `edged fleet run`")
    path = bundle or config.model
    if not (path / "bundle.json").is_file():
        raise ConfigError("this is no bundle", where=str(path), remedy="name the devices' with --bundle")
    opened = Bundle.open(path)
    if opened.fingerprint != course.bundle:
        raise ConfigError(
            f"has fingerprint {opened.fingerprint[:12]}, the devices' bundle {course.bundle[:12]}",
            where=str(path), remedy="name the devices' with --bundle",
        )  # fmt: skip
    weights = unpack(read_blob(folder, course.standing.hash))
    base = BaseModel(opened)
    made = bytes(base.with_parameters({**base.parameters(), **weights}))
    publish_file(out, ModelMetadata.of_bundle(opened).stamp(made))
    return course
