"""The demo end to end, and the worlds it shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edged.errors import ConfigError
from edged.workbench.demo.broker import find_mosquitto
from edged.workbench.demo.observer import Observer, Score
from edged.workbench.demo.plant import CLASSES, FEATURES, RATE, replayed, simulated
from edged.workbench.demo.run import run_demo
from tests.commands import edged, two_classes
from tests.streams import generated

KEYS = {"samples", "predictions", "dropped", "trainings", "swaps", "rollbacks", "frozen", "adapted", "engine"}


def check_complete(summary: dict[str, Any]) -> None:
    assert set(summary) >= KEYS | {"seconds"}
    assert summary["predictions"] == summary["samples"] > 0
    assert (summary["dropped"], summary["duplicated"]) == (0, 0)
    assert summary["trainings"] >= summary["swaps"] >= 1


@pytest.mark.slow
def test_the_demo_adapts_and_drops_nothing() -> None:
    answer = edged("demo", "--seconds", 12, "--json")
    assert answer.code == 0, answer.err
    summary = answer.json
    check_complete(summary)
    assert summary["adapted"]["accuracy"] >= summary["frozen"]["accuracy"] > 0.3
    assert summary["broker"] == ("mosquitto" if find_mosquitto() else "amqtt")
    assert 10 < summary["seconds"] < 60


@pytest.mark.full
def test_a_recorded_stream_is_replayed_through_the_pure_python_broker(tmp_path: Path) -> None:
    x, y = generated(3000)
    path = tmp_path / "drifting.npz"
    x[5, 0] = np.nan
    np.savez(path, X=x, y=np.array(["bad", "good"])[y])
    summary: dict[str, Any] = {
        **run_demo(seconds=16, data=path, seed=0, quiet=True, broker="amqtt").to_json()
    }
    check_complete(summary)
    assert summary["samples"] == 2999
    assert summary["warnings"][0].startswith("1 of 3,000 rows are left out: 1 with an empty cell or NaN")
    assert summary["broker"] == "amqtt"
    assert summary["adapted"]["accuracy"] > summary["frozen"]["accuracy"] + 0.05


def test_a_simulated_world_lasts_as_long_as_the_demo() -> None:
    short, long = simulated(12, seed=1), simulated(30, seed=1)
    assert len(short) < len(long)
    assert short.x.shape == (len(short), len(FEATURES))
    assert set(np.unique(short.y)) <= set(range(len(CLASSES)))
    assert 0 < short.commission < short.phases[1][0], "the plant is commissioned before anything changes"
    assert np.array_equal(short.x, simulated(12, seed=1).x)
    assert not np.array_equal(short.x, simulated(12, seed=2).x)


def test_fewer_samples_a_second_make_a_smaller_world() -> None:
    slow = simulated(60, 1, RATE / 10)
    assert slow.commission < slow.phases[1][0] < len(slow), "the plant still changes"
    assert slow.commission == simulated(60, 1).commission
    assert len(slow) - slow.commission == 60 * RATE / 10


def test_a_replayed_world_is_the_file_with_its_label_names(tmp_path: Path) -> None:
    x, y = two_classes(400)
    np.savez(tmp_path / "named.npz", X=x, y=np.array(["off", "on"])[y])
    world = replayed(tmp_path / "named.npz", 10)
    assert np.array_equal(world.x, x)
    assert world.classes == ("off", "on")
    assert np.array_equal(world.y, y)
    assert (world.commission, world.phases) == (100, [(0, "named")])


def test_only_as_much_is_replayed_as_the_time_allows(tmp_path: Path) -> None:
    x, y = two_classes(20_000)
    np.savez(tmp_path / "long.npz", X=x, y=y)
    short, long = (len(replayed(tmp_path / "long.npz", seconds)) for seconds in (10, 20))
    assert short < long < 20_000
    assert replayed(tmp_path / "long.npz", 10).classes == ("0", "1")


def test_what_is_left_out_of_a_recording_is_said(tmp_path: Path) -> None:
    x, y = two_classes(400)
    x[7, 0] = x[9, 1] = np.nan
    x[11, 0] = np.inf
    np.savez(tmp_path / "gaps.npz", X=x, y=y)
    world = replayed(tmp_path / "gaps.npz", 10)
    assert len(world) == 397
    (warning,) = world.warnings
    assert warning.startswith("3 of 400 rows are left out: 2 with an empty cell or NaN, 1 with a number")
    np.savez(tmp_path / "none.npz", X=np.full_like(x, np.nan), y=y)
    with pytest.raises(ConfigError, match="400 of 400 rows are left out"):
        replayed(tmp_path / "none.npz", 10)


@pytest.mark.parametrize(
    "y", [None, np.linspace(0, 1, 100), np.zeros((100, 2))], ids=["none", "values", "several"]
)
def test_a_recording_without_one_class_a_row_is_refused(tmp_path: Path, y: Any) -> None:
    arrays = {"X": two_classes(100)[0]} | ({} if y is None else {"y": y})
    np.savez(tmp_path / "s.npz", **arrays)
    with pytest.raises(ConfigError, match="one class label a row") as caught:
        replayed(tmp_path / "s.npz", 10)
    assert str(tmp_path) in caught.value.line()


def test_a_missing_recording_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    answer = edged("demo", "--data", tmp_path / "none.npz", "--json")
    assert answer.code == 2
    assert "none.npz: no such file" in answer.problem


def test_scores_count_answered_samples_only() -> None:
    nan = np.nan
    score = Score(np.array([1, 0, nan, 1, nan, nan, 1, 1, 1], np.float32))
    assert score.mean(0, 4) == pytest.approx(2 / 3)
    assert np.isnan(score.mean(4, 6))


def observed(*events: dict[str, Any]) -> Observer:
    world = simulated(2, seed=1)
    observer = Observer(world, Score(np.full(len(world), np.nan, np.float32)))
    for event in events:
        observer.receive("edged/demo/events", event)
    return observer


def test_events_are_counted_and_described() -> None:
    observer = observed(
        {"event": "training_started", "run": 1, "trigger": "labels"},
        {"event": "training_finished", "outcome": "done", "engine": "portable"},
        {"event": "model_promoted", "version": 3, "reasons": ["better"]},
        {"event": "candidate_rejected", "reasons": ["slower"]},
        {"event": "model_rolled_back", "to": 2, "reason": "quality fell"},
    )
    assert (observer.trainings, observer.swaps, observer.rollbacks) == (1, 1, 1)
    assert (observer.version, observer.engine, observer.training) == (2, "portable", False)
    assert observer.pop_events() == [
        "model 3 promoted: better",
        "candidate rejected: slower",
        "rolled back to model 2: quality fell",
    ]
    assert observer.pop_events() == []
