"""The examples for recorded data sets do what they are for, on the recordings themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edged import configfile
from edged.evaluate import Options, run
from tests.streams import data_folder

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "configs" / "evaluate"
DAY = 144  # samples, one in ten minutes


def streams(name: str, folder: Path) -> Path:
    """The streams made of a recording; minutes of work, so only where recordings are asked for."""
    if "EDGED_TEST_DATA" not in os.environ:
        pytest.skip("set EDGED_TEST_DATA to the folder of the recordings")
    recording = data_folder() / f"{name}.npz"
    script = str(EXAMPLES / "streams.py")
    subprocess.run([sys.executable, script, str(recording), str(folder)], check=True, timeout=60)
    return folder


def evaluate(example: str, data: Path, options: Options, **environment: str) -> dict[str, Any]:
    config = configfile.load(EXAMPLES / f"{example}.yaml", environment)
    return run(config, data, options)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("test", "features", "rows", "latest"),
    [(1, 8, 2156, 20), (2, 4, 984, 2 * DAY), (3, 4, 6324, 2 * DAY)],
)
def test_the_alarm_comes_before_the_bearing_fails(
    test: int, features: int, rows: int, latest: int, tmp_path: Path
) -> None:
    """It stands at the end, and the detector has not been crying all the time before."""
    data = streams("nasa_bearing", tmp_path) / f"bearing{test}.npz"
    report = evaluate("nasa_bearing", data, Options(), EDGED_STREAM__FEATURES=str(features))
    alarms = report["anomaly"]["alarms"]
    assert report["samples"] == rows
    assert alarms[-1]["end"] is None
    assert rows - alarms[-1]["row"] >= latest
    early = [alarm for alarm in alarms[:-1] if alarm["row"] < 0.7 * rows]
    earlier = sum(alarm["end"] - alarm["first"] for alarm in early)
    assert len(alarms) <= 8
    assert earlier < 0.05 * rows


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_remaining_life_is_predicted_about_as_well_as_published(tmp_path: Path) -> None:
    """16.14 is the LSTM of Zheng et al. (2017), 18.45 their convolutional network."""
    data = streams("cmapss_fd001", tmp_path) / "cmapss_fd001.npz"
    report = evaluate("cmapss_fd001", data, Options(rate=0.0, pretrain=20_631))
    assert report["last_of_keys"]["keys"] == 100
    assert report["last_of_keys"]["metric"]["rmse"] < 17.5
    assert report["metric"]["rmse"] < 17.5
