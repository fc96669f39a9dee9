"""Commands about labels and classes: given, taken back, reviewed, confirmed; added, removed and merged."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from edged.device.learning.label_reviews import CheckedLabel, LabelReviews
from edged.device.live_pipeline import LivePipeline
from edged.domain.commands.rules import Answer, Request
from edged.domain.commands.tasks import Task
from edged.domain.commits.commit_group import Submission
from edged.domain.labels.held_labels import ends, label_of
from edged.domain.stream.open_classes import OpenClasses
from edged.domain.stream.sample import (
    HeldChange,
    HoldReading,
    LabelReading,
    LabelUpdate,
    LabelValue,
    StoredSample,
)
from edged.domain.stream.schema import Schema
from edged.errors import ConfigError, EdgedError, RefusedError, RejectedSampleError, StorageError
from edged.mqtt.field_access import parse_key, parse_time
from edged.storage.journal.journal import CommandRecord
from edged.storage.samples.label_actions import LabelAction, held_label
from edged.storage.samples.label_history import LabelHistory

_T = TypeVar("_T")
HISTORY_SHARE = 16  # this part of `storage.max_bytes` may be labels of before
HOLD_SECONDS = 10.0  # that a label that holds may take to be on the disk


class LabelCommands:
    """The commands `label` and `label.undo`: labels from people who answer label requests, or label unasked.

    A command that was cut off is finished by the next start: what it has done is in the sample log under its
    transaction.
    """

    def __init__(self, pipeline: LivePipeline) -> None:
        self._pipeline = pipeline
        most = pipeline.config.storage.max_bytes // HISTORY_SHARE
        self._history = LabelHistory(pipeline.samples, pipeline.schema, most)
        with suppress(StorageError):  # the next command tries it again
            self._history.complete()

    # ---- label -----------------------------------------------------------------------------

    def label(self, request: Request, task: Task) -> Answer:
        """Store labels durably and pass them to serving and training; the answer has the `number` to undo it.

        Takes `{"id", "label"}` or `{"key", "ts", "label"}`, or a list of such under `labels`; an interval
        `{"from", "to", "key", "label"}`, null for no label; or `{"key", "label", "hold": true}` for what
        comes from now on. An `id` is the sender's own, or that of a prediction. A sample is predicted before
        it is on disk; if a sample is not there yet, the command waits for its commit.

        Raises ConfigError when a label is not valid (then none is stored); RefusedError when there is no
        sample for any of them; StorageError when the newest samples, to which the labels might belong, cannot
        be stored.
        """
        if self._pipeline.schema.labels_itself:
            raise RefusedError("the labels of this stream are its samples", where="label")
        command, done = self._begin(task)
        if request.get("hold"):
            return self._held(done or self._hold(request, command))
        if "from" in request or "to" in request:
            return self._answer(done or self._label_interval(request, command))
        return self._label_samples(request, command, done)

    def _begin(self, task: Task) -> tuple[str, LabelAction | None]:
        """The name of a command in the history, and what it had done before it was cut off."""
        self._history.complete()
        command = task.key or secrets.token_hex(8)
        if isinstance(task.sender, CommandRecord):
            return command, self._history.find(command)
        self._history.release(command)
        return command, None

    def _label_samples(self, request: Request, command: str, done: LabelAction | None) -> Answer:
        entries = request.get("labels", [request])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise ConfigError("expected a list of objects with id and label", where="labels")
        readings = [self._read(entry, place) for place, entry in enumerate(entries)]
        found = self._find_flushed(readings)
        now = self._pipeline.clock.now()
        updates = [
            LabelUpdate(offset, reading.label, now)
            for offset, reading in zip(found, readings, strict=True)
            if offset is not None
        ]
        if done is None:
            if not updates:
                raise RefusedError(
                    "no sample is here for this label", remedy="give the id of a prediction, or key and ts"
                )
            done = self._history.label(command, updates, now)
            self._learn(updates)
            if done.had:
                self._pipeline.teacher.forget()
        return {**self._answer(done), "labelled": len(updates), "unknown": len(readings) - len(updates)}

    def _read(self, entry: dict[str, Any], place: int) -> LabelReading:
        where = f"label {place + 1}"
        if entry.get("label") is None:
            raise ConfigError("no label", where=where, remedy='send {"id": …, "label": …}')
        label = self._label_of(entry["label"], where)
        sample_id = entry.get("id")
        if isinstance(sample_id, str | int):
            return LabelReading(label, id=str(sample_id))
        if entry.get("key") is not None and entry.get("ts") is not None:
            return LabelReading(label, key=_read(parse_key, entry, "key"), ts=_read(parse_time, entry, "ts"))
        raise ConfigError("no sample is named", where=where, remedy="give id, or key and ts (Unix seconds)")

    def _label_of(self, value: Any, where: str) -> LabelValue:
        try:
            return label_of(value, self._pipeline.schema)
        except RejectedSampleError as problem:
            raise ConfigError(problem.what, where=where) from problem

    def _find_flushed(self, readings: list[LabelReading]) -> list[int | None]:
        """Find offsets of the samples; commit those that are predicted but not stored yet."""
        # A time means the nearest sample, which might not be on disk yet.
        timed = any(reading.ts is not None for reading in readings)
        found = [] if timed else self._pipeline.samples.find_many(readings)
        if not timed and None not in found:
            return found
        flushed = self._pipeline.ingestor.flush()
        found = self._pipeline.samples.find_many(readings)
        if not flushed and all(offset is None for offset in found):
            raise _unsettled()
        return found

    # ---- an interval -----------------------------------------------------------------------

    def _label_interval(self, request: Request, command: str) -> LabelAction:
        first, last = (_read(parse_time, request, name) for name in ("from", "to"))
        if first > last:
            raise ConfigError(f"it is after to ({last:.3f})", where="from")
        if "label" not in request:
            raise ConfigError("no label", where="label", remedy="null takes the labels away")
        value = request["label"]
        label = None if value is None else self._label_of(value, "label")
        if not self._pipeline.ingestor.flush():
            raise _unsettled()
        key, now = self._key(request), self._pipeline.clock.now()
        action = self._history.begin_interval(command, key, first, last, label, now)
        while action.open:
            offsets = self._history.go_on(action)
            if label is not None and offsets:
                self._learn([LabelUpdate(offset, label, now) for offset in offsets])
        self._pipeline.teacher.forget()
        self._pipeline.worker.wake()
        return action

    def _key(self, request: Request) -> str:
        if request.get("key") is not None:
            return _read(parse_key, request, "key")
        self._pipeline.ingestor.flush()
        key = self._pipeline.samples.only_key()
        if key is None:
            raise ConfigError("none is named, and the samples do not all have the same", where="key")
        return key

    def _learn(self, updates: list[LabelUpdate]) -> None:
        self._pipeline.serving.label(updates)
        self._pipeline.worker.wake()

    def _answer(self, action: LabelAction) -> Answer:
        """Return the answer: how many samples, and how many of them had and have labels."""
        after = _counts(0 if _cleared(action) else action.rows, action.rows)
        before = _counts(action.had, action.rows)
        return {"labelled": after["labelled"], "number": action.number, "before": before, "after": after}

    # ---- a label that holds ----------------------------------------------------------------

    def _hold(self, request: Request, command: str) -> LabelAction:
        value, schema = request.get("label"), self._pipeline.schema
        label = None if ends(value, schema) else self._label_of(value, "label")
        self._submit(HoldReading(self._key(request), label, command=command))
        action = self._history.find(command)
        if action is None:
            raise StorageError("the label may not be stored", where="samples.db", remedy="send it again")
        return action

    def _submit(self, reading: HoldReading) -> None:
        """Have the ingest thread take it, between two messages; durable when this returns."""
        done = threading.Event()
        problems: list[EdgedError] = []

        def refused(problem: EdgedError) -> None:
            problems.append(problem)
            done.set()

        self._pipeline.ingestor.submit(Submission([reading], time.monotonic(), lambda _: done.set(), refused))
        if not done.wait(HOLD_SECONDS):
            raise StorageError("not on the disk yet; it may still come", where="samples.db")
        if problems:
            raise problems[0]

    @staticmethod
    def _held(action: LabelAction) -> Answer:
        before, after = action.held is not None, action.now_held is not None
        return {"held": after, "number": action.number, "before": {"held": before}, "after": {"held": after}}

    # ---- label.undo ------------------------------------------------------------------------

    def undo(self, request: Request, task: Task) -> Answer:
        """Take back the last `label`, or that of `number`: what was there before comes back.

        Raises RefusedError when there is none, or its samples or key have been labelled again since.
        """
        command, done = self._begin(task)
        action = done or self._history.newest(request.get("number"))
        if action.kind == "held":
            return self._undo_held(action, command)
        if action.undone_by is None:
            action = self._history.begin_undo(action.number, command)
        while action.open:
            self._history.go_on(action)
        self._pipeline.teacher.forget()
        self._pipeline.worker.wake()
        before, after = (0 if _cleared(action) else action.back), action.back_had
        return {
            "number": action.number,
            "undone": action.back,
            "kept": action.kept,
            "gone": action.gone,
            "before": _counts(before, action.back),
            "after": _counts(after, action.back),
        }

    def _undo_held(self, action: LabelAction, command: str) -> Answer:
        if action.undone_by is None:
            before, after = held_label(action.now_held), held_label(action.held)
            ts, key = self._pipeline.clock.now(), str(action.key)
            change = HeldChange(command, key, ts, before, after, action.number)
            self._submit(HoldReading(key, None, undoing=change))
            if self._history.find(command) is None:
                raise RefusedError(
                    "another label holds, or none, by now", where="number", remedy='send {"hold": true} again'
                )
        counts = self._held(action)
        return {"number": action.number, "undone": 1, "before": counts["after"], "after": counts["before"]}


def _read(parse: Callable[[Any], _T], request: Request, name: str) -> _T:
    """A field of a request, read as fields of messages are."""
    try:
        return parse(request.get(name))
    except RejectedSampleError as problem:
        raise ConfigError(problem.what, where=name) from problem


def _cleared(action: LabelAction) -> bool:
    return action.kind == "interval" and action.y is None


def _counts(labelled: int, of: int) -> dict[str, int]:
    return {"labelled": labelled, "unlabelled": of - labelled}


def _unsettled() -> StorageError:
    return StorageError(
        "the newest samples are not on the disk yet", where="samples.db", remedy="send it again"
    )


SUSPECTS_LISTED = 20  # suspects of an answer without `limit`
VALUES_SHOWN = 64  # features shown of a sample


class LabelReviewCommands:
    """`labels.suspects` lists labels that may be wrong, `labels.confirm` says which are right."""

    def __init__(self, reviews: LabelReviews) -> None:
        self._reviews = reviews

    def suspects(self, request: Request) -> Answer:
        """Return labels that a model contradicts which was fitted without them, the most suspect first."""
        ts, labels, found = self._reviews.suspects(
            int(request.get("limit", SUSPECTS_LISTED)), request.get("key")
        )
        schema = self._reviews.schema
        return {"reviewed": ts, "labels": labels, "suspects": [suspect(schema, one) for one in found]}

    def confirm(self, request: Request) -> Answer:
        """Confirm the labels of samples: they are not suspected again unless they change."""
        right = bool(request.get("right", True))
        done, unknown = self._reviews.confirm(request["ids"], right=right)
        return {"confirmed" if right else "withdrawn": done, "unknown": unknown}


def suspect(schema: Schema, one: CheckedLabel) -> Answer:
    """A suspect label as JSON values."""
    return {
        **sample(schema, one.id, one.sample),
        "label_confidence": one.suspect.label_confidence,
        "answer": schema.classes[one.suspect.answer],
        "confidence": one.suspect.confidence,
    }


def sample(schema: Schema, sample_id: str, one: StoredSample) -> Answer:
    """A sample as JSON values."""
    return {
        "id": sample_id,
        "key": one.key,
        "ts": one.ts,
        "values": [float(f"{value:.6g}") for value in one.x[: min(VALUES_SHOWN, schema.measured)].tolist()],
        "label": None if one.label is None else schema.classes[one.label],
    }


class ClassCommands:
    """Changes the classes of a stream with `stream.max_classes`.

    A change is one transaction of the sample log, which says by which command: one that was cut off is
    carried out or answered by the next start.
    """

    def __init__(self, pipeline: LivePipeline) -> None:
        self._samples = pipeline.samples

    def add(self, request: Request, task: Task) -> Answer:
        """Give a class an output of the network before its first label.

        Raises RefusedError when it is here already, or no output is free.
        """
        return self._change(task, lambda classes, key: classes.add(request["class"], key))

    def remove(self, request: Request, task: Task) -> Answer:
        """Let a class be none: it is not answered, and its labels neither teach nor judge, old and new ones.

        Raises RefusedError when it is none.
        """
        return self._change(task, lambda classes, key: classes.retire(request["class"], None, key))

    def merge(self, request: Request, task: Task) -> Answer:
        """Let the class `from` count as the class `to`, in labels, old and new ones, and in answers.

        Raises RefusedError when one of them is none.
        """
        return self._change(task, lambda classes, key: classes.retire(request["from"], request["to"], key))

    def _change(self, task: Task, change: Callable[[OpenClasses, str | None], int]) -> Answer:
        with self._samples.changing_classes() as classes:
            if task.key is None or not classes.changed_by(task.key):
                change(classes, task.key)
        return {"classes": list(classes.known), "free": classes.free}
