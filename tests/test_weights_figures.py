"""What updates of weights cost on a recorded stream, as the benchmark tells it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import strict_json
from tests.streams import data_folder

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "weights.py"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_an_int8_difference_is_an_eighth_of_its_weights_and_loses_half_a_point_at_most(seed: int) -> None:
    data = data_folder()
    if not (data / "hapt_feat.npz").exists():
        pytest.skip("the recorded stream is not here: set EDGED_TEST_DATA")
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
