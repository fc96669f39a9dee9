"""Constants of the configuration with other values than devices have: for speed, or to reach a limit soon.

They have no key, so a file cannot hold them. Tests name them among the keys of their section, and `split`
takes them out again. A daemon gets them by `python -m tests.constants CONFIG`, which reads `constants.json`
beside the configuration, or from the process that forks it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import yaml

from edged.config import (
    Config,
    GateConfig,
    MqttConfig,
    ServingConfig,
    StorageConfig,
    StreamConfig,
    TrainingConfig,
    loader,
)
from edged.config.commands import InstallConfig, WeightsConfig
from edged.config.judging import LabelsConfig
from edged.config.storage import OutboxConfig
from edged.config.values import parse_duration, parse_size

SECTIONS: dict[str, type[Any]] = {
    "mqtt": MqttConfig,
    "storage": StorageConfig,
    "outbox": OutboxConfig,
    "stream": StreamConfig,
    "training": TrainingConfig,
    "gate": GateConfig,
    "labels": LabelsConfig,
    "install": InstallConfig,
    "weights": WeightsConfig,
    "serving": ServingConfig,
}
FILE = "constants.json"

Constants = dict[str, dict[str, Any]]
"""Values by section and name."""


def split(values: Mapping[str, Any]) -> tuple[dict[str, Any], Constants]:
    """The sections without constants, and the constants; durations and sizes may have units."""
    keys, constants = dict(values), Constants()
    for name, kind in SECTIONS.items():
        if not isinstance(section := keys.get(name), Mapping):
            continue
        usual = kind.__private_attributes__["_constants"].get_default()
        known = {field.name: getattr(usual, field.name) for field in fields(usual)}
        own = {key: _number(value, known[key]) for key, value in section.items() if key in known}
        if own:
            constants[name] = own
            keys[name] = {key: value for key, value in section.items() if key not in known}
    return keys, constants


def _number(value: Any, usual: Any) -> Any:
    if not isinstance(value, str):
        return value
    return parse_duration(value) if isinstance(usual, float) else parse_size(value)


def section(name: str, values: Mapping[str, Any]) -> Any:
    """The section of this name, with constants among its keys."""
    keys, constants = split({name: values})
    return SECTIONS[name].model_validate(keys[name]).with_constants(**constants.get(name, {}))


def configured(values: Mapping[str, Any]) -> Config:
    """The configuration of these sections, with constants among their keys."""
    keys, constants = split(values)
    return with_constants(Config.model_validate(keys), constants)


def loaded(folder: Path, stream: dict[str, Any], **sections: Any) -> Config:
    """The configuration of a file in `folder`, with constants among its keys."""
    keys, constants = split(sections)
    path = folder / "edged.yaml"
    path.write_text(yaml.safe_dump({"device": {"id": "rig"}, "stream": stream} | keys), encoding="utf-8")
    return with_constants(loader.load(path, {}), constants)


def with_constants(config: Config, constants: Constants) -> Config:
    """The configuration with these constants."""
    changed = {name: getattr(config, name).with_constants(**own) for name, own in constants.items()}
    return config.model_copy(update=changed)


def install(constants: Constants) -> None:
    """Let every configuration that this process reads have these constants."""
    for name, own in constants.items():
        private = SECTIONS[name].__private_attributes__["_constants"]
        private.default = replace(private.get_default(), **own)


def _as_run(path: str) -> None:
    """Become the daemon with the environment that `edged run` gives it."""
    from edged.cli.main import run

    execv = os.execv
    os.execv = lambda program, words: execv(program, [program, "-m", "tests.constants", "daemon", words[-1]])
    run(Path(path))


if __name__ == "__main__":
    if sys.argv[1] != "daemon":
        _as_run(sys.argv[1])
    sys.argv.remove("daemon")
    from edged.daemon import main

    install(json.loads(Path(sys.argv[1]).with_name(FILE).read_text(encoding="utf-8")))
    sys.exit(main())
