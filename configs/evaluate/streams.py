# ruff: noqa: INP001  a program, not a package
"""Makes streams for `edged evaluate` from recordings of two public data sets.

    python configs/evaluate/streams.py nasa_bearing.npz DIR    # bearing1.npz, bearing2.npz, bearing3.npz
    python configs/evaluate/streams.py cmapss_fd001.npz DIR    # cmapss_fd001.npz

The bearings need arrays `X1` to `X3` (samples, channels) and `t1` to `t3` (Unix seconds): mean absolute
vibration of three run-to-failure tests. The engines need `train` and `test` (rows, 26) as NASA publishes them
(unit, cycle, 3 settings, 21 sensors) and `test_rul` (units,): the cycles left at the end of each test unit.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

WINDOW = 30  # cycles: the longest that every test unit has, and what the literature uses
SENSORS = (
    2,
    3,
    4,
    7,
    8,
    9,
    11,
    12,
    13,
    14,
    15,
    17,
    20,
    21,
)  # those that move in FD001, by their usual numbers
FIRST_SENSOR = 5  # column of sensor 1


def bearings(arrays: Any, out: Path) -> None:
    """One stream for each test."""
    for test in "123":
        np.savez(out / f"bearing{test}.npz", X=arrays[f"X{test}"], t=arrays[f"t{test}"].astype(float))


def engines(arrays: Any, out: Path) -> None:
    """The training units, then the test units; the label is the remaining life in cycles."""
    parts = [_units(arrays["train"], None, "train"), _units(arrays["test"], arrays["test_rul"], "test")]
    x, y, key = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    np.savez(out / "cmapss_fd001.npz", X=x, y=y, key=key)
    sys.stdout.write(f"--pretrain {len(parts[0][0])} ends at the last training unit\n")


def _units(rows: NDArray[Any], left: NDArray[Any] | None, name: str) -> tuple[NDArray[Any], ...]:
    """Windows `(n, WINDOW, sensors)`, remaining life `(n,)` and key `(n,)`, unit after unit."""
    sensors = [FIRST_SENSOR + number - 1 for number in SENSORS]
    windows, life, keys = [], [], []
    for unit in np.unique(rows[:, 0]).astype(int):
        own = rows[rows[:, 0] == unit]
        end = own[-1, 1] + (0 if left is None else left[unit - 1])
        # Before there are as many cycles, the first one stands for those that are missing.
        padded = np.concatenate([np.repeat(own[:1, sensors], WINDOW - 1, axis=0), own[:, sensors]])
        windows.append(np.lib.stride_tricks.sliding_window_view(padded, WINDOW, axis=0).transpose(0, 2, 1))
        life.append(end - own[:, 1])
        keys += [f"{name}-{unit}"] * len(own)
    return np.concatenate(windows).astype(np.float32), np.concatenate(life), np.array(keys)


def main() -> int:
    """Entry point."""
    if len(sys.argv) != 3:
        sys.stdout.write(f"{__doc__}\n")
        return 2
    arrays = np.load(sys.argv[1], allow_pickle=False)
    out = Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    (engines if "test_rul" in arrays else bearings)(arrays, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
