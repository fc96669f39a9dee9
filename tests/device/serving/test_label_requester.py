"""Label requests: what a person or a tool gets to see of the sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from edged.clock import VirtualClock
from edged.device.events import Events
from edged.device.serving.label_requester import MOST_VALUES, LabelRequester
from edged.domain.judging.prediction_sets import Promise
from edged.domain.judging.predictions import Predictions
from edged.domain.labels.label_requests import LabelRequests
from edged.domain.stream.sample import Batch
from edged.domain.stream.schema import Schema
from tests.device.partners import Recorder


def batch(n: int, width: int, labels: list[float | None]) -> Batch:
    now = np.arange(n, dtype=np.float64)
    x = np.arange(n * width, dtype=np.float32).reshape(n, width)
    return Batch(np.arange(1, n + 1), [f"k{i}" for i in range(n)], now, now, x, list(labels), [None] * n)


def requests(schema: Schema, samples: Batch, made: Predictions) -> list[Mapping[str, Any]]:
    heard = Recorder()
    rule = LabelRequests(1.0, random=1.0)
    asking = LabelRequester(rule, schema, VirtualClock(0.0), Events(heard))
    asking.answered(samples, slice(0, len(samples)), [f"s{i}" for i in range(len(samples))], made)
    assert asking.requested == len(heard.events)
    return heard.named("label_requested")


def test_a_request_names_the_sample_and_what_the_model_says() -> None:
    schema = Schema((), 2, "classify", ("ok", "worn"))
    output = np.array([[0.25, 0.75], [0.9, 0.1]], np.float32)
    made = Predictions(3, np.array([1, 2]), np.array([[1], [0]], np.float32), output, output.max(axis=1))
    told = requests(schema, batch(2, 2, [None, None]), made)
    assert told[0] == {
        "id": "s0", "key": "k0", "sample_ts": 0.0, "values": [0.0, 1.0],
        "model": 3, "answer": "worn", "confidence": 0.75, "random": True,
    }  # fmt: skip
    assert told[1]["answer"] == "ok"
    sets = Promise(0.9, np.array([[True, True], [False, False]]), np.full((2, 1), 0.1, np.float32))
    told = requests(schema, batch(2, 2, [None, None]), replace(made, promise=sets))
    assert [(request["answer"], request["set"]) for request in told] == [("worn", ["ok", "worn"]), ("ok", [])]


def test_a_sample_that_brought_its_label_is_not_asked_about() -> None:
    schema = Schema((), 2, "regress", (), 1)
    made = Predictions(1, np.array([1, 2, 3]), np.ones((3, 1), np.float32), np.ones((3, 1), np.float32), None)
    told = requests(schema, batch(3, 2, [0.5, None, 0.5]), made)
    assert [request["id"] for request in told] == ["s1"]
    assert told[0]["answer"] == [1.0]


def test_samples_that_brought_their_labels_leave_the_days_requests_to_others() -> None:
    schema = Schema((), 2, "regress", (), 1)
    heard = Recorder()
    asking = LabelRequester(
        LabelRequests(1.0, random=1.0, per_day=2), schema, VirtualClock(0.0), Events(heard)
    )
    ones = np.ones((2, 1), np.float32)
    made = Predictions(1, np.array([1, 2]), ones, ones, None)
    for label in (0.5, 0.5, None, None):
        asking.answered(batch(2, 2, [label, label]), slice(0, 2), ["a", "b"], made)
    assert len(heard.named("label_requested")) == asking.requested == 2


def test_a_wide_sample_is_shown_in_part() -> None:
    schema = Schema((), 500, "regress", (), 1)
    made = Predictions(1, np.array([1]), np.ones((1, 1), np.float32), np.ones((1, 1), np.float32), None)
    assert len(requests(schema, batch(1, 500, [None]), made)[0]["values"]) == MOST_VALUES
