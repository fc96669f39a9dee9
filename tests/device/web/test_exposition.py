"""The text format of Prometheus: escaping, numbers, histograms."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from edged.device.web.api import metrics
from edged.device.web.api.inference import Inference
from edged.device.web.api.prometheus_text import Histogram, PrometheusText
from tests.device.serving.test_anomalies import SCHEMA

DEPLOY = Path(__file__).parents[3] / "deploy"


def test_labels_are_escaped() -> None:
    page = PrometheusText()
    page.family("gauge", "g", "About.", [({"a": 'x"\\\n'}, 1)])
    assert page.text().splitlines()[-1] == 'g{a="x\\"\\\\\\n"} 1'


def test_numbers_are_written_as_go_reads_them() -> None:
    page = PrometheusText()
    values = [1, 0.1, 1e300, float("nan"), float("inf"), -float("inf"), True]
    page.family("gauge", "g", "About.", [({"i": str(i)}, value) for i, value in enumerate(values)])
    written = [line.rpartition(" ")[2] for line in page.text().splitlines()[2:]]
    assert written == ["1", "0.1", "1e+300", "NaN", "+Inf", "-Inf", "1"]


def test_what_has_no_value_has_no_family() -> None:
    page = PrometheusText()
    page.family("gauge", "g", "About.", [({}, None)])
    page.family("counter", "c_total", "About.", [])
    assert page.text() == ""


def test_a_histogram_counts_up_to_each_bound() -> None:
    histogram = Histogram((0.1, 1.0))
    histogram.add_many(np.array([0.1, 0.5, 1.0]))
    histogram.add(3.0)
    page = PrometheusText()
    page.family("histogram", "h_seconds", "About.", [({"v": "1"}, histogram)])
    assert page.text().splitlines()[2:] == [
        'h_seconds_bucket{v="1",le="0.1"} 1',
        'h_seconds_bucket{v="1",le="1.0"} 3',
        'h_seconds_bucket{v="1",le="+Inf"} 4',
        'h_seconds_sum{v="1"} 4.6',
        'h_seconds_count{v="1"} 4',
    ]


def test_versions_that_are_not_loaded_any_more_go() -> None:
    parts: Any = None  # nothing is predicted
    inference = Inference(model="rig", schema=SCHEMA, predictor=parts, bridge=parts)
    for version in (1, 2, 3):
        inference.durations[version].add(0.01)
        inference.outcomes[version, "ok"] += 1
    inference.keep_only([2, 3])
    assert set(inference.durations) == {2, 3}
    assert set(inference.outcomes) == {(2, "ok"), (3, "ok")}


def test_dashboard_and_alerts_ask_for_metrics_that_there_are() -> None:
    known = {*metrics.OF_DEVICE, *metrics.OF_STREAM}
    for file in ("grafana/edged.json", "prometheus/edged.rules.yml"):
        asked = set(re.findall(r"\bedged_[a-z0-9_]+", (DEPLOY / file).read_text(encoding="utf-8")))
        assert len(asked) > 10
        assert {name.removesuffix("_bucket") for name in asked} <= known
    dashboard = json.loads((DEPLOY / "grafana" / "edged.json").read_text(encoding="utf-8"))
    assert (dashboard["id"], dashboard["uid"]) == (None, "edged")
    assert [variable["name"] for variable in dashboard["templating"]["list"]] == ["datasource", "instance"]


def test_every_alert_is_tested() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "edged.rules.yml").read_text(encoding="utf-8"))
    tests = yaml.safe_load((DEPLOY / "prometheus" / "edged.rules.test.yml").read_text(encoding="utf-8"))
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    fired = {
        case["alertname"] for test in tests["tests"] for case in test["alert_rule_test"] if case["exp_alerts"]
    }
    assert fired == alerts
