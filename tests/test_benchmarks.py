"""Benchmarks run as their page says, and their objects have what is read from them elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.commands import strict_json

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "engines.py"
QUICK = ["--repeats", "1", "--seconds", "0.1"]


def engines(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), *QUICK, *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )


@pytest.mark.slow
def test_the_engine_benchmark_tells_times_ratios_and_memory(tmp_path: Path) -> None:
    out = tmp_path / "engines.json"
    done = engines("--models", "mlp", "--batches", "2", "--threads", "1", "--json", "--out", str(out))
    result = strict_json(done.stdout)
    assert result == strict_json(out.read_text())
    assert result["benchmark"] == "engines"
    (row,) = result["rows"]
    assert (row["batch"], row["threads"], row["optimizer"], row["refused"]) == (2, 1, "adamw", None)
    times = [row[name] for name in ("native_us", "portable_us", "bare_us", "ratio", "native_to_bare")]
    assert all(value > 0 for value in times)
    assert 1 < row["native_growth_mb"] < row["native_peak_mb"]
    assert 0 < row["growth_ratio"] < 10
    assert (row["torch_us"], row["torch_ratio"]) == (None, None)


@pytest.mark.slow
def test_every_network_has_a_line_whoever_can_train_it() -> None:
    lines = engines("--batches", "1", "--threads", "2").stdout.splitlines()
    assert lines[0].split()[:4] == ["model", "batch", "threads", "optimizer"]
    assert [line.split()[0] for line in lines[1:] if not line.startswith(" ")] == [
        "mlp", "1-D", "2-D", "LSTM", "GRU",
    ]  # fmt: skip


@pytest.mark.slow
def test_rows_of_learning_are_merged_and_tell_their_commands(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2)).astype(np.float32)
    np.savez(tmp_path / "line.npz", X=x, y=(x[:, 0] > 0).astype(np.int8))
    out = tmp_path / "learning.json"

    def learning(rivals: str, *options: str) -> list[dict[str, Any]]:
        program = [sys.executable, str(PROGRAM.with_name("learning.py")), "--data", str(tmp_path)]
        what = ["--streams", "line", "--seeds", "1", "--rivals", rivals, "--out", str(out), *options]
        subprocess.run([*program, *what], check=True, capture_output=True, timeout=100)
        rows: list[dict[str, Any]] = strict_json(out.read_text())["rows"]
        return rows

    frozen, fresh = "frozen + running re-standardisation", "new rows only, 20 steps"
    first = learning(f"{frozen},{fresh}")
    assert [row["what"] for row in first] == [frozen, fresh]
    assert str(tmp_path / "line.npz") not in first[0]["command"]
    again = learning(fresh, "--merge", "--label-rate", "0.5")
    assert again[:2] == first
    assert (again[2]["what"], again[2]["label_rate"]) == (fresh, 0.5)
    assert "--label-rate 0.5" in again[2]["command"]
    (_, replaced, _) = learning(fresh, "--merge")
    assert "--merge" in replaced["command"]
    assert replaced["accuracy"] == first[1]["accuracy"]
    assert [row["what"] for row in learning(frozen)] == [frozen]
