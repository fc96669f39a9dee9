"""The pipelines of keys that have models of their own: those in memory, and directories of all.

Those that are not used for longest are unloaded; what they know is in their directories.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from edged.device.keys.key_pipeline import KeyEvents, KeyPipeline, config_of
from edged.device.pipeline import Host
from edged.domain.events import KeyModelChanged
from edged.errors import CorruptError, EdgedError, ModelError, RefusedError, StorageError
from edged.logs import get_logger
from edged.storage.files.atomic import sweep
from edged.storage.files.damaged_database import damage
from edged.storage.models.key_folders import KeyFolders, KeyRecord
from edged.storage.models.reopening_registry import ReopeningRegistry

if TYPE_CHECKING:
    from edged.config import Config
    from edged.device.pipeline import Pipeline
    from edged.domain.protocols import Deferring
    from edged.storage.models.bundles import Bundle

log = get_logger("edged.keys")

AGAIN_SECONDS = 10.0  # until a key is tried again that could not be trained or loaded
UNUSED_SECONDS = 10.0  # for which a model must not have answered before another takes its place
MOST_LOADING = 4  # models that wait to be loaded at once
CHECK_SECONDS = 0.2  # for which the database of a key is checked when it is opened


class LoadedKeys:
    """The pipelines of keys beside the stream's, `common`, of which at most `model.keep` are loaded.

    `host` is what a stream runs on. `later` carries out what the serving thread must not wait for; without
    it, as in a replay, everything is done at once.
    """

    def __init__(self, common: Pipeline, bundle: Bundle, host: Host, later: Deferring | None = None) -> None:
        self._common, self._bundle, self._host, self._later = common, bundle, host, later
        self.config: Config = common.config
        self._folders = KeyFolders(common.config.storage.dir)
        self._records = self._folders.records()
        self._loaded: dict[str, KeyPipeline] = {}
        self._loading: set[str] = set()
        self._lock = threading.RLock()  # of what is loaded; not taken by the serving thread
        self._busy = Counter[str]()  # how many need a key to stay loaded
        self._not_before: dict[str, float] = {}
        self.loads = self.unloads = 0

    def __contains__(self, key: str) -> bool:
        """Whether a key has a model of its own, loaded or not."""
        return key in self._records

    def get(self, key: str) -> KeyPipeline | None:
        """The pipeline of a key if it is loaded."""
        return self._loaded.get(key)

    def all(self) -> list[KeyPipeline]:
        """Those that are loaded."""
        return list(self._loaded.values())

    def record_of(self, key: str) -> KeyRecord:
        """What is known of a key that has a model, as of when it was last unloaded or trained."""
        return self._records[key]

    def records(self) -> dict[str, KeyRecord]:
        """What is known of each key that has a model, as of now."""
        with self._lock:
            return {
                **self._records,
                **{key: own.updated(self._records[key]) for key, own in self._loaded.items()},
            }

    def defer(self, action: Callable[[], Any]) -> None:
        """Carry out what serving must not wait for."""
        if self._later is None:
            action()
        else:
            self._later.defer(action)

    def want(self, key: str, now: float) -> None:
        """Have a model loaded, unless all that are there are in use, or many are being loaded."""
        full = len(self._loaded) >= self.config.model.keep
        if key in self._loading or len(self._loading) >= MOST_LOADING or now < self._not_before.get(key, now):
            return
        if full and self._later is not None and now - self._longest_unused() < UNUSED_SECONDS:
            return
        self._loading.add(key)
        self.defer(lambda: self._load(key))

    def _longest_unused(self) -> float:
        return min((own.used for own in list(self._loaded.values())), default=float("-inf"))

    def _load(self, key: str) -> None:
        try:
            self.at(key)
        except EdgedError as problem:
            self._not_before[key] = self._host.clock.monotonic() + AGAIN_SECONDS
            log.warning("key_not_loaded", key=key, problem=problem.line())
        finally:
            self._loading.discard(key)

    def at(self, key: str) -> KeyPipeline:
        """The pipeline of a key, loaded; it may be unloaded again unless it is `held`.

        Raises RefusedError when the key has no model of its own; EdgedError when it cannot be loaded: what is
        damaged has been set aside.
        """
        with self._lock:
            if key not in self._records:
                raise RefusedError(
                    "this key has no own model",
                    where=f"key {key}",
                    remedy="leave key out: it shares the stream's",
                )
            found = self._loaded.get(key)
            return found if found is not None else self._open(key)

    @contextmanager
    def held(self, key: str) -> Iterator[KeyPipeline]:
        """The pipeline of a key, which stays loaded meanwhile; raises as `at`."""
        with self._lock:
            own = self.at(key)
            self._busy[key] += 1
        try:
            yield own
        finally:
            with self._lock:
                self._busy[key] -= 1
            self._store_record(own)

    def make(self, key: str) -> bool:
        """Make a pipeline for a key that shares the stream's model until now; False if it has one.

        Raises EdgedError when that fails.
        """
        with self._lock:
            if key in self._records:
                return False
            self._open(key)
        return True

    def _open(self, key: str) -> KeyPipeline:
        """Load a pipeline, of a new key too, and unload others for it."""
        record = self._records.get(key) or KeyRecord(key)
        self._make_room()
        try:
            own = self._opened(key)
            own.restore(record)
            if not own.shares:
                own.teacher.refresh()
        except (EdgedError, OSError, ValueError) as problem:
            # Of others the key is not to blame: the disk refuses, or serving is set up wrongly.
            if isinstance(problem, CorruptError | ModelError | ValueError):
                self._set_aside(key, problem)
            raise
        own.used = self._host.clock.monotonic()
        own.close_until_used()
        self._records[key] = record
        self._loaded[key] = own
        self.loads += 1
        return own

    def _opened(self, key: str) -> KeyPipeline:
        folder = self._folders.make(key)
        for name in (".", "models", "checkpoints", "candidates"):
            if (folder / name).is_dir():
                sweep(folder / name)
        problem = damage(folder / "state.db", CHECK_SECONDS)
        if problem is not None:
            raise CorruptError(problem, where=str(folder))
        registry = ReopeningRegistry.open(folder)
        host, common = self._host, self._common
        own_host = Host(KeyEvents(key, host.events), host.clock, host.models, host.client, host.conditions)
        try:
            return KeyPipeline(key, config_of(self.config, folder), self._bundle, registry, common, own_host)
        except BaseException:
            registry.close()
            raise

    def _set_aside(self, key: str, problem: Exception) -> None:
        self._records.pop(key, None)
        what = problem.line() if isinstance(problem, EdgedError) else f"{type(problem).__name__}: {problem}"
        name = self._folders.set_aside(key, self._host.clock.now())
        log.error("key_set_aside", key=key, name=name, problem=what)
        self._host.events.event(KeyModelChanged(key, "stream", reason=what))

    def _make_room(self) -> None:
        """Unload what was not used for longest, so that one more may be loaded."""
        while len(self._loaded) >= self.config.model.keep:
            idle = [
                own
                for key, own in self._loaded.items()
                if not self._busy[key] and not own.scheduler.triggers.commanded
            ]
            if not idle:
                return
            self._unload(min(idle, key=lambda own: own.used))

    def _unload(self, own: KeyPipeline) -> None:
        del self._loaded[own.key]
        self.unloads += 1
        try:
            own.store_state()
            self._store_record(own)
        except StorageError as problem:
            log.warning("key_state_not_kept", key=own.key, problem=problem.line())
        finally:
            own.registry.close()

    def _store_record(self, own: KeyPipeline) -> None:
        self._records[own.key] = record = own.to_record()
        try:
            own.registry.set_value("mix", own.predictor.mix.state())
            self._folders.write(record)
            own.close_until_used()
        except StorageError as problem:
            log.warning("key_note_not_kept", key=own.key, problem=problem.line())

    def close(self) -> None:
        """Store what every loaded model knows, and unload all."""
        with self._lock:
            for own in list(self._loaded.values()):
                self._unload(own)

    def configure(self, config: Config) -> None:
        """Go by another configuration."""
        with self._lock:
            self.config = config
            for own in self._loaded.values():
                own.scheduler.configure(config_of(config, own.config.storage.dir))
                own.evaluator.configure(config.gate)
                own.models.configure(config.gate)
                own.predictor.configure(config.gate)

    def store_state(self) -> None:
        """Store what a restart resumes from."""
        with self._lock:
            for own in self._loaded.values():
                own.store_state()
                self._store_record(own)

    def erase(self, key: str | None = None) -> list[str]:
        """Remove the models of a key, or of all; the keys that had one.

        Call it between two runs. StorageError when the disk refuses: then call it again.
        """
        with self._lock:
            doomed = [one for one in self._records if key in (None, one)]
            for one in doomed:
                own = self._loaded.pop(one, None)
                if own is not None:
                    own.registry.close()
                if key is not None:
                    self._folders.erase(key)
                self._records.pop(one, None)
            if key is None:
                self._folders.erase()
            return doomed
