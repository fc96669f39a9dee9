"""The commands `labels.suspects` and `labels.confirm`: labels that may be wrong, and those that are right."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edged.device.learning.label_reviews import CheckedLabel, LabelReviews
    from edged.domain.commands.rules import Answer, Request
    from edged.domain.stream.sample import StoredSample
    from edged.domain.stream.schema import Schema

USUAL = 20  # suspects of an answer without `limit`
MOST_VALUES = 64  # features shown of a sample


class LabelReviewCommands:
    """`labels.suspects` lists labels that may be wrong, `labels.confirm` says which are right."""

    def __init__(self, reviews: LabelReviews) -> None:
        self._reviews = reviews

    def suspects(self, request: Request) -> Answer:
        """Return labels that a model contradicts which was fitted without them, the most suspect first."""
        ts, labels, found = self._reviews.suspects(int(request.get("limit", USUAL)), request.get("key"))
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
        "values": [float(f"{value:.6g}") for value in one.x[: min(MOST_VALUES, schema.measured)].tolist()],
        "label": None if one.label is None else schema.classes[one.label],
    }
