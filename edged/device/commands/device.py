"""Commands about the device itself: its state and configuration, paused parts, the erasure of its data."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from edged import __version__, logs
from edged.device.commands.models import EXPORTS
from edged.device.events import Events
from edged.device.settings import PausedParts, Settings, value_of
from edged.domain.commands.rules import Answer, Request
from edged.domain.commands.tasks import Task
from edged.errors import ConfigError, EdgedError, RefusedError, StorageError
from edged.mqtt.client.session import Session
from edged.storage.backup.restore import copies
from edged.storage.journal import last_run
from edged.storage.models.fleet import MODELS as FLEET
from edged.storage.models.fleet import ROUNDS
from edged.storage.models.registry import LABEL_TRACES, SAMPLE_TRACES
from edged.storage.samples.erasure import erase_files

if TYPE_CHECKING:
    from edged.device.live_pipeline import LivePipeline
    from edged.device.outbound.publisher import OutboundRouter
    from edged.device.reporting.status import StatusCollector


SHOWN = {
    "device", "stream", "model", "training", "drift", "anomaly", "gate", "labels", "serving", "storage",
    "outbox", "commands", "report", "log",
}  # fmt: skip
"""Sections that `config.get` returns; those about the broker are not among them."""
WIPED = ("samples", "checkpoints", "models")  # without `what`
WIPE_LOOK_SECONDS = 0.2  # between two looks whether the erasure was cancelled


class SettingsCommands:
    """`config.get`, `config.set` and `logs.level`: read and change the configuration in force."""

    def __init__(self, settings: Settings, events: Events) -> None:
        self._settings = settings
        self._events = events

    def get(self, request: Request) -> Answer:
        """Return the configuration in force, or the keys that the request names."""
        values = self._settings.config.model_dump(mode="json", include=SHOWN)
        keys = request.get("keys")
        if keys is None:
            return {"values": values, **self._settings.report().to_json()}
        return {"values": {key: value_of(values, key) for key in keys}, **self._settings.report().to_json()}

    def set(self, request: Request) -> Answer:
        """Set keys permanently; null restores the value of the configuration file.

        Raises ConfigError when a key cannot be set or a value is not valid; then nothing has changed.
        """
        change = self._settings.change(request)
        self._events.states_changed()
        return {**self._settings.report().to_json(), **change.to_json()}

    def level(self, request: Request) -> Answer:
        """Set the log level until the next restart."""
        before = {"level": logs.level()}
        logs.configure(request["level"])
        after = {"level": request["level"]}
        return after | {"before": before, "after": after}


class QueryCommands:
    """`ping`, `status` and `capabilities`: describe the device and its state."""

    def __init__(self, pipeline: LivePipeline, status: StatusCollector, session: Session) -> None:
        self._pipeline = pipeline
        self._status = status
        self._session = session

    def ping(self, _: Request) -> Answer:
        """Return the time of the device and its version."""
        return {"pong": True, "ts": self._pipeline.clock.now(), "version": __version__}

    def status(self, _: Request) -> Answer:
        """Return the summary that `edged status` prints."""
        return self._status.status().to_json()

    def capabilities(self, names: Iterable[str]) -> Answer:
        """Describe the device, and its commands `names` with the schemas of their requests and answers."""
        from edged.domain.messages.requests import REQUESTS, whole
        from edged.domain.messages.sent import ANSWERS

        config, schema = self._pipeline.config, self._pipeline.schema
        commands = {
            name: {
                "description": REQUESTS.get(name, {}).get("description", ""),
                "request": whole(name),
                "answer": ANSWERS.get(name, {"type": "object"}),
            }
            for name in sorted(names)
        }
        return {
            "device": config.device.id,
            "version": __version__,
            "protocol": self._session.protocol,
            "engine": self._pipeline.scheduler.engine,
            "task": schema.task,
            "features": list(schema.names) if schema.names else schema.measured,
            "classes": list(schema.known_classes),
            "codec": config.stream.codec,
            "root": config.topic_root,
            "commands": commands,
        }


class PauseCommands:
    """`pause` and `resume` for training and serving; a pause lasts across restarts.

    While `training` is paused, only commands start runs, and an interrupted run waits; while `serving` is
    paused, edged publishes no predictions.
    """

    def __init__(
        self, pipeline: LivePipeline, *, paused: PausedParts, outbound: OutboundRouter, events: Events
    ) -> None:
        self._pipeline = pipeline
        self._paused = paused
        self._outbound = outbound
        self._events = events

    def start(self) -> None:
        """Pause the parts that were paused when the daemon ended."""
        for part in self._paused.names:
            self._switch(part, paused=True)

    def pause(self, request: Request) -> Answer:
        """Pause the part `what`, training by default; with `hold` false resume it.

        Raises RefusedError where `resume` must be signed and this command need not be.
        """
        hold, unsigned = request.get("hold", True), self._pipeline.config.commands.unsigned()
        if not hold and "pause" in unsigned and "resume" not in unsigned:
            raise RefusedError("resuming must be signed", where="hold", remedy="send the command resume")
        return self._set(request.get("what", "training"), paused=hold)

    def resume(self, request: Request) -> Answer:
        """Resume the part `what`, training by default."""
        return self._set(request.get("what", "training"), paused=False)

    def _set(self, part: str, *, paused: bool) -> Answer:
        before = {"paused": self._paused.names}
        if self._paused.set(part, paused=paused):
            self._switch(part, paused=paused)
            self._events.states_changed()
        after = {"paused": self._paused.names}
        return after | {"before": before, "after": after}

    def _switch(self, part: str, *, paused: bool) -> None:
        pipeline = self._pipeline
        if part == "training":
            pipeline.scheduler.paused = paused
            pipeline.worker.wake()
        else:
            self._outbound.silent = paused


class WipeCommands:
    """`wipe`: erases data between two training runs, while serving continues."""

    def __init__(self, pipeline: LivePipeline, outbound: OutboundRouter, events: Events) -> None:
        self._pipeline = pipeline
        self._outbound = outbound
        self._events = events

    def wipe(self, request: Request, task: Task) -> Answer:
        """Erase the kinds of data in `what`: samples, checkpoints and models by default.

        Raises RefusedError when `confirm` is not the id of this device.
        """
        pipeline, what = self._pipeline, request.get("what", WIPED)
        if request["confirm"] != pipeline.config.device.id:
            raise RefusedError("that is not this device", where="confirm", remedy="give the device's id")
        if "labels" in what and pipeline.schema.labels_itself:
            raise ConfigError(
                "the labels of this stream are its samples", where="what", remedy="name samples"
            )
        with suppress(RefusedError):  # no run is in progress
            pipeline.worker.cancel()
        gone: dict[str, int] = {}
        done = threading.Event()
        problems: list[EdgedError] = []

        def erase() -> None:
            try:
                gone.update(self._erase(what))
            except StorageError:
                raise  # tried again
            except EdgedError as problem:
                problems.append(problem)
            done.set()

        pipeline.worker.between_runs(erase)
        while not done.wait(WIPE_LOOK_SECONDS):
            if task.cancelled:
                raise EdgedError(
                    "cancelled while waiting; edged might still carry it out later", where="wipe"
                )
        self._events.states_changed()
        if problems:
            raise problems[0]
        return gone

    def _erase(self, what: list[str]) -> dict[str, int]:
        """Erase data on the training thread; return counts by kind."""
        pipeline, state = self._pipeline, self._pipeline.config.storage.dir
        pipeline.ingestor.flush()  # what is on its way into the log goes, too
        gone = pipeline.worker.erase(
            state, samples="samples" in what, labels="labels" in what, checkpoints="checkpoints" in what
        )
        if "samples" in what or "labels" in what:
            pipeline.ingestor.forget()
        if "models" in what:
            pipeline.registry.unpin_all()
            pipeline.rollout.begin_anew("wiped")
            gone["models"] = pipeline.registry.erase()
        if {"samples", "labels", "models"} & set(what):
            gone["messages"] = self._outbound.erase()
            # Candidates and renamed damaged databases hold samples; exports hold what was learned from them.
            doomed = [state / "candidates", state / EXPORTS, *copies(state)]
            doomed += [state / name for name in (ROUNDS, FLEET)] if "models" in what else []
            gone["files"] = erase_files(doomed)
        if "samples" in what or "labels" in what:
            self._forget(samples="samples" in what)
        return gone

    def _forget(self, *, samples: bool) -> None:
        """Erase what the journal and its values say of samples, and what would be written there again."""
        pipeline = self._pipeline
        if pipeline.predictor.sets is not None:
            pipeline.predictor.sets.forget_rows()
        if samples:
            self._events.erased()
            pipeline.recall.regimes.forget_samples()
            pipeline.predictor.reset_drift()
            if pipeline.predictor.anomalies is not None:
                pipeline.predictor.anomalies.forget_keys()
        pipeline.teacher.forget()
        pipeline.registry.erase_traces(SAMPLE_TRACES if samples else LABEL_TRACES)
        erase_files([pipeline.config.storage.dir / last_run.STATUS])
        pipeline.worker.store_state()
