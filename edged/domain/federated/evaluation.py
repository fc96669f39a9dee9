"""What a device makes of a model of the fleet, on its own holdout."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from edged.domain.federated.messages import LONGEST_LINE, MOST_ROUNDS
from edged.domain.json_fields import JsonFields, read_object


@dataclass(frozen=True)
class Quality:
    """Loss and the task's metric on the holdout of a device."""

    loss: float
    metric: float

    @classmethod
    def read(cls, fields: JsonFields) -> Quality:
        """From its JSON object."""
        return cls(fields.number("loss"), fields.number("metric"))


@dataclass(frozen=True)
class Mixed:
    """The model of the fleet mixed with the device's own: the share of the former that is best there."""

    share: float
    loss: float
    metric: float

    @classmethod
    def read(cls, fields: JsonFields) -> Mixed:
        """From its JSON object."""
        return cls(fields.number("share", 0.0, 1.0), fields.number("loss"), fields.number("metric"))


@dataclass(frozen=True)
class Evaluation:
    """One device's report on the model `base` of a round.

    Attributes
    ----------
    samples
        Of the holdout.
    before
        What the device served before.
    model
        The model of the fleet as it came; `global` on the wire.
    standing
        The fleet's model before this one, where the device still has it.
    mixed
        What came of mixing; None where nothing was tried.
    taken, reason
        Whether the device serves it now, mixed or not, and why or why not.
    """

    device: str
    round: int
    id: str
    base: str
    samples: int
    before: Quality
    model: Quality
    standing: Quality | None
    mixed: Mixed | None
    taken: bool
    reason: str

    @classmethod
    def read(cls, payload: bytes) -> Evaluation:
        """From what came on the topic; RejectedUpdateError when it is not as described."""
        fields = read_object(payload, LONGEST_LINE, "eval")
        return cls(
            fields.name("device"),
            fields.count("round", 1, MOST_ROUNDS),
            fields.token("id"),
            fields.digest("base"),
            fields.count("samples", 1),
            Quality.read(fields.inner("before")),
            Quality.read(fields.inner("global")),
            fields.optional("standing", lambda name: Quality.read(fields.inner(name))),
            fields.optional("mixed", lambda name: Mixed.read(fields.inner(name))),
            fields.flag("taken"),
            fields.text("reason", 1000),
        )

    def payload(self) -> bytes:
        """Encode the message as JSON."""
        values = asdict(self)
        values["global"] = values.pop("model")
        return json.dumps(values, separators=(",", ":"), allow_nan=False).encode()
