"""From the first sample on: what an untrained model says, the head that learns each label, the first swap."""

from __future__ import annotations

import secrets
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.config import GateConfig, ServingConfig
from edged.device.serving.head_teacher import HeadTeacher
from edged.device.serving.predictor import Predictor
from edged.domain.judging.expert_mix import ExpertMix, StreamModel
from edged.domain.judging.outputs import probabilities
from edged.domain.judging.ridge_head import Learned, RidgeHead
from edged.domain.protocols import ServedModel
from edged.domain.seeded_rng import is_holdout
from edged.domain.stream.schema import Schema
from edged.engines.inference import InferenceModel
from edged.storage.samples.label_history import LabelHistory
from edged.storage.samples.log import SampleLog
from tests.device.linear import GOOD, SCHEMA, classes, inputs, numbered, samples, write
from tests.running_device import Device, Listener, running, wait_until
from tests.steered import data

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto

STREAM = {"features": 2, "classes": ["cold", "hot"], "label": "y", "id": "id", "context": [3, 12, 48]}


def send(listener: Listener, *values: float, label: str | None = None) -> list[dict[str, Any]]:
    """Send samples one by one; the predictions of them."""
    told = []
    for value in values:
        name = secrets.token_hex(4)
        fields = {"id": name, "x": [value, -value]} | ({} if label is None else {"y": label})
        listener.send("sensors/a", fields)
        found: list[dict[str, Any]] = []

        def answered(name: str = name, found: list[dict[str, Any]] = found) -> bool:
            found[:] = [made for made in list(listener.messages["predictions"]) if made["id"] == name]
            return bool(found)

        listener.wait(answered)
        told += found[:1]
    return told


@pytest.mark.slow
def test_two_labels_a_class_are_enough_also_after_kill_9_until_they_are_wiped(
    broker: Mosquitto, tmp_path: Path
) -> None:
    device = Device(tmp_path, broker.port, STREAM, training={"new_labels": 0, "every": None})
    with running(device, broker.port) as listener:
        (first,) = send(listener, 5.0)  # of the next sample the label is kept for judging
        assert (first["untrained"], first["missing"]) == (True, "0 of 4 labels")
        assert first["confidence"] == pytest.approx(0.5)
        send(listener, 1.0, 1.1, 1.2, label="cold")
        (third,) = send(listener, 9.0, label="hot")
        assert third["missing"] == "2 of 4 labels"
        wait_until(lambda: data(listener, "status")["model"]["missing"] == "3 of 4 labels")
        send(listener, 9.5, label="hot")
        told = send(listener, 1.1, 9.2)
        assert [one["label"] for one in told] == ["cold", "hot"]
        assert "untrained" not in told[0]
        wait_until(lambda: data(listener, "status")["model"]["missing"] is None)
        device.stop(signal.SIGKILL)
    with running(device, broker.port) as listener:
        assert [one["label"] for one in send(listener, 1.1, 9.2)] == ["cold", "hot"]
        data(listener, "wipe", what=["labels"], confirm="rig")
        (last,) = send(listener, 1.1)
        assert last["missing"] == "0 of 4 labels"


@pytest.mark.slow
def test_the_first_model_takes_over_after_tens_of_labels(broker: Mosquitto, tmp_path: Path) -> None:
    device = Device(tmp_path, broker.port, STREAM)
    rng = np.random.default_rng(0)
    with running(device, broker.port) as listener:
        for _ in range(45):
            hot = bool(rng.random() < 0.5)
            x = rng.normal(9.0 if hot else 1.0, 1.0, 2).tolist()
            listener.send("sensors/a", {"x": x, "y": "hot" if hot else "cold"})
        listener.wait(lambda: listener.events("model_promoted"), 60)
        assert listener.events("model_promoted")[0]["version"] == 2
        assert not listener.events("model_rejected")


def test_labels_that_are_taken_away_are_forgotten_exactly(tmp_path: Path) -> None:
    x = inputs(200)
    labels = np.asarray(classes(x), np.float32).reshape(-1, 1)
    model = InferenceModel(write(tmp_path / "m.onnx", GOOD))
    mix = ExpertMix(head=RidgeHead.of(SCHEMA))
    with SampleLog.open(tmp_path / "samples.db", SCHEMA, holdout=0.05) as log:
        teacher = HeadTeacher(mix.head, log, SCHEMA, 0.05)
        champion = ServedModel(1, StreamModel(model, mix, random=True))
        predictor = Predictor(ServingConfig(), GateConfig(), SCHEMA, champion, mix=mix, teacher=teacher)
        log.commit(samples(1, x, classes(x)))
        predictor.predict(numbered(1, 200), x)
        predictor.label(numbered(1, 200), labels)
        history = LabelHistory(log, SCHEMA, 1 << 20)
        action = history.begin_interval("c", "k", 1.0, 70.0, None, 1.0)
        while action.open:
            history.go_on(action)
        teacher.forget()
        rows = inputs(50, 7)
        found = predictor.predict(numbered(201, 50), rows).output
    left = (np.arange(200) >= 70) & ~is_holdout(numbered(1, 200), 0.05)
    other = RidgeHead.of(SCHEMA)
    assert other is not None
    other.learn(x[left], labels[left, 0].astype(np.int64))
    assert other.labels == mix.head.labels  # type: ignore[union-attr]
    np.testing.assert_allclose(found, probabilities(other.likelihoods(rows)), atol=1e-6)


def test_beside_a_model_of_ones_own_the_head_corrects_what_it_gets_wrong(tmp_path: Path) -> None:
    x = inputs(400)
    labels = np.asarray(classes(x), np.float32).reshape(-1, 1)
    wrong = InferenceModel(write(tmp_path / "m.onnx", -GOOD))
    right: dict[bool, list[bool]] = {True: [], False: []}
    for head in (None, RidgeHead.of(SCHEMA)):
        mix = ExpertMix(head=head)
        with SampleLog.open(tmp_path / f"{head is None}.db", SCHEMA) as log:
            teacher = HeadTeacher(mix.head, log, SCHEMA, 0.05)
            champion = ServedModel(1, StreamModel(wrong, mix))
            predictor = Predictor(ServingConfig(), GateConfig(), SCHEMA, champion, mix=mix, teacher=teacher)
            for i in range(400):
                made = predictor.predict(numbered(i + 1, 1), x[i : i + 1])
                predictor.label(numbered(i + 1, 1), labels[i : i + 1], x[i : i + 1])
                right[head is None].append(bool(made.answers[0, 0] == labels[i, 0]))
    assert np.mean(right[True]) == 0
    assert np.mean(right[False][200:]) > 0.9


def test_a_class_that_the_network_has_never_seen_is_answered_from_its_second_label_on(tmp_path: Path) -> None:
    schema = Schema((), 3, "classify", ("no", "yes", "new"))
    x, later = inputs(100), inputs(20, 1)
    later[:, 2] = 9.0  # as nothing before
    network = InferenceModel(write(tmp_path / "m.onnx", 20.0))
    labels: list[float | tuple[float, ...] | None] = [float(value > 0) for value in x[:, 0]]
    answered: dict[Learned | None, list[float]] = {}
    for learned in (Learned(100), Learned(500, 2), None):
        mix = ExpertMix(head=RidgeHead.of(schema))
        with SampleLog.open(tmp_path / f"{len(answered)}.db", schema, holdout=0.0) as log:
            log.commit(samples(1, x, labels))
            teacher = HeadTeacher(mix.head, log, schema, 0.0)
            champion = ServedModel(1, StreamModel(network, mix, learned=learned))
            predictor = Predictor(ServingConfig(), GateConfig(), schema, champion, mix=mix, teacher=teacher)
            before = predictor.predict(numbered(101, 10), later[:10]).answers[:, 0]
            assert 2.0 not in before
            log.commit(samples(101, later[:10], [2.0] * 10))
            teacher.forget()  # as a labelled interval does
            answered[learned] = predictor.predict(numbered(111, 10), later[10:]).answers[:, 0].tolist()
            old = predictor.predict(numbered(121, 50), inputs(50, 2)).answers[:, 0]
            assert (old == (inputs(50, 2)[:, 0] > 0)).mean() > 0.9
            assert mix.head is not None
            assert [mix.head.beyond(one) for one in (Learned(100), Learned(500), Learned(500, 2))] == [
                [2],
                [],
                [2],
            ]
    assert answered[Learned(100)] == answered[Learned(500, 2)]
    assert answered[Learned(100)].count(2.0) >= 8  # the head does not know better of the others
    assert answered[None].count(2.0) < 5, "a model of which nothing is known keeps its say"


def test_a_model_of_long_ago_keeps_its_say_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edged.device.serving.head_teacher.NEWEST", 50)
    x = inputs(200)
    network = InferenceModel(write(tmp_path / "m.onnx", GOOD))
    with SampleLog.open(tmp_path / "samples.db", SCHEMA, holdout=0.0) as log:
        log.commit(samples(1, x, classes(x)))
        mix = ExpertMix(head=RidgeHead.of(SCHEMA))
        teacher = HeadTeacher(mix.head, log, SCHEMA, 0.0)  # it learns the last 50 labels alone
        champion = ServedModel(1, StreamModel(network, mix, learned=Learned(100)))
        predictor = Predictor(ServingConfig(), GateConfig(), SCHEMA, champion, mix=mix, teacher=teacher)
        made = predictor.predict(numbered(201, 50), inputs(50, 3))
        assert made.answers[:, 0].tolist() == classes(inputs(50, 3))
        assert mix.head is not None
        assert [mix.head.beyond(one) for one in (Learned(100), Learned(160), Learned(100, 1))] == [
            [],
            [],
            [1],
        ]


def test_no_run_begins_on_labels_of_a_single_class(tmp_path: Path) -> None:
    mix, model = ExpertMix(head=RidgeHead.of(SCHEMA)), InferenceModel(write(tmp_path / "m.onnx", GOOD))
    with SampleLog.open(tmp_path / "samples.db", SCHEMA, holdout=0.0) as log:
        teacher = HeadTeacher(mix.head, log, SCHEMA, 0.0)
        champion = ServedModel(1, StreamModel(model, mix, random=True))
        predictor = Predictor(ServingConfig(), GateConfig(), SCHEMA, champion, mix=mix, teacher=teacher)
        assert not predictor.knows_one_class, "nothing is known yet"
        for first, label, alone in ((1, 1.0, True), (11, 0.0, False)):
            log.commit(samples(first, inputs(10), [label] * 10))
            teacher.forget()
            predictor.predict(numbered(first, 10), inputs(10))
            assert predictor.knows_one_class == alone
