"""Reviews of stored labels: made by the trainer's process after runs, and read by commands and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edged.clock import Clock
from edged.device.events import Extension
from edged.device.learning.trainer_client import TrainerClient
from edged.device.learning.worker import TrainingWorker
from edged.domain.events import Event, TrainingFinished
from edged.domain.stream.sample import LabelReading, StoredSample
from edged.domain.stream.schema import Schema
from edged.domain.training.trainer_messages import ReviewLabels, SampleMap, SuspectLabel
from edged.errors import EdgedError, RefusedError
from edged.logs import get_logger
from edged.storage.models.registry import Registry
from edged.storage.samples.log import SampleLog

log = get_logger("edged.labels")

REVIEW, MAP, CONFIRMED = "label_review", "label_map", "label_confirmed"  # names of values in the registry
MOST_CONFIRMED = 5000  # the newest
FEW, SHARE, COUNTED = 20, 0.1, 20_000  # a review is due after so many labels, or this share of so many
PART = 100  # samples that are read at once


@dataclass(frozen=True)
class CheckedLabel:
    """A suspect label and its sample; `id` names the sample in commands."""

    id: str
    sample: StoredSample
    suspect: SuspectLabel


class LabelReviews(Extension):
    """Has the labels of a stream of classes reviewed between runs, and knows which a person has confirmed.

    `boot` counts the starts of the daemon; ids of samples begin with it.
    """

    def __init__(
        self,
        *,
        worker: TrainingWorker,
        client: TrainerClient,
        samples: SampleLog,
        registry: Registry,
        schema: Schema,
        clock: Clock,
        boot: int,
    ) -> None:
        self._worker, self._client, self._samples, self._registry = worker, client, samples, registry
        self.schema, self._clock, self._boot = schema, clock, boot

    # ---- reviews -----------------------------------------------------------------------------

    def event(self, event: Event) -> None:
        """After a run the labels may have to be reviewed."""
        done = isinstance(event, TrainingFinished) and event.end.outcome == "done"
        if done and self.schema.task == "classify":
            self._worker.between_runs(self._review)

    def _review(self) -> None:
        """On the training thread; without a review, the one of before stays."""
        try:
            counters = self._samples.counters()
            seen = counters.labels + counters.relabelled
            last = self._registry.get_value(REVIEW) or {}
            if last and 0 <= seen - last["seen"] < max(FEW, SHARE * min(seen, COUNTED)):
                return
            review = self._client.run(ReviewLabels(0, tuple(self._confirmed())))
            ts, found = self._clock.now(), review.to_json()
            self._registry.set_value(MAP, {"ts": ts, "points": found["points"]})
            self._registry.set_value(REVIEW, {"ts": ts, "seen": seen, **review.without("points")})
        except EdgedError as problem:
            log.warning(
                "labels_not_reviewed", problem=problem.line(), remedy="edged retries after the next run"
            )
            return
        log.info("labels_reviewed", labels=review.labels, suspects=len(review.suspects))

    # ---- what they say -----------------------------------------------------------------------

    def suspects(self, limit: int, key: str | None = None) -> tuple[float | None, int, list[CheckedLabel]]:
        """When labels were reviewed, how many, and the most suspect of them that still are as they were."""
        review = self._registry.get_value(REVIEW)
        if review is None:
            return None, 0, []
        suspects, size = review["suspects"], min(PART, limit)
        confirmed, found = self._confirmed(), list[CheckedLabel]()
        classes, known = self.schema.classes, self.schema.known_classes
        for start in range(0, len(suspects), size):
            read = (SuspectLabel.from_json(one) for one in suspects[start : start + size])
            part = {one.offset: one for one in read}
            stored = {sample.offset: sample for sample in self._samples.stored(list(part))}
            for offset, suspect in part.items():
                sample = stored.get(offset)
                if sample is None or sample.label != suspect.label or key not in (None, sample.key):
                    continue
                # An answer may be a class that has been removed or merged since.
                if confirmed.get(offset) != sample.label and classes[suspect.answer] in known:
                    found.append(CheckedLabel(self._id(offset), sample, suspect))
            if len(found) >= limit:
                break
        return review["ts"], review["labels"], found[:limit]

    def points(self) -> tuple[float | None, dict[str, list[float | None]]]:
        """When the map was drawn, and columns of its samples that still have a label, as it is now."""
        drawn = self._registry.get_value(MAP)
        points = SampleMap((), (), (), (), ()) if drawn is None else SampleMap.from_json(drawn["points"])
        offsets, labels = points.offsets, dict[int, int]()
        for start in range(0, len(offsets), PART):
            stored = self._samples.stored(list(offsets[start : start + PART]))
            labels |= {one.offset: one.label for one in stored if one.label is not None}
        columns: dict[str, Sequence[float | None]] = {
            "offset": offsets,
            "x": points.x,
            "y": points.y,
            "label": [labels.get(offset) for offset in offsets],
            "answer": points.answers,
            "confidence": points.confidences,
        }
        there = [place for place, offset in enumerate(offsets) if offset in labels]
        shown = {name: [column[place] for place in there] for name, column in columns.items()}
        return None if drawn is None else drawn["ts"], shown

    def sample(self, offset: int) -> tuple[str, StoredSample] | None:
        """A sample with its id; None when it is not here any more."""
        found = self._samples.stored([offset])
        return (self._id(offset), found[0]) if found else None

    def _id(self, offset: int) -> str:
        return f"{self._boot}-{offset}"

    # ---- what a person says ------------------------------------------------------------------

    def confirm(self, ids: Sequence[str], *, right: bool) -> tuple[int, int]:
        """Record durably that labels are right and not to be suspected again, or take that back.

        Returns how many samples that was, and how many ids name no labelled sample. Raises RefusedError when
        it is none.
        """
        offsets = self._samples.find_many([LabelReading(0.0, id=one) for one in ids])
        stored = self._samples.stored([offset for offset in offsets if offset is not None])
        labels = {one.offset: one.label for one in stored if one.label is not None}
        if not labels:
            raise RefusedError("no sample with a label is here", where="ids", remedy="ask labels.suspects")
        kept = {offset: label for offset, label in self._confirmed().items() if offset not in labels}
        if right:
            kept |= labels
        self._registry.set_value(CONFIRMED, list(kept.items())[-MOST_CONFIRMED:])
        return len(labels), len(set(ids)) - len(labels)

    def _confirmed(self) -> dict[int, int]:
        """Offsets of confirmed labels, and what they were then; the newest last."""
        return {int(offset): int(label) for offset, label in self._registry.get_value(CONFIRMED) or ()}
