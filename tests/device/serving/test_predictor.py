"""Answers, the exchange of models under load, what happens when one fails, and live quality."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.clock import VirtualClock
from edged.config import GateConfig, ServingConfig
from edged.device.events import Events
from edged.device.serving.prediction_messages import encode
from edged.device.serving.predictor import Predictor
from edged.device.serving.worker import ServingWorker
from edged.domain.judging.expert_mix import StreamModel, mix_of
from edged.domain.judging.latencies import Latencies, LatencyPercentiles
from edged.domain.judging.predictions import Predictions
from edged.domain.protocols import ServedModel
from edged.domain.stream.sample import LabelUpdate
from edged.domain.stream.schema import Schema
from edged.engines.inference import InferenceModel
from edged.errors import ModelError
from edged.host.systemd import Notifier, Watchdog
from tests.constants import section
from tests.device.linear import (
    BAD,
    BROKEN,
    GOOD,
    SCHEMA,
    WIDTH,
    classes,
    inputs,
    numbered,
    samples,
    served,
    write,
)  # fmt: skip
from tests.device.partners import Recorder, Supervisor, no_requests
from tests.running_device import wait_until

if TYPE_CHECKING:
    from edged.domain.drift.signals import DriftSignal
    from edged.domain.stream.sample import Batch
    from tests.device.linear import Floats


def make_server(champion: ServedModel, *, schema: Schema = SCHEMA, **gate: Any) -> Predictor:
    return Predictor(ServingConfig().with_constants(remember=5000), section("gate", gate), schema, champion)


def labels(x: Floats) -> Floats:
    return np.asarray(classes(x), np.float32).reshape(-1, 1)


class CountingWatchdog(Watchdog):
    """Counts beats."""

    beats = 0

    def beat(self, loop: str) -> bool:
        self.beats += 1
        return super().beat(loop)


class Outlet(Supervisor, Recorder):
    """A running serving loop, and everything that came out of it."""

    def __init__(self, predictor: Predictor, batch: int = 16) -> None:
        super().__init__()
        self.predictor = predictor
        self.outcomes: list[bool] = []
        self.failed: list[tuple[int, str]] = []
        self.drifts: list[DriftSignal] = []
        self.watchdog = CountingWatchdog(Notifier(), ("serve",))
        self.loop = ServingWorker(
            predictor,
            batch=batch,
            boot=1,
            supervisor=self,
            requester=no_requests(predictor.schema, VirtualClock()),
            events=Events(self),
            watchdog=self.watchdog,
            latencies=Latencies(),
        )

    def drifted(self, signal: DriftSignal) -> None:
        self.drifts.append(signal)

    def probation_ended(self, version: int, passed: bool) -> None:
        self.outcomes.append(passed)

    def champion_failed(self, version: int, reason: str) -> None:
        self.failed.append((version, reason))

    def submit(self, batch: Batch) -> None:
        self.loop.submit(batch, np.full(len(batch), time.monotonic()))


@contextmanager
def serving(predictor: Predictor | Outlet, **options: Any) -> Iterator[Outlet]:
    """The loop in its thread; all that waits is answered when the block ends."""
    outlet = predictor if isinstance(predictor, Outlet) else Outlet(predictor, **options)
    outlet.loop.start()
    yield outlet
    outlet.loop.stop()


# ---- answers ---------------------------------------------------------------------------------


def test_predictions_are_what_the_model_says(tmp_path: Path) -> None:
    champion, x = served(tmp_path, 7, GOOD), inputs(20)
    made = make_server(champion).predict(numbered(1, 20), x)
    raw = champion.model.predict(x).astype(np.float64)
    expected = np.exp(raw) / np.exp(raw).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(made.output, expected, rtol=1e-5)
    np.testing.assert_array_equal(made.answers, labels(x))
    assert made.confidence is not None
    np.testing.assert_allclose(made.confidence, expected.max(axis=1), rtol=1e-5)
    assert made.version == 7


def test_values_are_published_as_they_are(tmp_path: Path) -> None:
    schema = Schema((), WIDTH, "regress", (), 2)
    champion, x = served(tmp_path, 1, 3.0), inputs(5)
    made = make_server(champion, schema=schema).predict(numbered(1, 5), x)
    np.testing.assert_array_equal(made.output, champion.model.predict(x))
    assert made.confidence is None


def test_a_reconstruction_is_published_as_an_anomaly_score(tmp_path: Path) -> None:

    schema = Schema((), WIDTH, "reconstruct", (), WIDTH)
    model = InferenceModel(write(tmp_path / "m.onnx", 0.0, outputs=WIDTH))  # answers zeros
    champion = ServedModel(1, model, np.array([1, 2, 0], np.float32))
    x = np.array([[1, 1, 50], [0, 0, 9]], np.float32)
    predictor = make_server(champion, schema=schema)
    with serving(predictor) as outlet:
        outlet.submit(samples(1, x))
    assert [p["output"] for p in outlet.published] == [[1.0], [0.0]]
    assert [p["label"] for p in outlet.published] == [None, None]
    assert predictor.live_quality().to_json() == {"error": 0.5, "labelled": 2, "repeated": None}


def test_a_published_prediction_has_all_its_fields(tmp_path: Path) -> None:
    x = np.array([[2, 0, 0], [-2, 0, 0]], np.float32)
    with serving(make_server(served(tmp_path, 4, GOOD))) as outlet:
        outlet.submit(samples(11, x, ids=[None, "own"]))
    first, second = outlet.published
    assert first == {
        "id": "1-11", "key": "k", "ts": 11.0, "output": [pytest.approx(0.119203), pytest.approx(0.880797)],
        "label": "yes", "confidence": pytest.approx(0.880797), "model": 4,
    }  # fmt: skip
    assert (second["id"], second["label"]) == ("own", "no")


@given(
    ids=st.lists(st.text(), min_size=1, max_size=5),
    key=st.text(),
    names=st.lists(st.text(), min_size=2, max_size=4, unique=True),
    data=st.data(),
)
def test_payloads_are_json_that_reads_back_the_same(
    ids: list[str], key: str, names: list[str], data: st.DataObject
) -> None:
    n, finite = len(ids), {"allow_nan": False, "allow_infinity": False}
    output = np.array(
        [data.draw(st.lists(st.floats(width=32, **finite), min_size=2, max_size=2)) for _ in ids], np.float32
    )
    answer = np.array([[data.draw(st.integers(0, len(names) - 1))] for _ in ids], np.float32)
    times = np.array([data.draw(st.floats(-1e11, 1e11)) for _ in ids])
    confidence = output[:, 0] if data.draw(st.booleans()) else None
    made = Predictions(3, numbered(1, n), answer, output, confidence)
    for i, payload in enumerate(encode(made, ids, [key] * n, times, names)):
        value = json.loads(payload)
        assert (value["id"], value["key"], value["model"]) == (ids[i], key, 3)
        assert value["label"] == names[int(answer[i, 0])]
        assert value["output"] == pytest.approx(output[i].tolist(), rel=1e-5)
        assert value["ts"] == pytest.approx(times[i], abs=1e-5)
        sure = None if confidence is None else pytest.approx(float(confidence[i]), rel=1e-5)
        assert value["confidence"] == sure
        assert json.loads(json.dumps(value)) == value


def test_rows_without_an_answer_are_null_beside_others() -> None:
    output = np.array([[0.25, 0.75], [np.nan, 0.5], [np.inf, 1.0]], np.float32)
    answer = np.array([[1.0], [np.nan], [np.inf]], np.float32)
    made = Predictions(3, numbered(1, 3), answer, output, output[:, 1])
    values = [
        json.loads(payload)
        for payload in encode(made, ["a", "b", "c"], ["k", "k", "l"], np.arange(3.0), ["no", "yes"])
    ]
    assert [value["output"] for value in values] == [[0.25, 0.75], None, None]
    assert [value["label"] for value in values] == ["yes", None, None]
    assert [value["confidence"] for value in values] == [0.75, None, None]
    assert [(value["id"], value["key"], value["ts"]) for value in values[1:]] == [
        ("b", "k", 1.0),
        ("c", "l", 2.0),
    ]


# ---- the exchange ----------------------------------------------------------------------------


def test_exchanging_models_under_load_loses_nothing_and_keeps_the_order(tmp_path: Path) -> None:
    models = [served(tmp_path, version, GOOD) for version in range(1, 9)]
    predictor = make_server(models[0])
    x = inputs(50)
    with serving(predictor) as outlet:
        done = threading.Event()

        def exchanged(turn: int) -> bool:
            return predictor.champion.version >= turn

        def load() -> None:
            for number in range(400):
                outlet.submit(samples(1 + 50 * number, x))
                if number % 50 == 49:  # so fast that all might be over before the first exchange
                    wait_until(partial(exchanged, number // 50))
            done.set()

        def answered(count: int) -> bool:
            return len(outlet.published) > count

        sender = threading.Thread(target=load)
        sender.start()
        for turn in range(1, len(models)):
            wait_until(partial(answered, 2500 * turn - 1000))
            predictor.swap(models[turn])
        sender.join(30)
        assert done.is_set()
    assert [p["id"] for p in outlet.published] == [f"1-{offset}" for offset in range(1, 20_001)]
    versions = [p["model"] for p in outlet.published]
    assert sorted(versions) == versions
    assert set(versions) == set(range(1, 9))
    assert [p["label"] for p in outlet.published[:50]] == [["no", "yes"][int(c)] for c in labels(x)[:, 0]]
    assert outlet.loop.errors == 0
    assert predictor.predictions == 20_000


def test_a_failing_champion_gives_way_at_once_and_is_reported_once(tmp_path: Path) -> None:
    predictor = make_server(served(tmp_path, 1, GOOD))
    predictor.swap(served(tmp_path, 2, BROKEN))
    with serving(predictor) as outlet:
        outlet.submit(samples(1, inputs(40)))
        outlet.submit(samples(41, inputs(40)))
    assert [p["model"] for p in outlet.published] == [1] * 80
    ((version, why),) = outlet.failed
    assert version == 2
    assert "not finite" in why
    assert predictor.champion.version == 1
    assert predictor.previous is None
    assert outlet.loop.errors == 0


def test_without_a_predecessor_the_failure_is_raised_and_the_loop_goes_on(tmp_path: Path) -> None:
    predictor = make_server(served(tmp_path, 1, BROKEN))
    with pytest.raises(ModelError, match="not finite"):
        predictor.predict(numbered(1, 2), inputs(2))
    with serving(predictor) as outlet:
        outlet.submit(samples(1, inputs(4)))
        wait_until(lambda: outlet.loop.errors == 1)
        predictor.swap(served(tmp_path, 2, GOOD))
        outlet.submit(samples(5, inputs(4)))
    assert [p["id"] for p in outlet.published] == ["1-5", "1-6", "1-7", "1-8"]


class Replaced:
    """A model in whose place another is put while it is failing."""

    def __init__(self, predictor: Predictor, successor: ServedModel) -> None:
        self._predictor, self._successor = predictor, successor

    def predict(self, x: Floats) -> Floats:
        self._predictor.swap(self._successor)
        raise ModelError(f"failed on {len(x)} rows")


def test_a_model_that_fails_while_it_is_being_replaced_leaves_the_answer_to_its_successor(
    tmp_path: Path,
) -> None:
    predictor = make_server(served(tmp_path, 1, GOOD))
    predictor.swap(ServedModel(2, Replaced(predictor, served(tmp_path, 3, GOOD))))
    assert predictor.predict(numbered(1, 4), inputs(4)).version == 3
    assert predictor.champion.version == 3


# ---- live quality and probation --------------------------------------------------------------


def test_live_quality_is_that_of_the_answers_given(tmp_path: Path) -> None:
    predictor = make_server(served(tmp_path, 1, GOOD))
    assert predictor.live_quality().to_json() == {"accuracy": None, "labelled": 0, "repeated": None}
    x = inputs(100)
    with serving(predictor) as outlet:
        outlet.submit(samples(1, x, [*classes(x[:60]), *[None] * 40]))
        late = [
            LabelUpdate(61 + i, 1.0 - float(c), 0.0) for i, c in enumerate(labels(x[60:80])[:, 0])
        ]  # wrong
        outlet.loop.label(late)
        outlet.loop.label(late)  # a second time they do not count
        outlet.loop.label([LabelUpdate(9999, 1.0, 0.0)])  # nor do those of samples never answered
    assert predictor.live_quality().to_json().items() >= {"accuracy": 0.75, "labelled": 80}.items()
    assert predictor.live_error() is None, "so few say nothing"


@pytest.mark.parametrize(
    ("old", "new", "passed"), [(GOOD, BAD, False), (BAD, GOOD, True), (GOOD, GOOD, True)]
)
@pytest.mark.parametrize("late", [False, True])
def test_probation_compares_both_models_on_live_samples(
    tmp_path: Path, old: float, new: float, passed: bool, late: bool
) -> None:
    predictor = make_server(served(tmp_path, 1, old), probation=100)
    predictor.swap(served(tmp_path, 2, new))
    x = inputs(200)
    with serving(predictor) as outlet:
        outlet.submit(samples(1, x, None if late else classes(x)))
        if late:
            outlet.loop.label([LabelUpdate(1 + i, float(c), 0.0) for i, c in enumerate(labels(x)[:, 0])])
    assert outlet.outcomes == [passed]
    assert [p["model"] for p in outlet.published] == [2] * 200


@pytest.mark.parametrize(("drop", "passed"), [(0.1, False), (0.5, True)])
def test_a_probation_allows_a_fall_as_large_as_is_configured(
    tmp_path: Path, drop: float, passed: bool
) -> None:
    """Two of three labels are as the predecessor says, one is as the new model says: a third worse."""
    predictor = make_server(served(tmp_path, 1, GOOD), probation=100, probation_drop=drop)
    predictor.swap(served(tmp_path, 2, BAD))
    x = inputs(200)
    given = [float(c) if i % 3 else 1.0 - float(c) for i, c in enumerate(labels(x)[:, 0])]
    with serving(predictor) as outlet:
        outlet.submit(samples(1, x, given))
    assert outlet.outcomes == [passed]


def test_a_probation_that_is_switched_off_has_no_outcome(tmp_path: Path) -> None:
    x = inputs(200)
    for watch, length in ((False, 100), (True, 0)):
        predictor = make_server(served(tmp_path, 1, GOOD), probation=length)
        predictor.swap(served(tmp_path, 2, BAD), watch=watch)
        predictor.predict(numbered(1, 200), x)
        predictor.shadow(numbered(1, 200), x)
        assert predictor.label(numbered(1, 200), labels(x)) is None


def test_a_world_that_changes_for_both_models_rolls_nothing_back(tmp_path: Path) -> None:
    predictor = make_server(served(tmp_path, 1, GOOD), probation=100)
    predictor.swap(served(tmp_path, 2, GOOD))
    x = inputs(200)
    predictor.predict(numbered(1, 200), x)
    predictor.shadow(numbered(1, 200), x)
    assert predictor.label(numbered(1, 200), 1 - labels(x)) is True


def test_a_probation_counts_only_answers_of_its_own_pair(tmp_path: Path) -> None:
    """Labels that come late belong to the model that answered, not to the one serving by then."""
    predictor = make_server(served(tmp_path, 1, GOOD), probation=100)
    predictor.swap(served(tmp_path, 2, BAD))
    x = inputs(200)
    predictor.predict(numbered(1, 200), x)
    predictor.shadow(numbered(1, 200), x)
    predictor.swap(served(tmp_path, 3, GOOD))
    assert predictor.label(numbered(1, 200), labels(x)) is None
    predictor.predict(numbered(201, 200), x)
    predictor.shadow(numbered(201, 200), x)
    assert predictor.label(numbered(201, 200), labels(x)) is True


class Failing:
    """A model that no longer answers."""

    def predict(self, x: Floats) -> Floats:
        raise ModelError(f"failed on {len(x)} rows")


def test_a_predecessor_that_fails_beside_the_champion_costs_no_prediction(tmp_path: Path) -> None:
    predictor = make_server(ServedModel(1, Failing()), probation=100)
    predictor.swap(served(tmp_path, 2, GOOD))
    x = inputs(100)
    with serving(predictor) as outlet:
        outlet.submit(samples(1, x, classes(x)))
    assert [p["id"] for p in outlet.published] == [f"1-{offset}" for offset in range(1, 101)]
    assert (outlet.loop.errors, outlet.outcomes) == (0, [])
    assert predictor.live_quality().to_json().items() >= {"accuracy": 1.0, "labelled": 100}.items()
    assert predictor.live_error() == 0.0


def test_the_newest_label_known_at_a_prediction_is_what_repeating_would_have_answered(tmp_path: Path) -> None:
    predictor = make_server(served(tmp_path, 1, GOOD))
    x, offsets = inputs(6), numbered(1, 6)
    y = np.array([0, 1, 1, 0, 0, 0], np.float32).reshape(-1, 1)
    predictor.predict(offsets[:2], x[:2])
    predictor.label(offsets[:2], y[:2])  # nothing was known when these were answered
    assert predictor.live_quality().to_json()["repeated"] is None
    predictor.predict(offsets[2:5], x[2:5])
    predictor.label(offsets[2:5], y[2:5])  # the label of the second: right, wrong, wrong
    predictor.predict(offsets[5:], x[5:])
    predictor.label(offsets[5:], y[5:])
    assert predictor.live_quality().to_json()["repeated"] == 0.5


def test_a_forecast_is_compared_with_the_last_value_and_mixed_with_it(tmp_path: Path) -> None:
    """A model that answers with noise gives way to the last value, which the next value always is."""
    schema = Schema((), WIDTH, "forecast", forecast=(1,))
    mix = mix_of(schema)
    model = InferenceModel(write(tmp_path / "m.onnx", 3.0, outputs=1))
    champion = ServedModel(1, StreamModel.of(model, mix))
    predictor = Predictor(
        ServingConfig().with_constants(remember=5000), GateConfig(), schema, champion, mix=mix
    )
    x = inputs(1000)
    for i in range(1000):
        made = predictor.predict(numbered(i + 1, 1), x[i : i + 1])
        assert made.experts is not None
        assert made.experts[0, 0] == x[i, 1]
        predictor.label(numbered(i + 1, 1), x[i : i + 1, 1:2])
    assert predictor.live_quality().to_json()["repeated"] == 0
    assert made.experts is not None
    last, raw = made.experts[0, :, 0]
    assert abs(made.output[0, 0] - last) < 0.05 * abs(raw - last)


# ---- the thread ------------------------------------------------------------------------------


def test_the_loop_beats_while_idle_and_while_busy(tmp_path: Path) -> None:
    with serving(make_server(served(tmp_path, 1, GOOD))) as outlet:
        wait_until(lambda: outlet.watchdog.beats >= 1)
        before = outlet.watchdog.beats
        outlet.submit(samples(1, inputs(4)))
        wait_until(lambda: outlet.watchdog.beats > before)
    assert outlet.watchdog.beats > before


def test_latencies_are_those_of_the_newest(tmp_path: Path) -> None:
    latencies = Latencies()
    assert latencies.percentiles() == LatencyPercentiles(None, None)
    latencies.add(np.full(10_000, 5.0))
    latencies.add(np.full(4096, 0.002))
    assert latencies.percentiles() == LatencyPercentiles(2.0, 2.0)
    with serving(make_server(served(tmp_path, 1, GOOD))) as outlet:
        outlet.submit(samples(1, inputs(50)))
    measured = outlet.loop.latencies.percentiles()
    assert 0 < (measured.p50_ms or 0) <= (measured.p99_ms or 0) < 5000
