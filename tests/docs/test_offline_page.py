"""docs/offline.md: its shell lines are run as they are, from a network that PyTorch has exported."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from edged.workbench.demo.broker import Mosquitto

PAGE = Path(__file__).parents[2] / "docs" / "offline.md"
EXPORTED = Path(__file__).parents[1] / "bundles" / "exported" / "mlp_dynamo.onnx"


def blocks(kind: str) -> list[str]:
    """What stands in the page's blocks of this kind."""
    text = PAGE.read_text(encoding="utf-8")
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def record(path: Path, n: int, seed: int) -> None:
    """A press whose state shows in current and vibration."""
    rng = np.random.default_rng(seed)
    state = rng.integers(0, 3, n)
    levels = np.array([[20, 0.01, 0.01, 0.5], [60, 0.1, 0.1, 12], [65, 0.4, 0.3, 13]])
    x = levels[state] * rng.normal(1, 0.15, (n, 4))
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["temp", "vib.x", "vib.y", "current", "state"])
        names = ("idle", "normal", "worn")
        rows.writerows([*map(float, row), names[of]] for row, of in zip(x, state, strict=True))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_lines_of_the_page_lead_from_an_exported_model_to_a_prediction(
    broker: Mosquitto, tmp_path: Path
) -> None:
    shutil.copy(EXPORTED, tmp_path / "press.onnx")
    record(tmp_path / "recorded.csv", 500, 0)
    record(tmp_path / "later.csv", 200, 1)
    config, recipes, more = blocks("yaml")
    (tmp_path / "recipes.yaml").write_text(recipes, encoding="utf-8")
    *before, on_the_device = blocks("sh")
    (tmp_path / "press.yaml").write_text(config, encoding="utf-8")
    add = f"cat >> press.yaml <<'END'\n{more}END\n"
    lines = ["set -emuo pipefail", f"cd {tmp_path}", *before, add, on_the_device]
    (tmp_path / "offline.sh").write_text("\n".join(lines), encoding="utf-8")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"
    settings = {
        "BROKER": f"-h 127.0.0.1 -p {broker.port}", "EDGED_MQTT__PORT": str(broker.port),
        "EDGED_STORAGE__DIR": str(tmp_path / "state"), "PATH": path, "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    done = subprocess.run(
        ["bash", tmp_path / "offline.sh"], capture_output=True, text=True, check=False, timeout=280,
        env=os.environ | settings,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "temp (°C), vib.x (g), vib.y (g), current (A)" in " ".join(done.stdout.split())
    assert "signed, whole, loads and trains here" in done.stdout
    assert re.search(r'"label": ?"normal"', done.stdout), "the winner's weights came with the bundle"


def test_the_network_of_the_page_is_the_one_that_was_exported() -> None:
    made = (EXPORTED.parent / "make.py").read_text(encoding="utf-8")
    (code,) = blocks("python")
    network = "nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))"
    assert network in made
    assert network in code
