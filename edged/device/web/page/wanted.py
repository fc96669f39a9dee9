"""Open label requests in the order in which they are worth an answer, by what the model says now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from edged.domain.judging.outputs import probabilities
from edged.domain.labels.label_requests import in_order
from edged.domain.stream.sample import LabelReading
from edged.errors import EdgedError

if TYPE_CHECKING:
    from edged.device.live_pipeline import LivePipeline
    from edged.domain.events import LabelRequested


def wanted(pipeline: LivePipeline, requests: Sequence[LabelRequested]) -> list[LabelRequested]:
    """Return requests (oldest first) with the model's answers of now, best first; newest first for values.

    Those whose sample has a label by now, or is gone, are left out where the stream has classes.
    """
    schema, reader = pipeline.schema, pipeline.reader
    if schema.task != "classify" or not requests:
        return list(reversed(requests))
    offsets = reader.find_many([LabelReading(0.0, id=said.id) for said in requests])
    stored = {one.offset: one for one in reader.stored([o for o in offsets if o is not None])}
    found = [
        (said, stored[offset].x)
        for said, offset in zip(requests, offsets, strict=True)
        if offset is not None and offset in stored and stored[offset].label is None
    ]
    if not found:
        return []
    try:
        p = probabilities(pipeline.predictor.champion.model.predict(np.stack([x for _, x in found])))
    except EdgedError:  # serving says so
        return [said for said, _ in reversed(found)]
    best = np.partition(p, -2, axis=1)[:, -2:]
    answers = [schema.classes[at] for at in p.argmax(axis=1).tolist()]
    now = [
        replace(said, answer=answer, confidence=sure)
        for (said, _), answer, sure in zip(found, answers, best[:, 1].tolist(), strict=True)
    ]
    order = in_order((best[:, 1] - best[:, 0]).tolist(), [said.random for said in now])
    return [now[at] for at in order]
