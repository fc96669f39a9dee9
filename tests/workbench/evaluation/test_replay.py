"""Prequential evaluation: what is scored, what may be seen when, and what is refused."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edged.bundles.graph.templates import mlp
from edged.bundles.source.standardise import Statistics
from edged.config import loader
from edged.domain.events import TrainingStarted
from edged.engines.inference import InferenceModel
from edged.errors import ConfigError
from edged.storage.models.registry import Registry
from edged.storage.recordings.reader import read_stream
from edged.workbench.evaluation import run
from edged.workbench.evaluation.replay import Replay
from edged.workbench.evaluation.score import report
from edged.workbench.evaluation.stream import LabelOptions, shape_stream
from tests.building import build
from tests.commands import edged, strict_json, two_classes, write_config
from tests.constants import loaded
from tests.device.linear import GOOD, write
from tests.faults.tracing import require_strace
from tests.streams import stream

KEYS = {
    "samples", "scored", "quarantined", "metric", "frozen", "no_change", "windows", "trainings",
    "promotions", "rejections", "rollbacks", "drifts", "labels_used", "forgetting", "engine",
    "seconds", "train_seconds", "peak_rss_mb", "anomaly", "warnings",
    "experts", "calibration_error", "coverage",
}  # fmt: skip
TIMES = {"seconds", "train_seconds", "peak_rss_mb"}
CLASSIFY = {"features": 4, "classes": 2}
NEVER = {"every": None, "new_labels": 0}
SELDOM = {"new_labels": 200}
"""For what does not depend on how often is trained: a run costs as much as hundreds of samples."""
OPEN_GATE = {"min_gain": -1.0, "max_regret": 1.0, "min_holdout": 1, "probation": 0}


def save(folder: Path, **arrays: Any) -> Path:
    path = folder / "stream.npz"
    np.savez(path, **arrays)
    return path


def evaluate(
    folder: Path,
    data: Path,
    stream_section: dict[str, Any],
    *,
    options: LabelOptions | None = None,
    **sections: Any,
) -> Mapping[str, Any]:
    config = loaded(folder, stream_section, **sections)
    return run(config, data, options or LabelOptions()).to_json()


def replay(
    folder: Path, data: Path, stream_section: dict[str, Any], *, options: LabelOptions, **sections: Any
) -> tuple[Replay, Mapping[str, Any]]:
    """The replay itself, for what the report does not tell."""
    sections = {"storage": {"keep_models": 1000}} | sections
    config = loaded(folder, stream_section, **sections)
    shaped = shape_stream(read_stream(data), config, options)
    replayed = Replay(config, shaped, options, folder / "replay")
    replayed.run()
    return replayed, report(replayed).to_json()


def without_times(report: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: value for key, value in report.items() if key not in TIMES}


# ---- the report ----------------------------------------------------------------------------------


def test_the_command_prints_the_report_of_the_contract_and_keeps_it(tmp_path: Path) -> None:
    x, y = two_classes(2400)
    config = write_config(tmp_path, CLASSIFY, training={"new_labels": 400})
    data, out = save(tmp_path, X=x, y=y), tmp_path / "a" / "out"
    answer = edged("evaluate", config, "--data", data, "-o", out, "--json")
    assert answer.code == 0, answer.err
    report = answer.json
    assert set(report) == KEYS
    for name in ("metric", "frozen", "no_change"):
        assert set(report[name]) == {"accuracy", "balanced_accuracy", "kappa"}
    assert (report["samples"], report["scored"], report["labels_used"]) == (2400, 2160, 2060)
    assert [len(report["windows"]), report["drifts"], report["engine"]] == [3, [], "portable"]
    assert np.dot(report["windows"], [1000, 1000, 160]) / 2160 == pytest.approx(report["metric"]["accuracy"])
    assert report["promotions"] + report["rejections"] == report["trainings"] > 0
    assert report["metric"]["accuracy"] > 0.95
    assert 0 < report["train_seconds"] < report["seconds"] < 100
    assert 20 < report["peak_rss_mb"] < 2000
    kept = strict_json((out / "report.json").read_text())
    assert kept.pop("history")["curves"]["starts"][0] == 240
    assert kept == report
    again = edged("evaluate", config, "--data", data, "-o", out, "--json")
    assert again.code == 2
    assert str(out) in again.problem


def test_it_waits_for_no_disk(tmp_path: Path) -> None:
    require_strace()
    x, y = two_classes(600)
    build(mlp(4, 2), tmp_path / "bundle", loss="cross_entropy", standardise=Statistics.identity(4))
    config = write_config(tmp_path, CLASSIFY, model={"bundle": str(tmp_path / "bundle")})
    told = tmp_path / "calls"
    done = subprocess.run(
        ["strace", "-f", "-o", told, "-e", "trace=fsync,fdatasync", sys.executable, "-m", "edged", "evaluate",
         config, "--data", save(tmp_path, X=x, y=y), "-o", tmp_path / "out", "--json"],
        capture_output=True, check=True, timeout=120,
    )  # fmt: skip
    assert json.loads(done.stdout)["promotions"] > 0
    assert [line for line in told.read_text().splitlines() if "sync" in line] == []


def test_a_seed_decides_everything_but_the_times(tmp_path: Path) -> None:
    x, y = two_classes(800)
    data = save(tmp_path, X=x, y=y)
    first, again, other = (
        evaluate(tmp_path, data, CLASSIFY, options=LabelOptions(delay=10, rate=0.5, seed=seed))
        for seed in (7, 7, 8)
    )
    assert without_times(first) == without_times(again)
    assert first["labels_used"] != other["labels_used"]


# ---- nothing is seen before its time -------------------------------------------------------------


@pytest.mark.full
def test_labels_that_are_pure_noise_are_predicted_at_chance(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    n = 2000
    data = save(tmp_path, X=rng.normal(size=(n, 8)), y=rng.integers(0, 2, n))
    training = {"learning_rate": 0.01, "replay": 0}
    report = evaluate(
        tmp_path,
        data,
        {"features": 8, "classes": 2},
        options=LabelOptions(delay=0),
        training=training,
        gate=OPEN_GATE,
    )
    refused = report["trainings"] - report["promotions"]  # by chance, where a class was lost
    assert (report["promotions"] > 10, refused <= 2) == (True, True)
    assert abs(report["metric"]["accuracy"] - 0.5) < 4 * 0.5 / np.sqrt(report["scored"])


REGIME = 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("delay", "least", "most"),
    [
        (0, 0.72, 0.92),
        pytest.param(100, 0.25, 0.45, marks=pytest.mark.full),
        pytest.param(200, 0.05, 0.2, marks=pytest.mark.full),
    ],
)
def test_a_rule_that_turns_round_is_followed_as_late_as_its_labels_come(
    tmp_path: Path, delay: int, least: float, most: float
) -> None:
    """It turns round every 200 samples, and only labels tell: with labels 200 late, all is wrong."""
    x, y = two_classes(1000)
    y = np.where(np.arange(len(y)) // REGIME % 2, 1 - y, y)
    training = {"new_labels": 20, "learning_rate": 0.01, "replay": 0, "steps": 60, "steps_per": 20}
    report = evaluate(
        tmp_path, save(tmp_path, X=x, y=y), CLASSIFY,
        options=LabelOptions(delay=delay, pretrain=REGIME), training=training, gate=OPEN_GATE,
        model={"network": "mlp"},  # experts that are always wrong count for nothing in the end
    )  # fmt: skip
    assert least < report["metric"]["accuracy"] < most


@pytest.mark.full
def test_a_change_of_the_rule_is_detected_once_and_a_quiet_stream_never(tmp_path: Path) -> None:
    x, y = two_classes(6000)
    changed = np.where(np.arange(len(y)) < 4000, y, 1 - y)
    never = {"new_labels": 100_000}
    found = {}
    for name, labels in (("quiet", y), ("changed", changed)):
        folder = tmp_path / name
        folder.mkdir()
        found[name] = evaluate(folder, save(folder, X=x, y=labels), CLASSIFY, training=never)["drifts"]
    assert found["quiet"] == []
    drifts = [signal for signal in found["changed"] if signal["level"] == "drift"]
    assert [(signal["detector"], signal["source"]) for signal in drifts] == [("adwin_correlated", "error")]
    assert 4000 < drifts[0]["offset"] < 4200


RULE = 900


def turning(n: int) -> tuple[Any, Any]:
    """Two rules on the same inputs, in turn: what was right is wrong, and right again."""
    x = np.random.default_rng(0).normal(size=(n, 4)).astype(np.float32)
    first, second = x[:, 0] + x[:, 1] > 0, x[:, 0] - x[:, 1] > 0.2
    return x, np.where(np.arange(n) // RULE % 2, second, first).astype(np.int64)


@pytest.mark.parametrize("training", [{"every": None, "new_labels": 0}, {"every": "6h", "new_labels": 1000}])
def test_a_drift_starts_a_run_that_nothing_else_would_start_so_soon(
    tmp_path: Path, training: dict[str, Any]
) -> None:
    x, y = turning(2 * RULE)
    replayed, _ = replay(
        tmp_path, save(tmp_path, X=x, y=y), CLASSIFY, options=LabelOptions(delay=20), training=training
    )
    started = [(at, e.trigger) for at, e in replayed.events if isinstance(e, TrainingStarted)][1:]
    assert {trigger for _, trigger in started} <= {"drift", "quality"}
    assert RULE < started[0][0] < RULE + 500


@pytest.mark.parametrize("delay", [0, 37])
def test_no_model_answers_a_sample_after_learning_from_a_label_that_was_not_known(
    tmp_path: Path, delay: int
) -> None:
    x, y = two_classes(1000)
    replayed, report = replay(
        tmp_path, save(tmp_path, X=x, y=y), CLASSIFY,
        options=LabelOptions(delay=delay, rate=0.8), training={"new_labels": 30}, gate=OPEN_GATE,
    )  # fmt: skip
    assert report["promotions"] > 10
    with Registry.open(tmp_path / "replay", readonly=True) as registry:
        newest = {
            r.version: r.data.last_offset - 1 for r in registry.records() if r.data.last_offset is not None
        }
    scored = range(100, 1000)
    ages = [i - newest[int(replayed.versions[i])] for i in scored if newest[int(replayed.versions[i])] >= 100]
    assert delay < min(ages) <= delay + 5, "as soon as they are known, and not before"


@pytest.mark.parametrize(("delay", "rate"), [(0, 1.0), (100, 1.0), (37, 0.5), (5000, 1.0), (3, 0.0)])
def test_delay_and_rate_of_labels_agree_with_a_plain_loop(tmp_path: Path, delay: int, rate: float) -> None:
    rng = np.random.default_rng(5)
    n, pretrain = 600, 60
    y = rng.integers(0, 3, n)
    data = save(tmp_path, X=rng.normal(size=(n, 4)), y=y)
    options = LabelOptions(delay=delay, rate=rate, seed=2)
    stream_section = {"features": 4, "classes": 3}
    _, report = replay(tmp_path, data, stream_section, options=options, training=NEVER)
    config = loader.load(tmp_path / "edged.yaml", {})
    arrives = shape_stream(read_stream(data), config, options).labelled
    known, right, arrived = int(y[pretrain - 1]), 0, 0
    for i in range(pretrain, n):
        right += known == y[i]
        if i - delay >= pretrain and arrives[i - delay]:
            known, arrived = int(y[i - delay]), arrived + 1
    assert report["no_change"]["accuracy"] == right / (n - pretrain)
    assert report["labels_used"] == arrived
    assert abs(arrives.mean() - rate) < 0.1


@pytest.mark.full
def test_frozen_is_the_first_champion_and_never_changes(tmp_path: Path) -> None:
    x, y = two_classes(1500)
    y[700:] = 1 - y[700:]
    data = save(tmp_path, X=x, y=y)
    replayed, report = replay(tmp_path, data, CLASSIFY, options=LabelOptions(delay=10), gate=OPEN_GATE)
    with Registry.open(tmp_path / "replay", readonly=True) as registry:
        first = min(r.version for r in registry.records() if r.source == "training")
        model = InferenceModel(registry.verify(first))
    right = model.predict(replayed.stream.x).argmax(axis=1) == y
    assert replayed.frozen.version == first
    assert report["promotions"] > 2
    assert report["frozen"]["accuracy"] == pytest.approx(right[150:].mean())
    assert report["metric"]["accuracy"] > report["frozen"]["accuracy"] + 0.1


def test_without_labels_nothing_is_trained_and_the_first_champion_stays(tmp_path: Path) -> None:
    x, y = two_classes(900)
    report = evaluate(tmp_path, save(tmp_path, X=x, y=y), CLASSIFY, options=LabelOptions(rate=0.0))
    assert (report["trainings"], report["promotions"], report["labels_used"]) == (0, 0, 0)
    assert report["metric"] == report["frozen"]
    assert report["forgetting"] == 0


@pytest.mark.full
def test_label_requests_are_drawn_at_random_as_far_as_is_configured(tmp_path: Path) -> None:
    """The others are for samples near the boundary, which is where the first feature is 0."""
    x, y = two_classes(1500)
    data, far = save(tmp_path, X=x, y=y), []
    for random in (0.0, 1.0):
        folder = tmp_path / str(random)
        folder.mkdir()
        replayed, report = replay(
            folder, data, CLASSIFY,
            options=LabelOptions(ask=True, rate=0.1, delay=0), training=NEVER,
            labels={"request_random": random},
        )  # fmt: skip
        rows = np.flatnonzero(replayed.stream.labelled[150:]) + 150
        assert len(rows) == report["labels_used"] > 100
        far.append(np.abs(x[rows, 0]).mean())
    assert far[1] > 2 * far[0]


# ---- other tasks ---------------------------------------------------------------------------------


def test_regression_is_scored_in_the_units_of_its_targets(tmp_path: Path) -> None:
    x, _ = two_classes(1500)
    y = np.stack([x[:, 0] * 300 + 5000, x[:, 1] - x[:, 2]], axis=1)
    section = {"features": 4, "targets": 2}
    replayed, report = replay(
        tmp_path, save(tmp_path, X=x, y=y), section, options=LabelOptions(), training={"steps": 200} | SELDOM
    )
    difference = replayed.answers[150:] - y[150:]
    assert report["metric"]["mae"] == pytest.approx(np.abs(difference).mean())
    assert report["metric"]["rmse"] == pytest.approx(np.sqrt((difference**2).mean()))
    assert report["metric"]["r2"] > 0.95 > report["no_change"]["r2"]
    assert report["metric"]["mae"] < report["frozen"]["mae"]
    assert len(report["windows"]) == 2


def correlated(n: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Six sensors that show two hidden values; in one of fifty samples they come apart."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(n, 2)) @ rng.normal(size=(2, 6)) + rng.normal(0, 0.05, (n, 6))
    odd = rng.random(n) < 0.02
    x[odd] += rng.normal(0, 2, (int(odd.sum()), 6))
    return x.astype(np.float32), odd.astype(np.int64)


def test_reconstruction_finds_anomalies_it_was_never_told(tmp_path: Path) -> None:
    x, y = correlated(3000)
    section = {"features": 6, "task": "reconstruct"}
    report = evaluate(tmp_path, save(tmp_path, X=x, y=y), section, training={"steps": 200} | SELDOM)
    assert set(report["metric"]) == {"auroc", "f1"}
    assert report["metric"]["auroc"] > 0.9
    assert report["metric"]["f1"] > 0.5
    assert report["no_change"] == {"auroc": 0.5, "f1": 0.0}
    assert report["scored"] == report["labels_used"] + report["anomaly"]["flagged"] == 2700
    assert report["labels_used"] > 2500


@pytest.mark.full
def test_more_samples_are_unusual_where_more_false_alarms_are_allowed(tmp_path: Path) -> None:
    x, _ = correlated(1500)
    data, section = save(tmp_path, X=x), {"features": 6, "task": "reconstruct"}
    few, many = (
        evaluate(tmp_path, data, section, training=NEVER, anomaly={"sensitivity": share})["anomaly"]
        for share in ("low", "high")
    )
    assert many["flagged"] > 2 * few["flagged"] > 0


@pytest.mark.slow
def test_a_detector_follows_slow_change_and_does_not_learn_the_anomaly(tmp_path: Path) -> None:
    """Sensors drift by two standard deviations; for 600 samples their structure is broken."""
    rng = np.random.default_rng(3)
    n, first, last = 5000, 3200, 3800
    mixing = rng.normal(size=(2, 6))
    x = rng.normal(size=(n, 2)) @ mixing + 0.1 * rng.normal(size=(n, 6))
    x += np.linspace(0, 2, n)[:, None] * np.abs(mixing).sum(axis=0) * rng.choice([-1, 1], 6)
    x[first:last] += rng.normal(0, 1, (last - first, 6))
    truth = ((np.arange(n) >= first) & (np.arange(n) < last)).astype(np.int64)
    section = {"features": 6, "task": "reconstruct"}
    report = evaluate(tmp_path, save(tmp_path, X=x.astype(np.float32), y=truth), section)
    (alarm,) = [alarm for alarm in report["anomaly"]["alarms"] if alarm["row"] >= first - 10]
    assert first <= alarm["row"] < first + 40
    assert last <= alarm["end"] < last + 40
    assert not alarm["accepted"]
    assert report["promotions"] > 2
    assert report["metric"]["auroc"] > max(0.95, report["frozen"]["auroc"] + 0.1)
    assert report["metric"]["f1"] > max(0.9, report["frozen"]["f1"])


@pytest.mark.slow
def test_an_alarm_that_stands_long_enough_is_the_new_normal_where_that_is_configured(tmp_path: Path) -> None:
    x, _ = correlated(1600)
    x[700:, ::2] += np.float32(20.0)
    section = {"features": 6, "task": "reconstruct"}
    report = evaluate(
        tmp_path, save(tmp_path, X=x), section, anomaly={"accept_after": "200s"}, training={"new_labels": 400}
    )
    (alarm,) = [alarm for alarm in report["anomaly"]["alarms"] if alarm["row"] >= 700]
    assert alarm["accepted"]
    assert 900 <= alarm["end"] < 920
    assert report["labels_used"] + report["anomaly"]["flagged"] == report["scored"]


@pytest.mark.slow
def test_a_capped_target_counts_as_its_cap(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    left = np.tile(np.arange(200.0)[::-1], 6)
    x = np.stack([np.minimum(left, 50) / 50, rng.normal(size=1200)], axis=1).astype(np.float32)
    key = np.repeat([f"unit-{i}" for i in range(6)], 200)
    section = {"features": 2, "task": "regress", "target_max": 50}
    data, options = save(tmp_path, X=x, y=left, key=key), LabelOptions(pretrain=400)
    report = evaluate(tmp_path, data, section, options=options, training=NEVER | {"steps": 300})
    assert report["metric"]["mae"] < 5


def test_the_threshold_of_alarms_is_set_before_the_first_scored_sample(tmp_path: Path) -> None:
    """Untrained since, both models are one: the same scores must raise the same alarms."""
    x, y = correlated(900)
    section = {"features": 6, "task": "reconstruct"}
    report = evaluate(tmp_path, save(tmp_path, X=x, y=y), section, training=NEVER)
    assert report["metric"] == pytest.approx(report["frozen"])


def test_reconstruction_without_truth_tells_its_mean_score(tmp_path: Path) -> None:
    x, _ = correlated(600)
    report = evaluate(tmp_path, save(tmp_path, X=x), {"features": 6, "task": "reconstruct"})
    assert set(report["metric"]) == {"mean_score"}
    assert report["metric"]["mean_score"] > 0


def test_a_figure_that_does_not_exist_is_null_in_json(tmp_path: Path) -> None:
    x, y = correlated(300)
    config = write_config(tmp_path, {"features": 6, "task": "reconstruct"}, training=NEVER)
    answer = edged("evaluate", config, "--data", save(tmp_path, X=x, y=np.zeros_like(y)), "--json")
    assert answer.json["metric"] == {"auroc": None, "f1": 0.0}


def test_a_forecast_beats_the_present_value_on_a_wave(tmp_path: Path) -> None:
    t = np.arange(2000)
    wave = np.sin(t / 5)
    x = np.stack([np.sin(t / 5 - 1), wave], axis=1).astype(np.float32)
    section = {"features": 2, "task": {"forecast": {"of": [1], "horizon": 4}}}
    report = evaluate(tmp_path, save(tmp_path, X=x), section, training={"steps": 200} | SELDOM)
    assert report["scored"] == 2000 - 200 - 4
    held = np.abs(wave[204:] - wave[200:-4]).mean()
    assert report["no_change"]["mae"] == pytest.approx(held, rel=1e-4)
    assert report["metric"]["mae"] < 0.3 * held


@pytest.mark.parametrize("named", [True, False], ids=["names", "numbers"])
def test_classes_that_are_not_known_before_come_with_their_labels(tmp_path: Path, named: bool) -> None:
    """Three classes, the last of which comes in the second half."""
    rng = np.random.default_rng(0)
    y = np.where(np.arange(3000) < 1500, rng.integers(0, 2, 3000), rng.integers(0, 3, 3000))
    x = (4 * np.eye(3)[y] + rng.normal(size=(3000, 3))).astype(np.float32)
    labels = np.array(["low", "high", "odd"])[y] if named else np.array([7, 5, 11])[y]
    data = save(tmp_path, X=x, y=labels)
    options = LabelOptions(delay=5)
    section = {"features": 3, "classes": "open", "max_classes": 4}
    report = evaluate(tmp_path, data, section, options=options, gate=OPEN_GATE, training=SELDOM)
    assert report["metric"]["balanced_accuracy"] > 0.85
    assert report["frozen"]["balanced_accuracy"] < 0.67
    with pytest.raises(ConfigError, match="all 2 outputs"):
        evaluate(tmp_path, data, section | {"max_classes": 2}, options=options)


@pytest.mark.parametrize("kind", ["walk", "noise"])
def test_a_forecast_is_no_worse_than_the_last_value_and_better_where_that_is_none(
    tmp_path: Path, kind: str
) -> None:
    """Of a random walk nothing is better than the last value, of noise the mean is much better."""
    x = np.random.default_rng(0).normal(size=(2500, 2)).astype(np.float32)
    x = np.cumsum(x, axis=0) if kind == "walk" else x
    section = {"features": 2, "task": {"forecast": {"horizon": 3}}}
    report = evaluate(tmp_path, save(tmp_path, X=x), section, training=SELDOM)
    limit = 1.03 if kind == "walk" else 0.8
    assert report["metric"]["mae"] < limit * report["no_change"]["mae"]


def test_a_forecast_looks_ahead_within_its_key(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 900
    key = np.where(np.arange(n) % 3 == 0, "a", "b")
    key[5] = "alone"
    x = rng.normal(size=(n, 2)).astype(np.float32)
    section = {"features": 2, "task": "forecast"}
    report = evaluate(tmp_path, save(tmp_path, X=x, key=key), section, training=NEVER)
    rows = {name: np.flatnonzero(key == name) for name in ("a", "b")}
    pairs = [(i, j) for r in rows.values() for i, j in itertools.pairwise(r) if i >= 90]
    assert report["scored"] == len(pairs)
    held = np.mean([abs(float(x[j, 0]) - float(x[i, 0])) for i, j in pairs])
    assert report["no_change"]["mae"] == pytest.approx(held)


# ---- files ---------------------------------------------------------------------------------------


def write_csv(path: Path, header: list[str], columns: list[list[Any]]) -> Path:
    with gzip.open(path, "wt", newline="") if path.suffix == ".gz" else path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(zip(*columns, strict=True))
    return path


def test_a_csv_and_an_npz_with_the_same_rows_give_the_same_report(tmp_path: Path) -> None:
    x, y = two_classes(600)
    t = 1.7e9 + 60.0 * np.arange(600)
    names = np.array(["down", "up"])
    columns = [*x.T.tolist(), names[y].tolist(), t.tolist()]
    table = write_csv(tmp_path / "s.csv.gz", ["a", "b", "c", "d", "label", "time"], columns)
    section = {"features": ["a", "b", "c", "d"], "classes": ["up", "down"]}
    # In the order of the configuration, `up` is class 0.
    numbers = evaluate(tmp_path, save(tmp_path, X=x, y=1 - y, t=t), section, training=SELDOM)
    texts = evaluate(tmp_path, save(tmp_path, X=x, y=names[y], t=t), section, training=SELDOM)
    rows = evaluate(tmp_path, table, section, training=SELDOM)
    assert without_times(numbers) == without_times(texts) == without_times(rows)
    assert numbers["metric"]["accuracy"] > 0.9


def test_columns_are_found_by_name_where_the_file_names_them(tmp_path: Path) -> None:
    x, y = two_classes(600)
    section = {"features": ["d", "a"], "classes": 2}
    header = ["a", "b", "c", "d", "y"]
    table = write_csv(tmp_path / "s.csv", header, [*x.T.tolist(), y.tolist()])
    report = evaluate(tmp_path, table, section, training=SELDOM)
    chosen = evaluate(tmp_path, save(tmp_path, X=x[:, [3, 0]], y=y), section, training=SELDOM)
    assert without_times(report) == without_times(chosen)


# ---- schedule ------------------------------------------------------------------------------------


def hourly(folder: Path, gap: float = 0.0) -> tuple[Path, np.ndarray[Any, Any]]:
    x, y = two_classes(600)
    t = 1.7e9 // 86400 * 86400 + 1800 + 3600.0 * np.arange(600)
    t[400:] += gap
    return save(folder, X=x, y=y, t=t), t


@pytest.mark.parametrize("gap", [0.0, 10 * 86400.0])
def test_a_scheduled_run_starts_with_the_first_sample_after_its_time(tmp_path: Path, gap: float) -> None:
    data, t = hourly(tmp_path, gap)
    replayed, report = replay(
        tmp_path, data, CLASSIFY, options=LabelOptions(delay=0, pretrain=60),
        training={"every": "1d", "new_labels": 0}, gate=OPEN_GATE,
    )  # fmt: skip
    days = np.floor((t[60:] - t[60]) / 86400)
    starts = 60 + 1 + np.flatnonzero(np.diff(days) > 0)
    assert report["trainings"] == report["promotions"] == len(starts)
    assert (1 + np.flatnonzero(np.diff(replayed.versions[60:])) + 60).tolist() == (starts + 1).tolist()


def test_a_crontab_schedules_runs_on_the_virtual_clock(tmp_path: Path) -> None:
    data, t = hourly(tmp_path)
    training = {"every": "0 0 * * *", "new_labels": 0}
    report = evaluate(tmp_path, data, CLASSIFY, options=LabelOptions(delay=0, pretrain=60), training=training)
    midnights = {datetime.fromtimestamp(s, timezone.utc).date() for s in t[60:]}
    assert report["trainings"] == len(midnights) - 1


def test_a_scheduled_run_with_too_few_new_labels_is_left_out(tmp_path: Path) -> None:
    data, _ = hourly(tmp_path)
    training = {"every": "1d", "new_labels": 40}
    _, report = replay(
        tmp_path, data, CLASSIFY, options=LabelOptions(delay=0, pretrain=60), training=training
    )
    with Registry.open(tmp_path / "replay", readonly=True) as registry:
        *runs, pretraining = registry.runs(30)
    assert (len(runs), pretraining.trigger) == (report["trainings"], "pretraining")
    assert {run.trigger for run in runs} == {"labels"}, "24 labels a day"
    starts = [run.started for run in reversed(runs)]
    assert len(starts) > 10
    assert np.diff(starts).min() >= 40 * 3600.0


def test_a_scheduled_run_of_a_reconstruction_waits_for_400_samples(tmp_path: Path) -> None:
    x, _ = correlated(1600)
    section, options = {"features": 6, "task": "reconstruct"}, LabelOptions(pretrain=200)
    training = {"every": "100s", "new_labels": 0}
    report = evaluate(tmp_path, save(tmp_path, X=x), section, options=options, training=training)
    assert report["trainings"] == 2


def test_samples_without_times_are_one_second_apart(tmp_path: Path) -> None:
    x, y = two_classes(600)
    training = {"every": "50s", "new_labels": 0}
    report = evaluate(
        tmp_path,
        save(tmp_path, X=x, y=y),
        CLASSIFY,
        options=LabelOptions(delay=0, pretrain=100),
        training=training,
    )
    assert report["trainings"] == 9


def test_rows_of_pre_training_are_not_scored(tmp_path: Path) -> None:
    x, y = two_classes(600)
    report = evaluate(tmp_path, save(tmp_path, X=x, y=y), CLASSIFY, options=LabelOptions(pretrain=350))
    assert (report["scored"], report["labels_used"]) == (250, 150)


def test_without_pre_training_the_bundles_model_begins(tmp_path: Path) -> None:
    x, y = two_classes(300)
    bundle = build(write(tmp_path / "good.onnx", GOOD, inputs=4), tmp_path / "b", loss="cross_entropy").path
    replayed, report = replay(
        tmp_path, save(tmp_path, X=x, y=y), CLASSIFY, options=LabelOptions(delay=50, pretrain=0),
        model={"bundle": str(bundle)}, training=NEVER,
    )  # fmt: skip
    assert (report["scored"], report["trainings"], report["labels_used"]) == (300, 0, 250)
    own = InferenceModel(bundle / "inference_model.onnx").predict(x).argmax(axis=1)
    assert report["frozen"] == report["metric"]
    assert report["metric"]["accuracy"] == (own == y).mean() > 0.9
    told = np.concatenate([np.zeros(51), y[:249]])
    assert report["no_change"]["accuracy"] == (told == y).mean()
    assert replayed.versions.tolist() == [1] * 300


def test_without_a_bundle_something_must_be_pre_trained_on(tmp_path: Path) -> None:
    x, y = two_classes(200)
    with pytest.raises(ConfigError, match=r"--pretrain: .*model\.bundle"):
        evaluate(tmp_path, save(tmp_path, X=x, y=y), CLASSIFY, options=LabelOptions(pretrain=0))


# ---- refusals ------------------------------------------------------------------------------------


def spoilt(row: int, value: float) -> dict[str, Any]:
    x, y = two_classes(200)
    x[row, 1] = value
    return {"X": x, "y": y}


def labelled(y: Any) -> dict[str, Any]:
    return {"X": two_classes(200)[0], "y": y}


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "wrong width": ({"features": 5, "classes": 2}, labelled(np.zeros(200)), "features: 4"),
    "label outside": (CLASSIFY, labelled(np.arange(200) % 3), "row 2"),
    "label between": (CLASSIFY, labelled(np.full(200, 0.5)), "row 0"),
    "one-hot labels": (CLASSIFY, labelled(np.eye(2)[np.arange(200) % 2]), "one class a row"),
    "unknown name": ({"features": 4, "classes": ["a", "b"]}, labelled(np.array(["a", "c"] * 100)), "'c'"),
    "names for numbers": (CLASSIFY, labelled(np.array(["up", "down"] * 100)), "[down, up]"),
    "names for values": ({"features": 4}, labelled(np.array(["up", "down"] * 100)), "needs numbers"),
    "names of anomalies": (
        {"features": 4, "task": "reconstruct"}, labelled(np.array(["bad", "ok"] * 100)), "needs numbers",
    ),
    "no labels": (CLASSIFY, {"X": two_classes(200)[0]}, "no labels"),
    "too few targets": ({"features": 4, "targets": 2}, labelled(np.zeros(200)), "targets: 1"),
    "too few rows": (CLASSIFY, {k: v[:49] for k, v in labelled(np.zeros(200)).items()}, "49 usable rows"),
    "unknown column": (
        {"features": ["a", "b", "c", "z"], "classes": 2},
        labelled(np.zeros(200)) | {"names": np.array(["a", "b", "c", "d"])}, "no column 'z'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_data_that_do_not_fit_are_refused_with_what_would_be_right(tmp_path: Path, case: str) -> None:
    section, arrays, hint = REFUSED[case]
    with pytest.raises(ConfigError) as caught:
        evaluate(tmp_path, save(tmp_path, **arrays), section)
    assert hint in caught.value.line()
    assert caught.value.where
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("pretrain", [5, 200, 1000])
def test_pre_training_that_does_not_fit_is_refused(tmp_path: Path, pretrain: int) -> None:
    x, y = two_classes(200)
    with pytest.raises(ConfigError, match="--pretrain"):
        evaluate(tmp_path, save(tmp_path, X=x, y=y), CLASSIFY, options=LabelOptions(pretrain=pretrain))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_reading_that_is_no_number_is_left_out_and_counted(tmp_path: Path, value: float) -> None:
    report = evaluate(tmp_path, save(tmp_path, **spoilt(150, value)), CLASSIFY)
    assert (report["samples"], report["quarantined"]) == (199, 1)


def test_labels_that_are_missing_never_arrive_and_are_not_scored(tmp_path: Path) -> None:
    y = np.arange(200.0) % 2
    y[150:170] = np.nan
    report = evaluate(tmp_path, save(tmp_path, **labelled(y)), CLASSIFY)
    assert report["scored"] == 200 - 20 - 20


def test_classes_named_by_numbers_are_names(tmp_path: Path) -> None:
    y = np.arange(200.0) % 2 + 1
    named = evaluate(tmp_path, save(tmp_path, **labelled(y)), {"features": 4, "classes": ["1", "2"]})
    placed = evaluate(tmp_path, save(tmp_path, **labelled(y - 1)), CLASSIFY)
    assert named["metric"] == placed["metric"]


def test_a_refusal_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    config = write_config(tmp_path, CLASSIFY)
    missing = edged("evaluate", config, "--data", tmp_path / "none.npz", "--json")
    assert (missing.code, "none.npz: no such file" in missing.problem) == (2, True)
    data = save(tmp_path, **labelled(np.arange(200) % 3))
    outside = edged("evaluate", config, "--data", data, "--json")
    assert (
        outside.code,
        "is none of the 2 classes 0, 1" in outside.problem,
        "stream.classes" in outside.problem,
    ) == (2, True, True)


# ---- recorded streams ----------------------------------------------------------------------------


LONG_FORM = (pytest.mark.faults, pytest.mark.timeout(600))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [4000, pytest.param(None, marks=LONG_FORM)])
def test_weather_is_learned_with_default_settings(rows: int | None, tmp_path: Path) -> None:
    x, y, _ = stream("noaa_weather", tmp_path)
    data = save(tmp_path, X=x[:rows], y=y[:rows])
    report = evaluate(tmp_path, data, {"features": x.shape[1], "task": "classify", "classes": 2})
    assert report["metric"]["accuracy"] >= 0.75
    assert report["metric"]["accuracy"] > report["frozen"]["accuracy"]
    assert report["metric"]["accuracy"] > report["no_change"]["accuracy"]


@pytest.mark.full
@pytest.mark.parametrize("rows", [4000, pytest.param(None, marks=LONG_FORM)])
def test_electricity_prices_are_followed_better_than_by_the_frozen_model(
    rows: int | None, tmp_path: Path
) -> None:
    x, y, _ = stream("elec2", tmp_path)
    data = save(tmp_path, X=x[:rows], y=y[:rows])
    report = evaluate(tmp_path, data, {"features": x.shape[1], "task": "classify", "classes": 2})
    assert report["metric"]["accuracy"] > report["frozen"]["accuracy"]
    assert report["metric"]["accuracy"] > report["no_change"]["accuracy"]


def rising(n: int) -> tuple[Any, Any]:
    """Walks of two machines in turn, and whether each is above where it was lately."""
    rng = np.random.default_rng(0)
    x, y = np.zeros((n, 1), np.float32), np.zeros(n, np.int64)
    at, lately = np.array([0.0, 50.0]), np.array([0.0, 50.0])
    for i in range(n):
        at[i % 2] += rng.normal()
        y[i] = at[i % 2] > lately[i % 2]
        lately[i % 2] += 0.1 * (at[i % 2] - lately[i % 2])
        x[i] = at[i % 2]
    return x, y


@pytest.mark.parametrize(
    ("section", "least", "most"),
    [
        ({}, 0.85, 1.0),
        pytest.param({"model": {"network": "mlp"}}, 0.4, 0.7, marks=pytest.mark.full),
        pytest.param({"stream": {"context": []}}, 0.4, 0.7, marks=pytest.mark.full),
    ],
    ids=["standard", "mlp", "without context"],
)
def test_the_standard_network_sees_samples_beside_earlier_ones_of_their_key(
    tmp_path: Path, section: dict[str, Any], least: float, most: float
) -> None:
    x, y = rising(3000)
    data = save(tmp_path, X=x, y=y, key=np.array(["a", "b"] * 1500))
    shape = {"features": 1, "classes": 2, **section.get("stream", {})}
    told = evaluate(tmp_path, data, shape, model=section.get("model", {}), gate=OPEN_GATE, training=SELDOM)
    assert least < told["metric"]["accuracy"] < most
    if section:
        assert told["experts"] == {}
    else:
        assert told["experts"]["expert2"]["accuracy"] > told["experts"]["expert1"]["accuracy"] + 0.1


@pytest.mark.full
def test_rows_whose_order_means_nothing_lose_nothing_by_context(tmp_path: Path) -> None:
    x, y = two_classes(4000)
    found = {}
    for network in (None, "mlp"):
        (folder := tmp_path / str(network)).mkdir()
        model = {} if network is None else {"network": network}
        data = save(folder, X=x, y=y)
        found[network] = evaluate(folder, data, CLASSIFY, gate=OPEN_GATE, model=model, training=SELDOM)
    assert found[None]["metric"]["accuracy"] > found["mlp"]["metric"]["accuracy"] - 0.01


@pytest.mark.parametrize(
    ("step", "warned"),
    [pytest.param(0.05, True, id="slow"), pytest.param(3.0, False, id="fast", marks=pytest.mark.full)],
)
def test_a_stream_that_repeats_itself_is_predicted_best_by_repeating_it(
    tmp_path: Path, step: float, warned: bool
) -> None:
    """A target that hardly moves from one sample to the next, or jumps, and a weak sign of it."""
    rng = np.random.default_rng(0)
    y = np.cumsum(rng.normal(0, step, 1500))
    x = np.stack([y + rng.normal(0, 1, 1500), rng.normal(size=1500)], axis=1).astype(np.float32)
    data = save(tmp_path, X=x, y=y.astype(np.float32))
    told = evaluate(
        tmp_path, data, {"features": 2, "task": "regress"}, options=LabelOptions(delay=2), gate=OPEN_GATE
    )
    better = [text for text in told["warnings"] if "repeating the last known value is better" in text]
    assert bool(better) is warned
    assert (told["no_change"]["mae"] < told["metric"]["mae"]) is warned
