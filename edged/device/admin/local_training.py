"""`edged train`: one training run and its judgement, while no daemon runs."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from edged.clock import SystemClock
from edged.config import Config
from edged.device.admin.local_state import local_entry, lock_state, model_reader
from edged.device.events import Events
from edged.device.learning.trainer_client import TrainerClient
from edged.device.pipeline import Host, Pipeline
from edged.device.reporting.status import SUMMARY, StoredSummary
from edged.device.startup.bootstrap import open_samples, with_bundle
from edged.device.startup.recovery import unfinished
from edged.domain.json_fields import JsonObject
from edged.domain.judging.verdict import Verdict
from edged.domain.protocols import RunObserver
from edged.domain.training.message import Message
from edged.domain.training.training_run import RunResult
from edged.errors import RefusedError, StorageError
from edged.storage.journal.audit_log import AuditLog
from edged.storage.models.bundle_archive import ActiveBundle, InstalledBundles
from edged.storage.models.checkpoints import Checkpoints
from edged.storage.models.registry import Registry
from edged.storage.models.signatures import open_bundle

UNFINISHED = ("interrupted", "stopped")


@dataclass(frozen=True)
class JudgedRun(Message):
    """A run, the verdict on its candidate, the version under which it serves, and who is champion now."""

    result: RunResult
    verdict: Verdict
    summary: str
    version: int | None
    champion: int | None

    def to_json(self) -> JsonObject:
        """Return all on one level."""
        return {**self.result.without("memory", "candidate"), **self.without("result")}


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
        host = Host(Events(), clock, model_reader(config), client)
        pipeline = Pipeline(config, bundle, registry, samples, samples, host)
        scheduler = pipeline.scheduler
        checkpoints = Checkpoints(config.storage.dir / "checkpoints")
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
            raise StorageError(last.end.error or "the run failed", where=f"run {last.id}")
        registry.set_value("consumed", scheduler.consumed)
        judged, _ = pipeline.rollout.consider(result.to_candidate())
        registry.set_value(SUMMARY, StoredSummary(judged.summary, clock.now()).to_json())
        registry.record_audit(local_entry("train", {"run": result.run}))
        AuditLog(config.storage.dir).drain(registry)
        return JudgedRun(result, judged.verdict, judged.summary, judged.promoted, registry.champion())


def _interrupted(registry: Registry) -> bool:
    runs = registry.runs(1)
    return bool(runs) and runs[0].outcome in UNFINISHED
