"""docs/tuning.md: the example runs, and its comparison judges the tuned configuration."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tuning.md"


def record(path: Path, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    worn = rng.random(rows) < 0.5
    levels = np.where(worn[:, None], [65.0, 0.4, 13.0], [60.0, 0.1, 12.0])
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["temp", "vib", "current", "state"])
        values = levels * rng.normal(1, 0.1, levels.shape)
        table.writerows([*row, "worn" if w else "normal"] for row, w in zip(values, worn, strict=True))


@pytest.mark.slow
def test_the_example_with_optuna_runs(tmp_path: Path) -> None:
    found = re.search(r"<!-- save: tune.py -->\n```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    program = found[1].replace("n_trials=40", "n_trials=2")
    record(tmp_path / "recorded.csv", 200, 0)
    record(tmp_path / "later.csv", 200, 1)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split(" ", 2) for line in done.stdout.splitlines()]
    assert {name for name, _, _ in lines} == {"defaults", "tuned"}
    assert lines[0][2] == "best"
    assert lines[1][2] in ("worse", "no difference found")
