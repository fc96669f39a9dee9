"""Opening a state directory: lock, recovery, bundle, registry and sample log, in the order that is safe."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from edged.clock import Clock
from edged.config import Config
from edged.device.startup.bootstrap import open_samples, with_bundle
from edged.device.startup.first_opening import FirstOpenings
from edged.device.startup.recovery import (
    CHECK_SECONDS,
    Recovery,
    UnfinishedRun,
    recover,
    renumber,
    unfinished,
)
from edged.errors import BundleError, ConfigError, CorruptError
from edged.host.kernel import boot_id
from edged.logs import disk_may_refuse, get_logger
from edged.storage.files.atomic import DirectoryLock
from edged.storage.journal import last_run
from edged.storage.journal.last_run import Ending
from edged.storage.models.bundles import Bundle
from edged.storage.models.checkpoints import Checkpoints
from edged.storage.models.registry import Registry
from edged.storage.models.signatures import open_bundle
from edged.storage.samples.log import SampleLog

log = get_logger("edged.opening")

_Database = TypeVar("_Database")


@dataclass
class OpenState:
    """An open state directory; `config` names the bundle, `unfinished` the run that was cut off."""

    config: Config
    bundle: Bundle
    registry: Registry
    samples: SampleLog
    reader: SampleLog
    recovery: Recovery
    boot: int
    unfinished: UnfinishedRun | None
    lock: DirectoryLock

    def close(self, how: Ending | None = "clean_stop", damaged: str | None = None) -> None:
        """Close everything and note why, for the next start; with None nothing is noted, as after a crash."""
        self.reader.close()
        # The writer last: closing the last connection folds the write-ahead log into the file.
        self.samples.close()
        self.registry.close()
        if how is not None:
            record_shutdown(self.config.storage.dir, how, damaged)
        self.lock.release()


def open_state(
    config: Config, clock: Clock, *, check_seconds: float = CHECK_SECONDS, first: FirstOpenings | None = None
) -> OpenState:
    """Lock, recover and open what `config` names, ready to be served from.

    `check_seconds` is how long one database may be checked. `first` opens a configured bundle that is new;
    without it the bundle is not run before it is opened. Raises EdgedError when another daemon holds it,
    the disk refuses, or there is neither a bundle nor a way to build one. Nothing stays open then.
    """
    state = config.storage.dir
    with ExitStack() as unless_opened:
        lock = unless_opened.enter_context(DirectoryLock(state))
        recovery = recover(
            state,
            boot_id=boot_id(),
            now=clock.now(),
            bundle=config.model.bundle,
            check_seconds=check_seconds,
        )
        if first is not None:
            first.open_configured()
        config = with_bundle(config)
        bundle = _open_bundle(config, recovery)
        bundle.check_schema(config.stream.to_schema())
        with recovery.opening("the registry"):
            registry = unless_opened.enter_context(
                _whole(lambda: Registry.open(state), "state.db", recovery, clock)
            )
            for what in registry.repaired:
                recovery.record(what)
            boot = registry.next_boot()
        with recovery.opening("the sample log"):
            samples = unless_opened.enter_context(
                _whole(
                    lambda: _open_samples(config, clock, recovery, check_seconds),
                    "samples.db",
                    recovery,
                    clock,
                )
            )
            checkpoints = Checkpoints(state / "checkpoints")
            renumbered = renumber(samples, registry, checkpoints)
            if renumbered is not None:
                recovery.record(renumbered)
            cut_off = unfinished(checkpoints, registry)
            for generation in checkpoints.damaged:
                recovery.record(f"checkpoint {generation} is damaged: an earlier one is used")
            reader = unless_opened.enter_context(open_samples(config, readonly=True, beside=samples))
        unless_opened.pop_all()
    return OpenState(config, bundle, registry, samples, reader, recovery, boot, cut_off, lock)


def _whole(opened: Callable[[], _Database], name: str, recovery: Recovery, clock: Clock) -> _Database:
    """What opens a database; one that turns out to be damaged is set aside, and another begun."""
    try:
        return opened()
    except CorruptError as problem:
        recovery.set_aside(name, problem.what, clock.now())
        return opened()


def _open_samples(config: Config, clock: Clock, recovery: Recovery, seconds: float) -> SampleLog:
    """The sample log, without samples that are damaged, as far as `seconds` suffice to look for them."""
    with ExitStack() as unless_whole:
        samples = unless_whole.enter_context(open_samples(config, clock=clock))
        gone = samples.drop_damaged(seconds)
        if gone:
            recovery.record(f"{gone} damaged samples were dropped")
        unless_whole.pop_all()
    return samples


def _open_bundle(config: Config, recovery: Recovery) -> Bundle:
    """The bundle, whole or not: what is being served does not depend on its training graphs.

    Its own model is looked at once more before it serves. The trainer verifies the bundle for itself and
    refuses to train from a damaged one. Where it must be signed, nothing of one that is not whole is used.
    """
    if config.model.bundle is None:
        raise ConfigError("no bundle", where="model.bundle")
    if config.model.keys:
        return open_bundle(config.model.bundle, config.model.keys)
    try:
        return Bundle.open(config.model.bundle)
    except (BundleError, CorruptError) as problem:
        bundle = Bundle.open(config.model.bundle, verify=False)
        recovery.record(f"{problem.line()}: serving continues, training cannot")
        return bundle


def record_shutdown(state: Path, how: Ending, damaged: str | None = None) -> None:
    """Note why the daemon ends; on a disk that refuses, the next start will speak of a crash."""
    with disk_may_refuse(log, "end_not_noted"):
        last_run.record(state, boot_id(), how, damaged)


def record_failed_start(state: Path) -> None:
    """Note that the start failed, where that is not known; on a disk that refuses, it will be a crash."""
    with disk_may_refuse(log, "end_not_noted"):
        last_run.record_failed_start(state, boot_id())
