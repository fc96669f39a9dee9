"""What was learned first is still known after other machines, and models that forgot it are refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edged.domain.judging.paired_test import block_bootstrap
from edged.workbench.evaluation import run
from edged.workbench.evaluation.stream import LabelOptions
from tests.constants import loaded

OPEN_GATE = {"min_gain": -1.0, "max_regret": 1.0, "min_holdout": 1, "probation": 0, "holdout": 0.1}
STRICT_GATE = {"min_gain": -0.05, "max_regret": 0.02, "holdout": 0.1}


def machines(folder: Path, rows: int = 300, others: int = 5) -> tuple[Path, int]:
    """States of six machines one after the other, each with sensors of its own; the first counts twice."""
    rng = np.random.default_rng(4)
    centres = rng.normal(0, 1.0, (4, 10))
    x, y = [], []
    for machine in range(others + 1):
        n = 2 * rows if machine == 0 else rows
        state = rng.integers(0, 4, n)
        x.append((centres[state] + rng.normal(0, 0.5, (n, 10))) * rng.choice([-1.0, 1.0], 10))
        y.append(state)
    path = folder / "machines.npz"
    np.savez(path, X=np.concatenate(x).astype(np.float32), y=np.concatenate(y))
    return path, 2 * rows


def evaluated(folder: Path, training: dict[str, Any], gate: dict[str, Any]) -> Mapping[str, Any]:
    folder.mkdir()
    data, first = machines(folder)
    stream = {"features": 10, "classes": 4}
    config = loaded(folder, stream, training=training, gate=gate)
    return run(config, data, LabelOptions(delay=20, pretrain=first)).to_json()


@pytest.mark.full
def test_memory_keeps_what_was_learned_first_and_the_gate_refuses_models_that_lost_it(tmp_path: Path) -> None:
    remembering = evaluated(tmp_path / "memory", {}, OPEN_GATE)
    forgetful = evaluated(tmp_path / "none", {"replay": 0}, OPEN_GATE)
    refused = evaluated(tmp_path / "gate", {"replay": 0}, STRICT_GATE)
    assert forgetful["forgetting"] > remembering["forgetting"] + 0.1
    assert refused["rejections"] >= 3 > forgetful["rejections"]
    assert remembering["metric"]["accuracy"] > remembering["frozen"]["accuracy"] + 0.1


def test_the_interval_of_independent_differences_is_that_of_the_normal_law() -> None:
    difference = np.random.default_rng(0).normal(0.2, 1.0, 20_000)
    low, high = block_bootstrap(difference)
    width = 1.96 / np.sqrt(len(difference))
    assert low < difference.mean() < high
    assert (high - low) / 2 == pytest.approx(width, rel=0.15)


def test_bursts_make_the_interval_wider() -> None:
    noise = np.random.default_rng(0).normal(size=200)
    bursts = np.repeat(noise, 100)
    low, high = block_bootstrap(bursts)
    assert high - low > 5 * (2 * 1.96 * bursts.std() / np.sqrt(len(bursts)))
