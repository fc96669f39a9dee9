"""`edged wipe`: parts of a state directory are erased, down to the bytes in its files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from edged.config import Config
from edged.device.admin.local_state import local_entry, lock_state, model_store
from edged.device.startup.bootstrap import open_samples, with_bundle
from edged.domain.training.message import SparseMessage
from edged.errors import ConfigError, StorageError
from edged.storage.backup.restore import COLLECTED, derived_files
from edged.storage.files.atomic import remove_files
from edged.storage.files.damaged_database import database_files
from edged.storage.journal import last_run
from edged.storage.journal.audit_log import AuditLog
from edged.storage.models.checkpoints import Checkpoints
from edged.storage.models.registry import LABEL_TRACES, SAMPLE_TRACES, Registry
from edged.storage.models.signatures import open_bundle
from edged.storage.outbox import queue, tables

ERASED = (*COLLECTED, ".restor*", ".replaced")


@dataclass(frozen=True)
class Erased(SparseMessage):
    """How much `wipe` has erased, None of what it was not to erase; `kept` are files that are not edged's."""

    files: int | None = None
    kept: tuple[str, ...] | None = None
    messages: int | None = None
    samples: int | None = None
    labels: int | None = None
    quarantined: int | None = None
    checkpoints: int | None = None
    models: int | None = None


def wipe(config: Config, what: Sequence[str]) -> Erased:
    """Erase parts of the state directory, down to the bytes in its files; return how much of each.

    `config`: its `storage.dir` is the state directory. `what`: `samples` (with their labels, refused messages
    and what models keep of them), `labels`, `checkpoints`, `models` (all but the bundle's own, which serves
    from then on), or `all`. Raises RefusedError while a daemon runs; StorageError when something could not be
    erased (call it again).
    """
    state = config.storage.dir
    if not state.is_dir():
        raise ConfigError("there is no such directory", where=str(state), remedy="check storage.dir")
    if "labels" in what and config.stream.to_schema().labels_itself:
        raise ConfigError(
            "the labels of this stream are its samples", where="--labels", remedy="name --samples"
        )
    with lock_state(state):
        audit = AuditLog(state)
        audit.append(local_entry("wipe", {"what": list(what)}, "executing"))
        gone = _erase(config, state, what)
        result = replace(gone, kept=None).to_json()
        audit.append(local_entry("wipe", {"what": list(what)}, result=result))
    return gone


def _erase(config: Config, state: Path, what: Sequence[str]) -> Erased:
    if "all" in what:
        files = remove_files(path for name in ERASED for path in sorted(state.glob(name)))
        return Erased(files=files, kept=tuple(sorted(path.name for path in state.iterdir())))
    gone = Erased()
    if {"samples", "labels", "models"} & set(what):
        gone = replace(gone, messages=_wipe_messages(state))
        remove_files(derived_files(state, models="models" in what))
    if "samples" in what or "labels" in what:
        remove_files([state / last_run.STATUS])
        counts = _wipe_samples(config, samples="samples" in what)
        gone = replace(
            gone, samples=counts["samples"], labels=counts["labels"], quarantined=counts["quarantined"]
        )
    if "checkpoints" in what:
        gone = replace(gone, checkpoints=len(Checkpoints(state / "checkpoints", 1).numbers()))
        remove_files([state / "checkpoints"])
    if "models" in what:
        gone = replace(gone, models=_wipe_models(config))
    if (state / "state.db").exists():
        _wipe_values(state, what)
    return gone


def _wipe_values(state: Path, what: Sequence[str]) -> None:
    """What the registry keeps beside its models: positions, and traces of samples and labels."""
    with Registry.open(state) as registry:
        if "checkpoints" in what:
            registry.set_value("consumed", 0)  # the next run learns from all that is there
        if "samples" in what or "labels" in what:
            registry.erase_traces(SAMPLE_TRACES if "samples" in what else LABEL_TRACES)


def _wipe_messages(state: Path) -> int | None:
    """What waits for the broker: predictions, events and weights; how many, None where nothing tells."""
    path, gone = state / queue.DATABASE, None
    if path.exists():
        with suppress(StorageError):  # damaged: it goes uncounted
            gone = tables.waiting(path).pending
        remove_files(database_files(path))
    return gone


def _wipe_samples(config: Config, *, samples: bool) -> dict[str, int]:
    """Everything in the sample log, or labels alone."""
    state = config.storage.dir
    gone = {"samples": 0, "labels": 0, "quarantined": 0}
    if (state / "samples.db").exists():
        with open_samples(config) as log:
            gone = log.erase(samples=samples, labels=True)
    return gone


def _wipe_models(config: Config) -> int:
    """All models but the bundle's own, which becomes champion first: something can serve at any moment."""
    state = config.storage.dir
    if not (state / "state.db").exists():
        return 0
    config = with_bundle(config)
    bundle = open_bundle(config.model.bundle or state / "bundle", config.model.keys)
    with Registry.open(state) as registry:
        registry.unpin_all()
        model_store(config, registry).install_base(bundle.inference_model)
        remove_files([state / "incoming"])
        return registry.erase()
