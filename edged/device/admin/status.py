"""`edged status`: what the state directory tells of a device, and the health of its daemon."""

from __future__ import annotations

from dataclasses import replace

from edged import __version__
from edged.clock import SystemClock
from edged.config import Config
from edged.device.admin.local_state import head_of
from edged.device.learning.scheduler import BACKOFF, backoff_rules
from edged.device.reporting.status import stored_summary
from edged.device.reports import Health, LocalStatus, ModelStatus, TrainingStatus
from edged.device.startup.bootstrap import open_samples
from edged.domain.text import when
from edged.domain.training.guards import FailureBackoff
from edged.storage.files.atomic import DirectoryLock
from edged.storage.journal.last_run import crashed
from edged.storage.models.registry import Registry
from edged.storage.outbox import queue
from edged.storage.outbox.tables import waiting

STATUS_SECONDS = 5.0  # that a status may be late


def status_of(config: Config) -> LocalStatus:
    """Read from the state directory what `edged status` prints, whether the daemon runs or not.

    Counters come from the sample log itself, so they are current. What only the daemon knows (live quality,
    pending messages) is as it wrote it last.
    """
    state = config.storage.dir
    running, engine = DirectoryLock.holder(state), config.training.engine
    name = "online" if running is not None else "crashed" if crashed(state) else "stopped"
    status = LocalStatus(state=name, pid=running, version=__version__, engine=engine, audit=head_of(state))
    if (state / "samples.db").exists():
        with open_samples(config, readonly=True) as samples:
            found = samples.counters()
        status = replace(
            status,
            samples=found.samples,
            labels=found.labels,
            quarantined=found.quarantined,
            evicted=found.evicted,
        )
    if running is None and (state / queue.DATABASE).exists():
        status = replace(status, outbox=waiting(state / queue.DATABASE))
    if (state / "state.db").exists():
        with Registry.open(state, readonly=True) as registry:
            status = _with_registry(status, config, registry)
    return replace(status, health=Health.of(status.state, status.problem))


def _with_registry(status: LocalStatus, config: Config, registry: Registry) -> LocalStatus:
    last, champion = LocalStatus.of(config.storage.dir), registry.champion()
    reign, runs, summary = registry.reign(), registry.runs(1), stored_summary(registry)
    record = None if champion is None else registry.get(champion)
    backoff = FailureBackoff.recalled(backoff_rules(config.training), registry.get_value(BACKOFF))
    status = replace(
        status,
        boot=registry.boots(),
        model=ModelStatus(
            version=champion,
            since=reign.ts if reign else None,
            parent=None if record is None else record.parent,
            pinned=record is not None and record.pinned,
            quality=last.model.quality,
        ),
        training=TrainingStatus(
            runs=registry.run_count(),
            last=runs[0] if runs else None,
            paused=backoff.pause(),
            summary=summary.summary,
            summary_ts=summary.summary_ts,
        ),
        engine=last.engine or status.engine,
        on_hold=tuple(registry.get_value("paused") or ()),
        drift=last.drift,
    )
    if status.state == "crashed":
        seen = "" if last.ts is None else f"; its last status is of {when(last.ts)}"
        return replace(status, problem=f"the daemon ended without a stop{seen}: see its log")
    return _with_daemon(status, last, problem_of(last, registry.boots(), config.report.every))


def _with_daemon(status: LocalStatus, last: LocalStatus, problem: str | None) -> LocalStatus:
    """Add what only a running daemon knows."""
    if status.state != "online":
        return status
    now = last.training
    return replace(
        status,
        state="online" if problem is None else "degraded",
        problem=problem,
        ts=last.ts,
        uptime_s=last.uptime_s,
        version=last.version,
        model=replace(status.model, missing=last.model.missing),
        training=replace(status.training, progress=now.progress, waiting_for=now.waiting_for),
        outbox=last.outbox,
        host=last.host,
        flash=last.flash,
        stuck=last.stuck,
    )


def health(config: Config) -> tuple[bool, str]:
    """Return whether the daemon runs without a problem, and one line that describes its state.

    Raises StorageError when the registry cannot be read.
    """
    status = status_of(config)
    if status.pid is None:
        crash = status.state == "crashed"
        ended = "crashed: the daemon ended without a stop, none" if crash else "stopped: no daemon"
        return False, f"{ended} runs on {config.storage.dir}"
    if status.state == "degraded":
        return False, f"degraded: {status.problem}"
    return True, f"online: process {status.pid}"


def problem_of(last: LocalStatus, boot: int, report_every: float) -> str | None:
    """Return the problem that the daemon reported last, or that its report is too old; None: no problem."""
    if last.boot != boot or last.told_at is None:
        return None  # of an earlier start: this one has not come to it yet
    # Both processes count on the same monotonic clock, whatever happens to the wall clock.
    age = SystemClock().monotonic() - last.told_at
    if age > 2 * report_every + STATUS_SECONDS:
        return f"the daemon has not written its status for {age:.0f} s: is the disk full or read-only?"
    return last.problem or None
