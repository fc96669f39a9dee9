"""With `serving.coverage` predictions have sets, judged by what was promised when they were made."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.bundles.graph.templates import mlp
from edged.bundles.source.standardise import Statistics
from edged.config import GateConfig, ServingConfig
from edged.device.serving.prediction_messages import encode
from edged.device.serving.predictor import Predictor
from edged.device.web.page.history import choices
from edged.domain.judging.prediction_sets import PredictionSets
from edged.domain.stream.schema import Schema
from edged.storage.models.registry import Registry
from edged.workbench.demo.broker import free_port
from tests.building import build
from tests.device.linear import BAD, GOOD, SCHEMA, WIDTH, classes, inputs, numbered, served
from tests.device.web.client import Client
from tests.running_device import Device, running
from tests.steered import data

if TYPE_CHECKING:
    from edged.domain.judging.predictions import Predictions
    from tests.device.linear import Floats
    from tests.mosquitto import Mosquitto as Broker

PATIENCE = 120.0  # seconds, for a machine that has much else to do
VALUES = Schema((), WIDTH, "regress", (), 2)

LABELS = {"topic": "labels/#", "path": "y", "join": "id"}


def predictor(folder: Path, schema: Schema = SCHEMA, coverage: float | None = 0.9) -> Predictor:
    sets = None if coverage is None else PredictionSets(coverage, schema)
    return Predictor(
        ServingConfig().with_constants(remember=500), GateConfig(), schema, served(folder, 1, GOOD), sets=sets
    )


def test_what_is_too_uncertain_is_none_of_the_classes(tmp_path: Path) -> None:
    config = ServingConfig(min_confidence=0.7).with_constants(remember=500)
    made = Predictor(config, GateConfig(), SCHEMA, served(tmp_path, 1, GOOD)).predict(
        numbered(1, 300), inputs(300)
    )
    told = published(made, SCHEMA)
    assert {prediction["label"] is None for prediction in told} == {True, False}
    for prediction, output in zip(told, made.output, strict=True):
        assert (prediction["label"] is None) == (output.max() < 0.7)
        assert prediction["confidence"] == pytest.approx(output.max(), rel=1e-4)
        assert "set" not in prediction
    assert {choices(made, row) is None for row in range(300)} == {True, False}


def labels(x: Floats) -> Floats:
    return np.asarray(classes(x), np.float32).reshape(-1, 1)


def published(made: Predictions, schema: Schema) -> list[dict[str, Any]]:
    n = len(made.offsets)
    payloads = encode(made, [str(i) for i in range(n)], ["k"] * n, np.arange(float(n)), schema.classes)
    return [json.loads(payload) for payload in payloads]


def test_a_prediction_says_its_set_and_has_a_label_where_that_is_one_class(tmp_path: Path) -> None:
    made = predictor(tmp_path).predict(numbered(1, 300), inputs(300))
    told = published(made, SCHEMA)
    assert {prediction["coverage"] for prediction in told} == {0.9}
    assert {len(prediction["set"]) for prediction in told} == {1, 2}
    for prediction, output in zip(told, made.output, strict=True):
        if len(prediction["set"]) == 1:
            assert prediction["set"] == [prediction["label"]] == [SCHEMA.classes[output.argmax()]]
        else:
            assert prediction["label"] is None
    sure = [p["confidence"] for p in told if len(p["set"]) == 1]
    assert max(p["confidence"] for p in told if len(p["set"]) == 2) < np.mean(sure)


def test_without_coverage_there_is_neither(tmp_path: Path) -> None:
    server = predictor(tmp_path, coverage=None)
    made = server.predict(numbered(1, 20), inputs(20))
    assert made.promise is None
    assert all(not {"set", "coverage"} & set(prediction) for prediction in published(made, SCHEMA))
    server.label(numbered(1, 20), labels(inputs(20)))
    assert "coverage" not in server.live_quality().to_json()


def test_a_set_is_judged_as_it_was_whatever_serves_when_its_label_comes(tmp_path: Path) -> None:
    server, x = predictor(tmp_path), inputs(400)
    made = server.predict(numbered(1, 200), x[:200])
    assert made.promise is not None
    server.swap(served(tmp_path, 2, BAD), watch=False)
    server.predict(numbered(201, 200), x[200:])
    assert server.live_quality().to_json()["coverage"] is None
    server.label(numbered(1, 200), labels(x[:200]))
    assert server.live_quality().to_json()["coverage"] == made.promise.covers(labels(x[:200])).mean() > 0.9
    server.label(numbered(1, 200), labels(x[:200]))
    assert server.live_quality().to_json()["labelled"] == 200, "each is joined once"


def test_sets_follow_labels_to_a_model_that_is_always_wrong(tmp_path: Path) -> None:
    server = predictor(tmp_path)
    server.swap(served(tmp_path, 2, BAD), watch=False)
    shares = []
    for start in range(0, 4000, 40):
        x = inputs(40, start)
        made = server.predict(numbered(1 + start, 40), x)
        assert made.promise is not None
        shares.append(made.promise.covers(labels(x)).mean())
        server.label(numbered(1 + start, 40), labels(x))
    assert shares[0] < 0.6
    assert 0.87 < np.mean(shares[25:]) < 0.93


def test_values_have_intervals_once_there_are_labels(tmp_path: Path) -> None:
    model = served(tmp_path, 1, 1.0)
    server = Predictor(
        ServingConfig().with_constants(remember=500),
        GateConfig(),
        VALUES,
        model,
        sets=PredictionSets(0.9, VALUES),
    )
    x = inputs(300)
    first = server.predict(numbered(1, 100), x[:100])
    assert {prediction["set"] for prediction in published(first, VALUES)} == {None}
    y = first.answers + np.random.default_rng(0).normal(0, [1, 5], (100, 2)).astype(np.float32)
    server.label(numbered(1, 100), y)
    told = published(server.predict(numbered(101, 200), x[100:]), VALUES)
    for prediction in told:
        assert prediction["coverage"] == 0.9
        for value, (low, high) in zip(prediction["output"], prediction["set"], strict=True):
            assert low < value < high
    widths = np.mean([[high - low for low, high in prediction["set"]] for prediction in told], axis=0)
    assert 2.5 < widths[0] < 4.5
    assert 4 < widths[1] / widths[0] < 6


def test_a_row_without_an_answer_has_no_set(tmp_path: Path) -> None:
    x = inputs(30)
    x[7] = np.inf
    told = published(predictor(tmp_path).predict(numbered(1, 30), x), SCHEMA)
    assert [i for i, prediction in enumerate(told) if prediction["set"] is None] == [7]
    assert (told[7]["label"], told[7]["output"], told[7]["coverage"]) == (None, None, 0.9)


# ---- the daemon ------------------------------------------------------------------------------


def chances(prediction: dict[str, Any]) -> Any:
    """Probabilities of the classes, as exact as numpy wants them."""
    return np.array(prediction["output"]) / sum(prediction["output"])


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_daemon_publishes_sets_tells_how_many_were_right_and_goes_on_after_a_restart(
    broker: Broker, tmp_path: Path
) -> None:
    bundle = build(
        mlp(2, 3, (8,)), tmp_path / "bundle", loss="cross_entropy", standardise=Statistics.identity(2)
    )
    device = Device(
        tmp_path, broker.port,
        {"features": 2, "classes": ["a", "b", "c"], "id": "id", "label": LABELS},
        model={"bundle": str(bundle.path)}, training={"new_labels": 0},
        web={"listen": f"127.0.0.1:{(port := free_port())}"}, serving={"coverage": 0.9},
        labels={"request_share": 0.05, "request_random": 0.0},
    )  # fmt: skip
    rng = np.random.default_rng(0)
    x, y = rng.normal(0, 3, (900, 2)), ""
    with running(device, broker.port) as listener:
        told = listener.messages["predictions"]
        for start in range(0, 900, 100):
            for i in range(start, start + 100):
                listener.send("sensors/s", {"x": x[i].tolist(), "id": f"s{i}"})
            listener.wait(lambda end=start + 100: len(told) >= end, PATIENCE)  # type: ignore[misc]
            y += "".join(str(rng.choice(list("abc"), p=chances(prediction))) for prediction in told[start:])
            for i in range(max(0, start - 100), start):
                listener.send("labels/l", {"id": f"s{i}", "y": y[i]})
        metrics = listener.messages["metrics"]
        listener.wait(lambda: metrics and metrics[-1]["live"]["labelled"] == 800, PATIENCE)
        live = listener.messages["metrics"][-1]["live"]
        asked = listener.events("label_requested")
        quality = listener.request("status")["data"]["model"]["quality"]
        page = Client(port)("GET", "/metrics").body.decode()
    assert {prediction["coverage"] for prediction in told} == {0.9}
    assert {prediction["label"] is None for prediction in told} == {True, False}
    assert all((p["label"] is None) == (len(p["set"]) != 1) for p in told)
    covered = np.mean([y[i] in told[i]["set"] for i in range(800)])
    assert live["coverage"] == quality["coverage"] == pytest.approx(covered)
    (gauge,) = re.findall(r"^edged_live_coverage_ratio (.*)$", page, re.MULTILINE)
    assert float(gauge) == pytest.approx(covered)
    assert 0.88 < covered < 0.92
    assert asked
    assert all(len(request["set"]) != 1 for request in asked)

    with Registry.open(device.state) as registry:
        stored = registry.get_value("sets")
    assert stored["trust"] != PredictionSets(0.9, Schema((), 2, "classify", ("a", "b", "c"))).state()["trust"]
    with running(device, broker.port):
        pass
    with Registry.open(device.state) as registry:
        assert registry.get_value("sets") == stored
    with running(device, broker.port) as listener:
        data(listener, "wipe", confirm="rig", what=["labels"])
    with Registry.open(device.state) as registry:
        assert registry.get_value("sets") == stored | {"newest": None}
    device.cli("wipe", str(device.path), "--labels", "--yes")
    with Registry.open(device.state) as registry:
        assert registry.get_value("sets") is None
