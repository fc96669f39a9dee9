"""The command `wipe`: erases samples, labels, checkpoints and models, including their bytes in files."""

from __future__ import annotations

import threading
from contextlib import suppress

from edged.device.events import Events
from edged.device.live_pipeline import LivePipeline
from edged.device.outbound.publisher import OutboundRouter
from edged.domain.commands.rules import Answer, Request
from edged.domain.commands.tasks import Task
from edged.errors import ConfigError, EdgedError, RefusedError, StorageError
from edged.storage.backup.restore import derived_files
from edged.storage.files.atomic import remove_files
from edged.storage.journal import last_run
from edged.storage.models.registry import LABEL_TRACES, SAMPLE_TRACES

WIPED = ("samples", "checkpoints", "models")  # without `what`
WIPE_LOOK_SECONDS = 0.2  # between two looks whether the erasure was cancelled


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
            gone["messages"] = self._outbound.forwarder.erase()
            gone["files"] = remove_files(derived_files(state, models="models" in what))
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
            pipeline.predictor.reset_drift()
            if pipeline.predictor.anomalies is not None:
                pipeline.predictor.anomalies.forget_keys()
        pipeline.teacher.forget()
        pipeline.registry.erase_traces(SAMPLE_TRACES if samples else LABEL_TRACES)
        remove_files([pipeline.config.storage.dir / last_run.STATUS])
        pipeline.worker.store_state()
