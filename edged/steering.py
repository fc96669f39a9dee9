"""What commands over MQTT do on this device, and where their answers go."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from edged.domain.sample import LabelReading, LabelUpdate
from edged.errors import ConfigError, RefusedError, RejectedSampleError

if TYPE_CHECKING:
    from collections.abc import Callable

    from edged.clock import Clock
    from edged.domain.anomaly import Anomalies
    from edged.domain.schema import Schema
    from edged.learning import Learning
    from edged.loop.serve import ServingLoop
    from edged.loop.succession import Succession
    from edged.mqtt.delivery import Delivery
    from edged.mqtt.topics import Topics
    from edged.selfreport import SelfReport
    from edged.storage.samples import SampleLog

TRAIN_OPTIONS = {"steps": int, "learning_rate": float}
PREDICTION_ID = re.compile(r"[0-9]+-([0-9]{1,18})")


class Steering:
    """The handlers of `request/<command>`.

    Parameters
    ----------
    learning, succession, selfreport
        The parts that carry commands out.
    labelling
        Carries labels that come as commands.
    publish_states
        Called after a command that changed something.
    publish
        Sends one message over the session.
    topics
        Where answers go to a sender without an MQTT 5 response topic.
    anomalies
        Whose alarms may be accepted; None where the stream has none.
    """

    def __init__(
        self,
        *,
        learning: Learning,
        succession: Succession,
        selfreport: SelfReport,
        labelling: Labelling,
        publish_states: Callable[[], None],
        publish: Callable[..., bool],
        topics: Topics,
        anomalies: Anomalies | None,
    ) -> None:
        self._learning = learning
        self._succession = succession
        self._selfreport = selfreport
        self._labelling = labelling
        self._publish_states = publish_states
        self._publish = publish
        self._topics = topics
        self._anomalies = anomalies

    def commands(self) -> dict[str, Callable[[dict[str, Any]], dict[str, Any]]]:
        """Every command with its handler."""
        return {
            "train": self._train,
            "rollback": self._roll_back,
            "label": self._labelling.label,
            "accept": self._accept,
            "status": self._status,
        }

    def answer(self, command: str, payload: bytes, delivery: Delivery) -> None:
        """Send an answer where the sender wants it."""
        if delivery.response_topic:
            self._publish(delivery.response_topic, payload, qos=1, correlation=delivery.correlation)
        else:
            self._publish(self._topics.response(command), payload, qos=1)

    def _train(self, request: dict[str, Any]) -> dict[str, Any]:
        options: dict[str, Any] = {}
        for name, value in request.items():
            if name == "transaction":
                continue
            kind = TRAIN_OPTIONS.get(name)
            if kind is None:
                raise ConfigError(f"unknown option; known: {', '.join(TRAIN_OPTIONS)}", where=name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1_000_000:
                raise ConfigError(f"{value!r} is no positive number", where=name)
            options[name] = kind(value)
        self._learning.command(options)
        return {"state": "accepted", "new_samples": self._selfreport.new_labelled()}

    def _roll_back(self, request: dict[str, Any]) -> dict[str, Any]:
        to = request.get("version")
        if to is not None and (isinstance(to, bool) or not isinstance(to, int)):
            raise ConfigError(f"{to!r} is no version number", where="version")
        change = self._succession.roll_back("command", to)
        self._publish_states()
        return change

    def _accept(self, request: dict[str, Any]) -> dict[str, Any]:
        """What an alarm is about is normal from now on, and learned from."""
        key = request.get("key")
        if key is not None and not isinstance(key, str):
            raise ConfigError(f"{key!r} is no key", where="key")
        accepted = 0 if self._anomalies is None else self._anomalies.accept(key)
        if accepted == 0:
            raise RefusedError(
                "no alarm stands", where=key or "", remedy="metrics name the keys: anomaly.standing"
            )
        self._learning.wake()
        return {"accepted": accepted}

    def _status(self, _: dict[str, Any]) -> dict[str, Any]:
        return self._selfreport.status()


class Labelling:
    """The command `label`: answers of people to label requests, or labels that come by the way.

    Takes `{"id", "label"}` or `{"key", "ts", "label"}`, or a list of such under `labels`. An `id` is the
    sender's own, or that of a prediction.
    """

    def __init__(
        self, schema: Schema, samples: SampleLog, serving: ServingLoop, learning: Learning, clock: Clock
    ) -> None:
        self._schema = schema
        self._samples = samples
        self._serving = serving
        self._learning = learning
        self._clock = clock

    def label(self, request: dict[str, Any]) -> dict[str, Any]:
        """Store the labels, durably, before the answer.

        Raises
        ------
        ConfigError
            When a label cannot be understood; then none is taken.
        RefusedError
            When no sample is here for any of them.
        """
        entries = request.get("labels", [request])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise ConfigError("expected a list of objects with id and label", where="labels")
        readings = [self._read(entry, place) for place, entry in enumerate(entries)]
        found = self._find(readings)
        updates = [
            LabelUpdate(offset, reading.label, self._clock.now())
            for offset, reading in zip(found, readings, strict=True)
            if offset is not None
        ]
        if not updates:
            raise RefusedError(
                "no sample is here for this label", remedy="give the id of a prediction, or key and ts"
            )
        self._samples.commit(None, updates)
        self._serving.label(updates)
        self._learning.wake()
        return {"labelled": len(updates), "unknown": len(readings) - len(updates)}

    def _read(self, entry: dict[str, Any], place: int) -> LabelReading:
        where = f"label {place + 1}"
        if entry.get("label") is None:
            raise ConfigError("no label", where=where, remedy='send {"id": …, "label": …}')
        try:
            label = self._schema.parse_label(entry["label"])
        except RejectedSampleError as problem:
            raise ConfigError(problem.what, where=where) from problem
        sample_id, key, ts = entry.get("id"), entry.get("key"), entry.get("ts")
        if isinstance(sample_id, str | int):
            return LabelReading(label, id=str(sample_id))
        if isinstance(key, str) and isinstance(ts, int | float):
            return LabelReading(label, key=key, ts=float(ts))
        raise ConfigError("no sample is named", where=where, remedy="give id, or key and ts (Unix seconds)")

    def _find(self, readings: list[LabelReading]) -> list[int | None]:
        """Offsets by the sender's id or by time; else by the id of a prediction."""
        found = self._samples.find_many(readings)
        named = {
            place: int(match[1])
            for place, reading in enumerate(readings)
            if found[place] is None and reading.id and (match := PREDICTION_ID.fullmatch(reading.id))
        }
        here = self._samples.holds(list(named.values()))
        for place, offset in named.items():
            if offset in here:
                found[place] = offset
        return found
