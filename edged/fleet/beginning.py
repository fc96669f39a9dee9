"""The model that a fleet begins with."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from edged.errors import ConfigError

if TYPE_CHECKING:
    from edged.domain.deltas import Weights
    from edged.fleet.config import FleetConfig


def first_model(config: FleetConfig) -> tuple[Weights, str]:
    """Its weights without personal ones, and the fingerprint of the bundle that devices need.

    Raises
    ------
    StorageError, BundleError
        When it cannot be read.
    ConfigError
        When nothing of it is shared.
    """
    weights, bundle = _read(config)
    shared = {
        name: value
        for name, value in weights.items()
        if not any(fnmatchcase(name, pattern) for pattern in config.train.personal)
    }
    if not shared:
        raise ConfigError("every parameter is personal", where="train.personal", remedy="leave some out")
    return shared, config.bundle or bundle


def _read(config: FleetConfig) -> tuple[Weights, str]:
    # Both read models with onnxruntime's help: memory that a coordinator needs only here.
    from edged.loop.unpacking import unpacked

    if not (config.model / "bundle.json").is_file():
        return unpacked(config.model), ""
    from edged.engines.model_parameters import initial_parameters
    from edged.storage.bundles import Bundle

    bundle = Bundle.open(config.model)
    return initial_parameters(bundle), bundle.fingerprint
