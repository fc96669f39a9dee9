"""The fleet's model as one ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edged.errors import ConfigError, StorageError
from edged.fleet.coordinator.branches import folder_of
from edged.fleet.coordinator.journal import COURSE
from edged.fleet.rules.rounds import FleetState
from edged.mqtt.weight_encoding import FILE, unpack
from edged.storage.files.atomic import disk_errors, publish_file, verify_directory
from edged.storage.files.checksummed_json import read_sealed

if TYPE_CHECKING:
    from edged.fleet.config import CoordinatorConfig


def export(
    config: CoordinatorConfig, out: Path, *, group: str = "", bundle: Path | None = None
) -> FleetState:
    """Write the model that the fleet, or a group, has now to `out`; returns where the fleet is.

    Layers that stay on devices have the weights that the bundle begins with. Raises ConfigError when there is
    no bundle or it is another than the devices'; StorageError when no coordinator has run here.
    """
    from edged.engines.portable.description import Description, base_model
    from edged.storage.models.bundles import Bundle
    from edged.storage.models.model_metadata import ModelMetadata

    folder = folder_of(config, group)
    if not (folder / COURSE).exists():
        raise StorageError("no coordinator has run here", where=str(folder), remedy="start `edged fleet run`")
    course = FleetState.from_json(read_sealed(folder / COURSE))
    path = bundle or config.model
    if not (path / "bundle.json").is_file():
        raise ConfigError("this is no bundle", where=str(path), remedy="name the devices' with --bundle")
    opened = Bundle.open(path)
    if opened.fingerprint != course.bundle:
        raise ConfigError(
            f"has fingerprint {opened.fingerprint[:12]}, the devices' bundle {course.bundle[:12]}",
            where=str(path), remedy="name the devices' with --bundle",
        )  # fmt: skip
    stored = folder / "models" / course.standing.hash
    verify_directory(stored)
    with disk_errors("reading", stored):
        weights = unpack((stored / FILE).read_bytes())[0]
    base = base_model(opened, Description.of(opened))
    made = bytes(base.with_parameters({**base.parameters(), **weights}))
    publish_file(out, ModelMetadata.of_bundle(opened).stamp(made, base.suffix))
    return course
