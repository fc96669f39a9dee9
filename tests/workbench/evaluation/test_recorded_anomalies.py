"""The examples for recorded data sets do what they are for, on the recordings themselves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.config import loader
from edged.workbench.evaluation import run
from edged.workbench.evaluation.stream import LabelOptions
from tests.streams import data_folder, recording

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "configs" / "evaluate"
DAY = 144  # samples, one in ten minutes
RECORDED = (data_folder() / "nasa_bearing.npz").exists()


def streams(name: str, folder: Path) -> Path:
    """The streams made of a recording; where there is none, of a generated one like it."""
    source = recording(name, folder, vibrations if name == "nasa_bearing" else turbofans)
    script = str(EXAMPLES / "streams.py")
    made = folder / "streams"
    made.mkdir()
    subprocess.run([sys.executable, script, str(source), str(made)], check=True, timeout=60)
    return made


def vibrations() -> dict[str, NDArray[Any]]:
    """Three tests of bearings: the level creeps up, and near the end one bearing shakes ever more."""
    rng = np.random.default_rng(0)
    made: dict[str, NDArray[Any]] = {}
    for test, (rows, channels) in {"1": (2156, 8), "2": (984, 4), "3": (6324, 4)}.items():
        wear = np.exp(np.clip(np.arange(rows) - 0.93 * rows, 0, None) / (0.02 * rows)) - 1
        x = 0.06 + 0.003 * np.arange(rows)[:, None] / rows + rng.normal(0, 0.001, (rows, channels))
        x[:, 0] += 0.02 * wear
        made |= {f"X{test}": x, f"t{test}": 600.0 * np.arange(rows)}
    return made


def turbofans() -> dict[str, NDArray[Any]]:
    """Engines whose sensors all move the more, the nearer their end is; the test units stop before it."""
    rng = np.random.default_rng(0)

    def units(lives: NDArray[np.int64], left: NDArray[np.int64]) -> NDArray[np.float64]:
        rows = []
        for unit, (life, rest) in enumerate(zip(lives, left, strict=True), 1):
            cycle = np.arange(1, life - rest + 1)
            decay = np.exp(-(life - cycle) / 40.0)[:, None] * np.linspace(-3, 3, 21)
            sensors = 500 + decay + rng.normal(0, 0.2, (len(cycle), 21))
            rows.append(np.c_[np.full(len(cycle), unit), cycle, np.zeros((len(cycle), 3)), sensors])
        return np.concatenate(rows)

    lives = np.append(206 + np.arange(-50, 49), 336)  # 20,631 rows, as many as the recording has
    left = rng.integers(10, 120, 100)
    return {"train": units(lives, 0 * left), "test": units(lives, left), "test_rul": left}


def evaluate(example: str, data: Path, options: LabelOptions, **environment: str) -> Mapping[str, Any]:
    config = loader.load(EXAMPLES / f"{example}.yaml", environment)
    return run(config, data, options).to_json()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("test", "features", "rows", "latest"),
    [
        (2, 4, 984, 2 * DAY if RECORDED else 20),
        pytest.param(1, 8, 2156, 20, marks=pytest.mark.faults),
        pytest.param(3, 4, 6324, 2 * DAY, marks=pytest.mark.faults),
    ],
)
def test_the_alarm_comes_before_the_bearing_fails(
    test: int, features: int, rows: int, latest: int, tmp_path: Path
) -> None:
    """It stands at the end, and the detector has not been crying all the time before."""
    data = streams("nasa_bearing", tmp_path) / f"bearing{test}.npz"
    report = evaluate("nasa_bearing", data, LabelOptions(), EDGED_STREAM__FEATURES=str(features))
    alarms = report["anomaly"]["alarms"]
    assert report["samples"] == rows
    assert alarms[-1]["end"] is None
    assert rows - alarms[-1]["row"] >= latest
    early = [alarm for alarm in alarms[:-1] if alarm["row"] < 0.7 * rows]
    earlier = sum(alarm["end"] - alarm["first"] for alarm in early)
    assert len(alarms) <= 8
    assert earlier < 0.05 * rows


@pytest.mark.full
@pytest.mark.timeout(600)
def test_remaining_life_is_predicted_about_as_well_as_published(tmp_path: Path) -> None:
    """16.14 is the LSTM of Zheng et al. (2017), 18.45 their convolutional network."""
    data = streams("cmapss_fd001", tmp_path) / "cmapss_fd001.npz"
    report = evaluate("cmapss_fd001", data, LabelOptions(rate=0.0, pretrain=20_631))
    assert report["metric"]["rmse"] < 17.5
