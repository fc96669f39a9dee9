"""Commands on this machine's state directory: status, one training run, the registry."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edged.clock import SystemClock
from edged.device.admin.audit import head_of, local_entry
from edged.device.admin.health import problem_of
from edged.device.events import Events
from edged.device.learning.scheduler import BACKOFF, backoff_rules
from edged.device.learning.trainer_client import TrainerClient
from edged.device.pipeline import Host, Pipeline
from edged.device.promotion import ModelStore
from edged.device.promotion.summary import SUMMARY, stored_summary
from edged.device.reporting.status import health
from edged.device.startup.bootstrap import open_samples, with_bundle
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
from edged.storage.journal.audit_log import AuditLog
from edged.storage.journal.last_shutdown import crashed
from edged.storage.models.active_bundle import ActiveBundle
from edged.storage.models.checkpoints import Checkpoints
from edged.storage.models.installed_bundles import InstalledBundles
from edged.storage.models.registry import LABEL_TRACES, SAMPLE_TRACES, Registry
from edged.storage.models.signatures import open_bundle
from edged.storage.outbox import queue
from edged.storage.samples.erasure import erase_files, erase_members
from edged.storage.samples.import_chunks import FOLDER as IMPORTS

if TYPE_CHECKING:
    from edged.config import Config
    from edged.domain.protocols import RunObserver

UNFINISHED = ("interrupted", "stopped")


# Everything that a stream leaves in a state directory; other files in it are not touched.
ERASED = (
    "samples.db*", "state.db*", "outbox.db*", "*.damaged*", "checkpoints", "candidates", "models",
    "engine-choice.json", "exports", "updates", "rounds", "fleet", "incoming", "bundles",
    "by-key", "imports", ".restor*", ".replaced",
)  # fmt: skip


def status_of(config: Config) -> dict[str, Any]:
    """Read from the state directory what `edged status` prints, whether the daemon runs or not.

    Counters come from the sample log itself, so they are current. What only the daemon knows (live quality,
    pending messages) is as it wrote it last.
    """
    state = config.storage.dir
    running = DirectoryLock.holder(state)
    values: dict[str, Any] = {
        "state": "online" if running is not None else "crashed" if crashed(state) else "stopped",
        "pid": running,
        "samples": 0,
        "labels": 0,
        "quarantined": 0,
        "evicted": 0,
        "model": {"version": None, "since": None, "quality": None},
        "training": {"runs": 0, "last": None, "paused": None},
        "outbox": {"pending": 0, "bytes": 0, "dropped": 0},
        "engine": config.training.engine,
        "on_hold": [],
        "audit": head_of(state),
    }
    if (state / "samples.db").exists():
        samples = open_samples(config, readonly=True)
        counters = samples.counters()
        samples.close()
        values |= {k: getattr(counters, k) for k in ("samples", "labels", "quarantined", "evicted")}
    if running is None and (state / queue.DATABASE).exists():
        values["outbox"] = queue.waiting(state / queue.DATABASE)._asdict()
    if (state / "state.db").exists():
        _add_registry(values, config)
    return values | {"health": health(values["state"], values.get("problem"))}


def _add_registry(values: dict[str, Any], config: Config) -> None:
    registry = Registry.open(config.storage.dir, readonly=True)
    last: dict[str, Any] = registry.get_value("status") or {}
    champion = registry.champion()
    reign = registry.reign()
    runs = registry.runs(1)
    record = None if champion is None else registry.get(champion)
    values["model"] = {
        "version": champion,
        "since": reign.ts if reign else None,
        "parent": record and record.parent,
        "pinned": record is not None and record.pinned,
        "quality": last.get("model", {}).get("quality"),
    }
    pause = FailureBackoff.recalled(backoff_rules(config.training), registry.get_value(BACKOFF)).pause()
    values["training"] = {
        "runs": registry.run_count(),
        "last": asdict(runs[0]) if runs else None,
        "paused": None if pause is None else pause.to_json(),
        **stored_summary(registry).to_json(),
    }
    values["engine"] = last.get("engine") or values["engine"]
    values["on_hold"] = registry.get_value("paused") or []
    values["drift"] = last.get("drift")
    if values["state"] == "online":
        values["outbox"] = last.get("outbox", values["outbox"])
        values |= {name: last[name] for name in ("host", "flash", "stuck") if name in last}
        for name in ("progress", "waiting_for"):
            values["training"][name] = last.get("training", {}).get(name)
        problem = problem_of(last, registry.boots(), config.report.every)
        if problem is not None:
            values |= {"state": "degraded", "problem": problem}
    elif values["state"] == "crashed":
        seen = f"; its last status is of {when(last['ts'])}" if "ts" in last else ""
        values["problem"] = f"the daemon ended without a stop{seen}: see its log"
    registry.close()


def train_once(
    config: Config, *, resume: bool = False, observer: RunObserver | None = None
) -> dict[str, Any]:
    """Train once now and have the gate judge the candidate; return result, verdict and versions.

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
        answer = {k: v for k, v in result.to_json().items() if k not in ("memory", "candidate")}
        return answer | {
            "verdict": verdict.to_json(),
            "summary": summary,
            "version": promoted,
            "champion": registry.champion(),
        }


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


def wipe(config: Config, what: Sequence[str]) -> dict[str, Any]:
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
        counts = {name: count for name, count in gone.items() if isinstance(count, int)}
        audit.append(local_entry("wipe", {"what": list(what)}) | {"result": counts})
    return gone


def _erase(config: Config, state: Path, what: Sequence[str]) -> dict[str, Any]:
    if "all" in what:
        gone = {"files": erase_files(path for name in ERASED for path in sorted(state.glob(name)))}
        return gone | {"kept": sorted(path.name for path in state.iterdir())}
    gone = {}
    if {"samples", "labels", "models"} & set(what):
        gone |= _wipe_messages(state)
        erase_files(copies(state))
    if "samples" in what or "labels" in what:
        gone |= _wipe_samples(config, samples="samples" in what)
    if "checkpoints" in what:
        gone["checkpoints"] = len(Checkpoints(state / "checkpoints", 1).numbers())
        erase_files([state / "checkpoints"])
    if "models" in what:
        gone["models"] = _wipe_models(config)
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


def _wipe_messages(state: Path) -> dict[str, int]:
    """What waits for the broker: predictions, events and weights; how many, where there is an outbox."""
    path, gone = state / queue.DATABASE, {}
    if path.exists():
        with suppress(StorageError):  # damaged: it goes uncounted
            gone["messages"] = queue.waiting(path).pending
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


def on_models(config: Config, action: str, version: int | None, out: Path | None) -> Any:
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
            return _read_models(registry, action, version, out)
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
            changed = {} if after == before else {"before": before, "after": after}
            registry.record_audit(entry | changed)
        finally:
            AuditLog(state).drain(registry)
        return done


def _read_models(registry: Registry, action: str, version: int | None, out: Path | None) -> Any:
    champion = registry.champion()
    if action == "list":
        return [asdict(r) | {"champion": r.version == champion} for r in registry.records()]
    record = registry.get(_required(version))
    path = registry.verify(record.version)
    if action == "show":
        return asdict(record) | {"champion": record.version == champion, "path": str(path)}
    if out is None:
        raise ConfigError("export needs a file", where="-o", remedy="add -o model.onnx")
    if out.suffix in SUFFIXES and out.suffix != path.suffix:
        right = f"name it {out.stem}{path.suffix}"
        raise ConfigError(f"this model is stored as {path.suffix}", where="-o", remedy=right)
    publish_file(out, path.read_bytes())
    return {"version": record.version, "file": str(out)}


def _change_models(config: Config, registry: Registry, action: str, version: int | None) -> Any:
    if action == "unpin":
        registry.unpin_all()
        return {"pinned": None}
    if action == "pin":
        return _pin(registry, _required(version))
    failing = registry.champion()
    if failing is None:
        raise RefusedError("there is no champion to roll back from", where="models")
    served = _model_store(config, registry).roll_back(failing, "command", version)
    return {"from": failing, "to": served.version}


def _pin(registry: Registry, version: int) -> dict[str, Any]:
    """Serve this version and no other until `unpin`: candidates are judged but not promoted."""
    registry.verify(registry.get(version).version)
    registry.unpin_all(but=version)
    registry.pin(version)
    if registry.champion() != version:
        registry.set_champion(version, "pinned", SystemClock().now())
    return {"pinned": version}


def _required(version: int | None) -> int:
    if version is None:
        raise ConfigError(
            "the version is missing", where="models", remedy="add its number; `list` shows them"
        )
    return version
