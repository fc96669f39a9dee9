"""Prequential evaluation of windows: cut from readings as the daemon does, or cut already."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.config import loader
from edged.errors import ConfigError
from edged.storage.recordings.reader import read_stream
from edged.workbench.evaluation import run
from edged.workbench.evaluation.stream import LabelOptions, shape_stream
from tests.commands import write_config

if TYPE_CHECKING:
    from edged.workbench.evaluation.stream import Stream

SIZE, STRIDE, RATE = 16, 8, 20.0
SECTION: dict[str, Any] = {
    "features": 2,
    "classes": 2,
    "window": {"size": SIZE, "stride": STRIDE, "rate": RATE},
}
ONCE = {"every": None, "new_labels": 0}


def spinning(n: int) -> dict[str, Any]:
    """Two channels that go round one way or the other: no single reading tells which."""
    rng = np.random.default_rng(0)
    y = np.repeat(rng.integers(0, 2, n // 80 + 1), 80)[:n]
    angle = np.cumsum((2 * y - 1) * 0.4)
    x = np.stack([np.cos(angle), np.sin(angle)], axis=1) + rng.normal(0, 0.1, (n, 2))
    return {"X": x.astype(np.float32), "y": y.astype(np.float64)}


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def shaped(folder: Path, section: dict[str, Any], **arrays: Any) -> Stream:
    data = save(folder / "stream.npz", **arrays)
    return shape_stream(read_stream(data), loader.load(write_config(folder, section), {}), LabelOptions())


def starts(n: int) -> range:
    return range(0, n - SIZE + 1, STRIDE)


@pytest.mark.slow
def test_readings_and_windows_that_are_cut_already_give_the_same_report(tmp_path: Path) -> None:
    arrays = spinning(4000)
    readings = save(tmp_path / "readings.npz", **arrays)
    x = np.stack([arrays["X"][s : s + SIZE] for s in starts(4000)])
    y = [arrays["y"][s + SIZE - 1] for s in starts(4000)]
    windows = save(tmp_path / "windows.npz", X=x, y=y)
    config = loader.load(write_config(tmp_path, SECTION, training=ONCE), {})
    made = (run(config, data, LabelOptions(pretrain=300)).to_json() for data in (readings, windows))
    one, other = (dict[str, Any](**told) for told in made)
    assert one.pop("readings") == {"taken": 4000, "gaps": 0, "out_of_order": 0, "forgotten": 0}
    assert one["samples"] == len(x)
    assert one["metric"]["accuracy"] > 0.85
    times = ("seconds", "train_seconds", "peak_rss_mb")
    assert {k: v for k, v in one.items() if k not in times} == {
        k: v for k, v in other.items() if k not in times
    }


def test_gaps_bad_readings_and_disorder_are_left_out_and_counted(tmp_path: Path) -> None:
    arrays = spinning(1600)
    t = 1e9 + np.arange(1600) / RATE
    t[800:] += 5.0
    t[1200] = t[1190]
    arrays["X"][400] = np.nan
    stream = shaped(tmp_path, SECTION, t=t, **arrays)
    assert stream.readings == {"taken": 1599, "gaps": 1, "out_of_order": 1, "forgotten": 0}
    assert stream.refused == 1
    assert len(stream) == 2 * len(starts(800)), "what is missing is interpolated, what is behind the gap new"
    assert (np.diff(stream.t) > 0).all()


def test_keys_and_times_and_labels_are_those_of_the_windows(tmp_path: Path) -> None:
    arrays = spinning(1600)
    y = np.full(1600, np.nan)
    y[::64] = arrays["y"][::64]
    key = np.array(["a", "b"])[np.arange(1600) // 8 % 2]
    t = np.arange(1600) / RATE
    stream = shaped(
        tmp_path, SECTION | {"window": {"size": SIZE, "stride": STRIDE}}, t=t, key=key, X=arrays["X"], y=y
    )
    for name in "ab":
        own = np.flatnonzero(key == name)
        rows = [i for i, k in enumerate(stream.keys) if k == name]
        parts = [own[s : s + SIZE] for s in starts(800)]
        assert [stream.x[i].tobytes() for i in rows] == [arrays["X"][p].tobytes() for p in parts]
        assert [stream.t[i] for i in rows] == [t[p[-1]] for p in parts]
        newest = [next((y[i] for i in p[::-1] if np.isfinite(y[i])), None) for p in parts]
        assert [float(stream.y[i, 0]) if stream.known[i] else None for i in rows] == newest


def test_a_forecast_of_windows_is_about_their_last_reading(tmp_path: Path) -> None:
    section = {"features": 2, "task": {"forecast": {"of": [1]}}, "window": {"size": SIZE, "stride": 4}}
    x = np.arange(800, dtype=np.float32).reshape(-1, 2)
    stream = shaped(tmp_path, section, X=x)
    assert stream.y[:-1, 0].tolist() == [x[s + 4 + SIZE - 1, 1] for s in range(0, 400 - SIZE - 4 + 1, 4)]


@pytest.mark.parametrize(
    ("section", "arrays", "hint"),
    [
        (SECTION, {"X": np.zeros((500, 3)), "y": np.zeros(500)}, "2 for a reading, or 32 for a window"),
        (SECTION, {"X": np.zeros((10, 2)), "y": np.zeros(10)}, "no window of 16"),
        (SECTION, {"X": np.zeros((300, 2)), "y": np.zeros(300)}, "at least 50"),
        (
            SECTION,
            {"X": np.zeros((500, 2)), "y": np.zeros(500), "t": np.arange(500) * 10.0},
            "no window of 16 readings comes of 500 (499 gaps)",
        ),
    ],
)
def test_data_that_give_no_windows_are_refused(
    tmp_path: Path, section: dict[str, Any], arrays: dict[str, Any], hint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        shaped(tmp_path, section, **arrays)
    assert hint in caught.value.line()
