"""Reading the configuration: YAML, then the environment, then what was set by command.

`load` applies environment overrides (`EDGED_MQTT__HOST=...`). Relative paths are relative to the
configuration file.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from pydantic import ValidationError

from edged.config import Config, StreamConfig
from edged.config.problems import all_problems
from edged.config.streams import FOLDER, KEY, OWN, chosen, expand
from edged.config.yaml_file import Place, Places, parse_yaml, read_yaml
from edged.domain.messages.requests import settable
from edged.errors import ConfigError, ConfigFileError

OVERLAY = "config.set.json"
"""In the state directory: what was set by command."""

ENV_PREFIX = "EDGED_"

_SHORT_FORMS = ("model.optimizer",)  # sections that may be written as their name alone


def load(
    path: Path,
    environ: dict[str, str] | None = None,
    *,
    overlay: Mapping[str, Any] | None = None,
    stream: str | None = None,
) -> Config:
    """Read, override and validate the configuration in `path`, of its stream or of the one named `stream`.

    What was set by the command `config.set` lies over the file, and the environment over both. Where it does
    not fit the file any more it is left out, so that no device stays down for it.

    `environ` holds environment variables, those of this process when absent. `overlay` holds keys such as
    `training.every` with their values instead of what was set: then they have to fit.

    Raises ConfigFileError: of each mistake file, line and key, what was received and what would be right;
    ConfigError where there are several streams and none is named, or there is none of that name.
    """
    file = _File.read(path, environ)
    configs = file.configs() if overlay is None else file.with_overlay(stream, overlay)
    return configs[chosen([config.name for config in configs], stream, path)]


def load_all(
    path: Path,
    environ: dict[str, str] | None = None,
    *,
    ignored: list[str] | None = None,
    plain: bool = False,
    text: str | None = None,
) -> list[Config]:
    """The configuration of each stream in `path`: of one without a name, or of those that `streams:` names.

    With `plain` keys that were set by command are left out; `ignored` gets one line if they do not fit the
    file any more, and are left out for that. `text` is read as if it were in the file. Raises
    ConfigFileError with the mistakes of all streams; otherwise as `load`.
    """
    file = _File.read(path, environ, text)
    return file.validated({}) if plain else file.configs(ignored)


def load_device(
    path: Path, overlay: Mapping[str, Any], environ: dict[str, str] | None = None
) -> list[Config]:
    """As `load_all`, with `overlay` in place of what was set for the device; it has to fit every stream."""
    return _File.read(path, environ).with_overlay("", overlay)


def from_values(values: Mapping[str, Any], *, stream: str | None = None) -> Config:
    """The configuration in a mapping with the sections of a file; its relative paths are as seen from here.

    Nothing lies over it. Raises ConfigError as `load`, with `configuration` in place of file and line.
    """
    path = Path("configuration")
    configs = _File(path, Places(path, {}), copy.deepcopy(dict(values)), {}).validated({})
    return configs[chosen([config.name for config in configs], stream, path)]


@dataclass(frozen=True)
class _File:
    """A configuration file as it was read: its values and their places."""

    path: Path
    places: Places
    data: dict[str, Any]
    environ: dict[str, str]

    @classmethod
    def read(cls, path: Path, environ: dict[str, str] | None, text: str | None = None) -> _File:
        what, remedy = "the configuration", "begin with `device: {id: ...}`"
        places, data = read_yaml(path, what, remedy) if text is None else parse_yaml(text, path, what, remedy)
        data = {key: value for key, value in data.items() if value is not None}
        return cls(path, places, data, dict(os.environ) if environ is None else environ)

    def configs(self, ignored: list[str] | None = None) -> list[Config]:
        """Every stream's configuration, with what was set by command as far as it fits."""
        plain = self.validated({})
        kept = {
            place: read_overlay(folder / OVERLAY)
            for place, folder in self._folders(plain[0].device_dir).items()
        }
        if not any(kept.values()):
            return plain
        try:
            return self.validated(kept)
        except ConfigError as problem:
            if ignored is not None:
                ignored.append(problem.line())
            return plain

    def with_overlay(self, stream: str | None, overlay: Mapping[str, Any]) -> list[Config]:
        """Every configuration, with `overlay` in place of what was set for `stream`; "" is the device."""
        if KEY not in self.data:
            return self.validated({"": overlay})
        folders = self._folders(self.validated({})[0].device_dir)
        kept = {place: read_overlay(folder / OVERLAY) for place, folder in folders.items()}
        return self.validated({**kept, stream or "": overlay})

    def _folders(self, device: Path) -> dict[str, Path]:
        """Where what was set is kept: of the device, by the name "", and of each stream."""
        names = [entry["name"] for entry in self.data.get(KEY, ())]
        return {"": device} | {name: device / FOLDER / name for name in names}

    def validated(self, overlays: Mapping[str, Mapping[str, Any]]) -> list[Config]:
        """Every configuration, with `overlays` of keys over it."""
        data = copy.deepcopy(self.data)
        common = overlays.get("", {})
        if KEY not in data:
            return [_validated(data, self.places, self.environ, common)]
        problems: list[ConfigError] = []
        configs: list[Config] = []
        for entry in expand(data, self.places, problems):
            overlay = {**common, **overlays.get(entry.name, {})}
            try:
                config = _validated(copy.deepcopy(entry.data), entry.places, self.environ, overlay)
            except ConfigFileError as problem:
                problems += problem.problems
            else:
                configs.append(config.named(entry.name))
        problems += self._fleet_problems()
        if problems:
            once = list({problem.line(): problem for problem in problems}.values())
            raise ConfigFileError(sorted(once, key=lambda one: self.places.line(one.where)))
        return configs

    def _fleet_problems(self) -> list[ConfigError]:
        """A fleet improves one model: of which stream has to be said."""
        fleet, streams = self.data.get("fleet"), self.data[KEY]
        if not isinstance(fleet, dict) or not isinstance(streams, list):
            return []
        names = [str(entry.get("name")) for entry in streams if isinstance(entry, dict)]
        if fleet.get("flower"):
            where = self.places.of("fleet.flower")
            remedy = "remove it: rounds come over MQTT; or give fleet.stream its own daemon"
            return [ConfigError("Flower takes a device with one stream", where=where, remedy=remedy)]
        if fleet.get("stream") in names:
            return []
        where = self.places.of("fleet.stream")
        said = "this key is required" if fleet.get("stream") is None else f"no stream {fleet['stream']!r}"
        return [ConfigError(said, where=where, remedy=f"name one of {', '.join(names)}")]


def json_schema() -> dict[str, Any]:
    """The JSON schema of a configuration file: sections for one stream, or with `streams` for several."""
    schema = Config.model_json_schema()
    sections = schema["properties"]
    name = {"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]{0,62}$"}
    entry = {
        "type": "object",
        "description": "a stream: each of its sections lies over that of the same name at the top",
        "properties": {"name": name, **{key: sections[key] for key in OWN}},
        "required": ["name"],
        "additionalProperties": False,
    }
    sections[KEY] = {"type": "array", "items": entry, "minItems": 1}
    schema["required"].remove("stream")
    schema["anyOf"] = [{"required": ["stream"]}, {"required": [KEY]}]
    return schema


def load_stream(path: Path, stream: str | None = None) -> StreamConfig:
    """The section `stream` of a configuration, on a machine that need not have the device's other files.

    Raises ConfigError as `load`.
    """
    file = _File.read(path, {})
    parts: dict[str, Any] = {key: file.data[key] for key in ("device", "stream") if key in file.data}
    if isinstance(file.data.get(KEY), list):
        kept = ("name", "stream")
        parts[KEY] = [
            {key: entry[key] for key in kept if key in entry} if isinstance(entry, dict) else entry
            for entry in file.data[KEY]
        ]
    configs = replace(file, data=parts).validated({})
    return configs[chosen([config.name for config in configs], stream, path)].stream


def read_overlay(path: Path) -> dict[str, Any]:
    """What was set by command: keys such as `training.every`; nothing where it cannot be read.

    Unknown keys are left out.
    """
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(values, dict):
        return {}
    return {key: values[key] for key in settable() if key in values}


def _validated(
    data: dict[str, Any], places: Places, environ: dict[str, str], overlay: Mapping[str, Any]
) -> Config:
    places = places.over({**_apply_overlay(data, overlay), **_apply_environment(data, environ)})
    storage = data.setdefault("storage", {})
    if isinstance(storage, dict):
        storage.setdefault("dir", "state")
    try:
        return Config.model_validate(data, context={"folder": places.path.resolve().parent})
    except ValidationError as problem:
        raise all_problems(problem, places) from None


def _apply_overlay(data: dict[str, Any], overlay: Mapping[str, Any]) -> dict[str, Place]:
    for dotted, value in overlay.items():
        section, key = dotted.split(".")
        inner = data.get(section)
        if inner is None or isinstance(inner, dict):
            data[section] = {**(inner or {}), key: value}
    return {dotted: ("config.set", dotted) for dotted in overlay}


def from_json(text: str, constants: Mapping[str, Any] = MappingProxyType({})) -> Config:
    """Read the configuration as the trainer gets it: its own JSON form, and constants of training."""
    try:
        config = Config.model_validate_json(text)
        return config.model_copy(update={"training": config.training.with_constants(**constants)})
    except ValidationError as problem:
        first = problem.errors()[0]
        raise ConfigError(first["msg"], where=".".join(map(str, first["loc"]))) from None


def _apply_environment(data: dict[str, Any], environ: dict[str, str]) -> dict[str, Place]:
    overridden: dict[str, Place] = {}
    for name in sorted(environ):
        if not name.startswith(ENV_PREFIX):
            continue
        if "__" not in name:
            _refuse_single_underscore(name)
            continue
        keys = name[len(ENV_PREFIX) :].lower().split("__")
        section: Any = data
        inner: Any = data
        for depth, key in enumerate(keys[:-1], 1):
            inner = section.setdefault(key, {})
            if isinstance(inner, str) and ".".join(keys[:depth]) in _SHORT_FORMS:
                inner = section[key] = {"name": inner}
            if not isinstance(inner, dict):
                break
            section = inner
        if not isinstance(inner, dict):
            continue  # the file has no section there: validation says so
        try:
            section[keys[-1]] = yaml.safe_load(environ[name])
        except yaml.YAMLError:
            section[keys[-1]] = environ[name]
        overridden[".".join(keys)] = f"environment variable {name}", ""
    return overridden


def _refuse_single_underscore(name: str) -> None:
    section, _, key = name[len(ENV_PREFIX) :].lower().partition("_")
    if key and section in Config.model_fields:
        raise ConfigError(
            "section and key are joined by two underscores",
            where=f"environment variable {name}",
            remedy=f"name it {ENV_PREFIX}{section.upper()}__{key.upper()}",
        )
