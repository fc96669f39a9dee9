"""`edged models`: the registry of a state directory, read and changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from edged.clock import SystemClock
from edged.config import Config
from edged.device.admin.local_state import local_entry, lock_state, model_store
from edged.device.promotion.rollout import ChampionChange
from edged.device.startup.bootstrap import with_context
from edged.domain.json_fields import JsonObject
from edged.domain.training.message import Message
from edged.errors import ConfigError, RefusedError
from edged.storage.files.atomic import publish_file
from edged.storage.journal.audit_log import AuditLog
from edged.storage.models.model_metadata import ModelMetadata
from edged.storage.models.records import ModelRecord
from edged.storage.models.registry import Registry


@dataclass(frozen=True)
class ListedModel(Message):
    """A model of the registry, whether it is champion, and where its file is if one model was asked for."""

    record: ModelRecord
    champion: bool
    path: Path | None = None

    def to_json(self) -> JsonObject:
        """Return the fields of the record with the others."""
        path = {} if self.path is None else {"path": str(self.path)}
        return {**self.record.to_json(), "champion": self.champion, **path}


@dataclass(frozen=True)
class ExportedModel(Message):
    """A model that was written to a file."""

    version: int
    file: Path


@dataclass(frozen=True)
class Pinned(Message):
    """The version that serves until `unpin`; None after that."""

    pinned: int | None


ModelsAnswer = list[ListedModel] | ListedModel | ExportedModel | Pinned | ChampionChange


def on_models(config: Config, action: str, version: int | None, out: Path | None) -> ModelsAnswer:
    """Carry out `edged models`: list, show and export read; the others change the registry.

    Raises ConfigError when there is no registry, the action is unknown, or it needs a version or file;
    RefusedError when the registry is to be changed while a daemon runs.
    """
    state = config.storage.dir
    if not (state / "state.db").exists():
        raise ConfigError(
            "there is no registry yet", where=str(state), remedy="run `edged run` or `edged train` first"
        )
    if action in ("list", "show", "export"):
        with Registry.open(state, readonly=True) as registry:
            return _read_models(config, registry, action, version, out)
    if action not in ("rollback", "pin", "unpin"):
        raise ConfigError(
            f"unknown action {action!r}", where="models", remedy="list, show, rollback, pin, unpin or export"
        )
    with lock_state(state, action), Registry.open(state) as registry:
        try:
            before = {"pinned": registry.pinned()}
            done = _change_models(config, registry, action, version)
            request, after = {} if version is None else {"version": version}, {"pinned": registry.pinned()}
            entry = local_entry(f"models {action}", request)
            registry.record_audit(entry if after == before else replace(entry, before=before, after=after))
        finally:
            AuditLog(state).drain(registry)
        return done


def _read_models(
    config: Config, registry: Registry, action: str, version: int | None, out: Path | None
) -> ModelsAnswer:
    champion = registry.champion()
    if action == "list":
        return [ListedModel(record, record.version == champion) for record in registry.records()]
    record = registry.get(_required(version))
    path = registry.verify(record.version)
    if action == "show":
        return ListedModel(record, record.version == champion, path)
    if out is None:
        raise ConfigError("export needs a file", where="-o", remedy="add -o model.onnx")
    metadata = ModelMetadata.of_stream(with_context(config).stream.to_schema(), record)
    publish_file(out, metadata.stamp(path.read_bytes()))
    return ExportedModel(record.version, out)


def _change_models(config: Config, registry: Registry, action: str, version: int | None) -> ModelsAnswer:
    if action == "unpin":
        registry.unpin_all()
        return Pinned(None)
    if action == "pin":
        return _pin(registry, _required(version))
    failing = registry.champion()
    if failing is None:
        raise RefusedError("there is no champion to roll back from", where="models")
    served = model_store(config, registry).roll_back(failing, "command", version)
    return ChampionChange(failing, served.version)


def _pin(registry: Registry, version: int) -> Pinned:
    """Serve this version and no other until `unpin`: candidates are judged but not promoted."""
    registry.verify(registry.get(version).version)
    registry.unpin_all(but=version)
    registry.pin(version)
    if registry.champion() != version:
        registry.set_champion(version, "pinned", SystemClock().now())
    return Pinned(version)


def _required(version: int | None) -> int:
    if version is None:
        raise ConfigError(
            "the version is missing", where="models", remedy="add its number; `list` shows them"
        )
    return version
