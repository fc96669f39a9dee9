"""What updates of weights cost on a recorded stream, as the benchmark tells it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.commands import strict_json
from tests.streams import recording

if TYPE_CHECKING:
    from numpy.typing import NDArray

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "weights.py"


def activities() -> dict[str, NDArray[Any]]:
    """Twelve activities in 72 features, a little different for each of 30 users."""
    rng = np.random.default_rng(4)
    user, y = np.repeat(np.arange(30), 360), rng.integers(0, 12, 10_800)
    centres, habits = rng.normal(0, 0.8, (12, 72)), rng.normal(0, 0.3, (30, 72))
    x = centres[y] + habits[user] + rng.normal(size=(10_800, 72))
    return {"X": x.astype(np.float32), "y": y, "user": user}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_an_int8_difference_is_an_eighth_of_its_weights_and_loses_half_a_point_at_most(
    seed: int, tmp_path: Path
) -> None:
    data = recording("hapt_feat", tmp_path, activities).parent
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--data", str(data), "--seed", str(seed), "--json"],
        capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    rows = strict_json(done.stdout)["rows"]
    (row,) = [r for r in rows if (r["base"], r["dtype"], r["step"]) == ("last", "int8", 0.5)]
    assert row["ratio"] <= 1 / 8
    assert row["worst"] <= 0.5
    assert row["accuracy"] > 85
    (whole,) = [r for r in rows if (r["mode"], r["dtype"]) == ("full", "float32")]
    assert (whole["worst"], whole["loss_points"]) == (0.0, 0.0)
