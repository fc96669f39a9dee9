"""Commands on this machine's state directory: status, one training run, the registry."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edged.clock import SystemClock
from edged.device.admin.audit import head_of, local_entry
from edged.device.admin.health import problem_of
from edged.device.admin.results import (
    Erased,
    ExportedModel,
    JudgedRun,
    ListedModel,
    LocalModel,
    LocalStatus,
    LocalTraining,
    Pinned,
)
from edged.device.events import Events
from edged.device.learning.scheduler import BACKOFF, backoff_rules
from edged.device.learning.trainer_client import TrainerClient
from edged.device.pipeline import Host, Pipeline
from edged.device.promotion import ModelStore
from edged.device.promotion.rollout import ChampionChange
from edged.device.promotion.summary import SUMMARY, stored_summary
from edged.device.reports import Health, StoredStatus
from edged.device.startup.bootstrap import open_samples, with_bundle, with_context
from edged.device.startup.recovery import unfinished
from edged.domain import outcomes
from edged.domain.judging.regimes import Regimes
from edged.domain.model_files import SUFFIXES
from edged.domain.text import when
from edged.domain.training.guards import FailureBackoff
from edged.engines.inference import InferenceReader
from edged.errors import ConfigError, RefusedError, StorageError
from edged.storage.backup.restore import RESTORED, copies
from edged.storage.files.atomic import DirectoryLock, publish_file
from edged.storage.files.damaged_database import database_files
from edged.storage.journal import last_status
from edged.storage.journal.audit_log import AuditLog
from edged.storage.journal.last_shutdown import crashed
from edged.storage.models.active_bundle import ActiveBundle
from edged.storage.models.checkpoints import Checkpoints
from edged.storage.models.installed_bundles import InstalledBundles
from edged.storage.models.key_folders import KeyFolders
from edged.storage.models.model_metadata import ModelMetadata
from edged.storage.models.registry import LABEL_TRACES, SAMPLE_TRACES, Registry
from edged.storage.models.signatures import open_bundle
from edged.storage.outbox import queue
from edged.storage.outbox.tables import OutboxBacklog
from edged.storage.samples.erasure import erase_files, erase_members
from edged.storage.samples.import_chunks import FOLDER as IMPORTS

if TYPE_CHECKING:
    from edged.config import Config
    from edged.domain.protocols import RunObserver

UNFINISHED = ("interrupted", "stopped")
ModelsAnswer = list[ListedModel] | ListedModel | ExportedModel | Pinned | ChampionChange


# Everything that a stream leaves in a state directory; other files in it are not touched.
ERASED = (
    "samples.db*", "state.db*", "outbox.db*", "*.damaged*", "checkpoints", "candidates", "models",
    "engine-choice.json", "exports", "updates", "rounds", "fleet", "incoming", "bundles",
    "by-key", "imports", last_status.FILE, ".restor*", ".replaced",
)  # fmt: skip


def status_of(config: Config) -> LocalStatus:
    """Read from the state directory what `edged status` prints, whether the daemon runs or not.

    Counters come from the sample log itself, so they are current. What only the daemon knows (live quality,
    pending messages) is as it wrote it last.
    """
    state, counted = config.storage.dir, (0, 0, 0, 0)
    running, outbox = DirectoryLock.holder(state), OutboxBacklog(0, 0, 0)
    if (state / "samples.db").exists():
        with open_samples(config, readonly=True) as samples:
            counters = samples.counters()
        counted = counters.samples, counters.labels, counters.quarantined, counters.evicted
    if running is None and (state / queue.DATABASE).exists():
        outbox = queue.waiting(state / queue.DATABASE)
    name = "online" if running is not None else "crashed" if crashed(state) else "stopped"
    status = LocalStatus(
        state=name,
        pid=running,
        samples=counted[0],
        labels=counted[1],
        quarantined=counted[2],
        evicted=counted[3],
        model=LocalModel(),
        training=LocalTraining(),
        outbox=outbox,
        engine=config.training.engine,
        on_hold=(),
        audit=head_of(state),
        drift=None,
        health=Health.of(name, None),
    )
    if (state / "state.db").exists():
        with Registry.open(state, readonly=True) as registry:
            status = _with_registry(status, config, registry)
    return replace(status, health=Health.of(status.state, status.problem))


def _with_registry(status: LocalStatus, config: Config, registry: Registry) -> LocalStatus:
    last, champion = StoredStatus.of(config.storage.dir), registry.champion()
    reign, runs = registry.reign(), registry.runs(1)
    record = None if champion is None else registry.get(champion)
    backoff = FailureBackoff.recalled(backoff_rules(config.training), registry.get_value(BACKOFF))
    status = replace(
        status,
        model=LocalModel(
            version=champion,
            since=reign.ts if reign else None,
            parent=None if record is None else record.parent,
            pinned=record is not None and record.pinned,
            quality=last.model.quality,
        ),
        training=LocalTraining(
            runs=registry.run_count(),
            last=runs[0] if runs else None,
            paused=backoff.pause(),
            learned=stored_summary(registry),
        ),
        engine=last.engine or status.engine,
        on_hold=registry.get_value("paused") or (),
        drift=last.drift,
        keys=last.keys,
    )
    if status.state == "crashed":
        seen = "" if last.ts is None else f"; its last status is of {when(last.ts)}"
        return replace(status, problem=f"the daemon ended without a stop{seen}: see its log")
    return _with_daemon(status, last, problem_of(last, registry.boots(), config.report.every))


def _with_daemon(status: LocalStatus, last: StoredStatus, problem: str | None) -> LocalStatus:
    """Add what only a running daemon knows."""
    if status.state != "online":
        return status
    return replace(
        status,
        state="online" if problem is None else "degraded",
        problem=problem,
        training=replace(status.training, present=last.training),
        outbox=last.outbox or status.outbox,
        host=last.host,
        flash=last.flash,
        stuck=last.stuck,
    )


def train_once(config: Config, *, resume: bool = False, observer: RunObserver | None = None) -> JudgedRun:
    """Train once now and have the gate judge the candidate.

    Raises RefusedError when the daemon is running (it trains by itself), or there is no run to resume;
    StorageError when the run failed.
    """
    clock = SystemClock()
    with ExitStack() as stack:
        stack.enter_context(lock_state(config.storage.dir, "train"))
        config = with_bundle(config)
        registry = Registry.open(config.storage.dir)
        stack.callback(registry.close)
        samples = open_samples(config, readonly=False)
        stack.callback(samples.close)
        bundle = open_bundle(config.model.bundle or config.storage.dir / "bundle", config.model.keys)
        bundles = ActiveBundle(bundle, InstalledBundles(config.storage.dir), registry, config.model.keys)
        client = TrainerClient(config, bundles)
        stack.callback(client.close)
        host = Host(Events(), clock, _model_reader(config), client)
        pipeline = Pipeline(config, bundle, registry, samples, samples, host)
        scheduler = pipeline.scheduler
        checkpoints = Checkpoints(config.storage.dir / "checkpoints", config.training.keep_checkpoints)
        scheduler.unfinished = unfinished(checkpoints, registry)
        if resume and not scheduler.unfinished and not _interrupted(registry):
            raise RefusedError(
                "no run was interrupted",
                where=str(config.storage.dir),
                remedy="leave out --resume to start a new one",
            )
        result = scheduler.train("command", observer=observer, resumes=resume)
        if result is None:
            last = registry.runs(1)[0]
            raise StorageError(
                str((last.result or {}).get("error", "the run failed")), where=f"run {last.id}"
            )
        registry.set_value("consumed", scheduler.consumed)
        evaluation = pipeline.evaluator.evaluate(result.own_candidate(), pipeline.predictor.champion)
        verdict, served = pipeline.models.add(evaluation)
        if served is not None:
            pipeline.models.set_champion(served.version, "; ".join(verdict.reasons))
        pipeline.models.record_judged(result.own_candidate())
        promoted = served.version if served else None
        summary = outcomes.judged(
            pipeline.schema, result.own_candidate(), verdict, promoted, evaluation.scale
        )
        registry.set_value(SUMMARY, {"summary": summary, "summary_ts": clock.now()})
        registry.record_audit(local_entry("train", {"run": result.run}))
        AuditLog(config.storage.dir).drain(registry)
        return JudgedRun(result, verdict, summary, promoted, registry.champion())


def _interrupted(registry: Registry) -> bool:
    runs = registry.runs(1)
    return bool(runs) and runs[0].outcome in UNFINISHED


def lock_state(state: Path, command: str | None = None) -> DirectoryLock:
    """Lock a state directory; RefusedError while a daemon runs, or after a restore that was cut off."""
    pid = DirectoryLock.holder(state)
    if pid is not None:
        raise RefusedError(
            f"another edged is using this state directory (pid {pid})",
            where=str(state),
            remedy="stop it first" + (f", or ask it over MQTT: request/{command}" if command else ""),
        )
    if command is not None and (state / RESTORED).exists():
        raise RefusedError("a restore was cut off", where=str(state), remedy="`edged run` finishes it")
    return DirectoryLock(state)


def _model_store(config: Config, registry: Registry) -> ModelStore:
    return ModelStore(config, registry, _model_reader(config), Regimes(), SystemClock())


def _model_reader(config: Config) -> InferenceReader:
    return InferenceReader(threads=config.serving.threads, providers=config.serving.provider)


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
        audit.append(
            {**local_entry("wipe", {"what": list(what)}), "result": replace(gone, kept=None).to_json()}
        )
    return gone


def _erase(config: Config, state: Path, what: Sequence[str]) -> Erased:
    if "all" in what:
        files = erase_files(path for name in ERASED for path in sorted(state.glob(name)))
        return Erased(files=files, kept=tuple(sorted(path.name for path in state.iterdir())))
    gone = Erased()
    if {"samples", "labels", "models"} & set(what):
        gone = replace(gone, messages=_wipe_messages(state))
        erase_files(copies(state))
    if "samples" in what or "labels" in what:
        erase_files([state / last_status.FILE])
        counts = _wipe_samples(config, samples="samples" in what)
        gone = replace(
            gone, samples=counts["samples"], labels=counts["labels"], quarantined=counts["quarantined"]
        )
    if "checkpoints" in what:
        gone = replace(gone, checkpoints=len(Checkpoints(state / "checkpoints", 1).numbers()))
        erase_files([state / "checkpoints"])
    if "models" in what:
        gone = replace(gone, models=_wipe_models(config))
    if (state / "state.db").exists():
        _wipe_values(state, what)
    return gone


def _wipe_values(state: Path, what: Sequence[str]) -> None:
    """What the registry keeps beside its models: positions, and traces of samples and labels."""
    with Registry.open(state) as registry:
        if "checkpoints" in what or "models" in what:
            registry.set_value("label_trust", None)
        if "checkpoints" in what:
            registry.set_value("consumed", 0)  # whoever begins anew learns from all that is there
        if "samples" in what or "labels" in what:
            registry.erase_traces(SAMPLE_TRACES if "samples" in what else LABEL_TRACES, alone=True)


def _wipe_messages(state: Path) -> int | None:
    """What waits for the broker: predictions, events and weights; how many, None where nothing tells."""
    path, gone = state / queue.DATABASE, None
    if path.exists():
        with suppress(StorageError):  # damaged: it goes uncounted
            gone = queue.waiting(path).pending
        erase_files(database_files(path))
    return gone


def _wipe_samples(config: Config, *, samples: bool) -> dict[str, int]:
    """Everything that holds samples, or labels alone; copies of damaged databases in either case."""
    state = config.storage.dir
    gone = {"samples": 0, "labels": 0, "quarantined": 0}
    if (state / "samples.db").exists():
        with open_samples(config) as log:
            gone = log.erase(samples=samples, labels=True, alone=True)
    # Candidates and models hold inputs to compare outputs on.
    erase_files([state / "candidates", state / IMPORTS])
    for model in sorted((state / "models").glob("[0-9]*")):
        erase_members(model, "probe_*.npy")
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
        _model_store(config, registry).install_base(bundle.inference_model)
        learned = ("candidates", "exports", "updates", "rounds", "fleet", "incoming")
        erase_files([state / name for name in learned])
        return registry.erase()


def on_models(
    config: Config, action: str, version: int | None, out: Path | None, key: str | None = None
) -> ModelsAnswer:
    """Carry out `edged models`: list, show and export read; the others change the registry.

    `key` is one that has models of its own, which are only read. Raises ConfigError when there is no
    registry, the action is unknown, or it needs a version or file; RefusedError when the registry is to be
    changed while a daemon runs.
    """
    state = config.storage.dir
    if key is not None:
        state = _registry_of_key(config, key, action)
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
            changed = {} if after == before else {"before": before, "after": after}
            registry.record_audit({**local_entry(f"models {action}", request), **changed})
        finally:
            AuditLog(state).drain(registry)
        return done


def _registry_of_key(config: Config, key: str, action: str) -> Path:
    """The directory of the models of one key."""
    folder = KeyFolders(config.storage.dir).of(key)
    if not (folder / "state.db").exists():
        raise ConfigError(
            "this key has no own model", where=f"--key {key}", remedy="`edged status CONFIG` lists those"
        )
    if action not in ("list", "show", "export"):
        device = f"{config.device.id}{f' --stream {config.name}' if config.name else ''}"
        remedy = f"ask the daemon: edged ctl {device} {action} key={key}"
        raise ConfigError(
            "models of a key are changed by the daemon", where=f"models {action}", remedy=remedy
        )
    return folder


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
    if out.suffix in SUFFIXES and out.suffix != path.suffix:
        right = f"name it {out.stem}{path.suffix}"
        raise ConfigError(f"this model is stored as {path.suffix}", where="-o", remedy=right)
    metadata = ModelMetadata.of_stream(with_context(config).stream.to_schema(), record)
    publish_file(out, metadata.stamp(path.read_bytes(), path.suffix))
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
    served = _model_store(config, registry).roll_back(failing, "command", version)
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
