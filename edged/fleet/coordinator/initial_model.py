"""The model that a fleet begins with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.numpy import load

from edged.domain.federated.personal_layers import is_personal
from edged.domain.model_files import TARGET_MEAN
from edged.errors import ConfigError, CorruptError, RefusedError, UnavailableError
from edged.fleet.rules.layout import Layout
from edged.fleet.rules.statistics import SolvedHead
from edged.mqtt.weight_encoding import unpack
from edged.storage.files.atomic import disk_errors

if TYPE_CHECKING:
    from edged.domain.training.weight_deltas import Weights
    from edged.fleet.config import CoordinatorConfig


def first_model(config: CoordinatorConfig) -> tuple[Weights, str]:
    """Its weights without personal ones, and the fingerprint of the bundle that devices need.

    Raises StorageError or BundleError when it cannot be read; ConfigError when there is none, or nothing of
    it is shared.
    """
    weights, bundle = _read(config)
    personal = config.train.personal
    shared = {name: value for name, value in weights.items() if not is_personal(name, personal)}
    if not shared:
        raise ConfigError("every parameter is personal", where="train.personal", remedy="leave some out")
    return shared, config.bundle or bundle


def head_of(config: CoordinatorConfig, weights: Weights) -> SolvedHead | None:
    """The layers that rounds of statistics solve for, in the fleet's model; None in rounds of training.

    Raises ConfigError when there are no such layers, or the network of `model` does not end with them.
    """
    if config.round.kind == "training":
        return None
    shapes = Layout.of(weights).by_name
    if not (config.model / "bundle.json").is_file():
        values = TARGET_MEAN in shapes  # a file does not tell what its network answers
        return SolvedHead.of(shapes, config.statistics, "values" if values else "classes")
    from edged.storage.models.bundles import MEASURING, Bundle
    from edged.trainer.head_inputs import HeadInputs

    bundle = Bundle.open(config.model)
    head = SolvedHead.of(shapes, config.statistics, "values" if bundle.loss in MEASURING else "classes")
    try:
        for number, layer in enumerate(head.settings.layers):
            HeadInputs(bundle, weights, layer, number).check()
    except (RefusedError, UnavailableError) as problem:
        raise ConfigError(problem.what, where=str(config.model), remedy=problem.remedy) from None
    return head


def _read(config: CoordinatorConfig) -> tuple[Weights, str]:
    if not config.model.exists():
        raise ConfigError(
            "there is no initial model", where=str(config.model), remedy="name a bundle or safetensors"
        )
    if not (config.model / "bundle.json").is_file():
        return _read_file(config.model), ""
    # With onnxruntime's help: memory that a coordinator needs here alone, at its first start.
    from edged.engines.model_parameters import initial_parameters
    from edged.storage.models.bundles import Bundle

    bundle = Bundle.open(config.model)
    return initial_parameters(bundle), bundle.fingerprint


def _read_file(path: Path) -> Weights:
    with disk_errors("reading", path):
        data = path.read_bytes()
    if path.suffix != ".safetensors":
        return unpack(data)[0]
    try:
        weights = dict(load(data))
    except SafetensorError as problem:
        raise CorruptError(f"no safetensors: {problem}", where=str(path)) from None
    if wrong := [name for name, value in weights.items() if value.dtype != "float32"]:
        raise ConfigError(f"parameter {wrong[0]!r} is not float32", where=str(path))
    return weights
