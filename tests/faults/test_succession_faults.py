"""Every stage of a succession meets every fault: what serves in the end is the old or the new model, whole.

While it happens every sample is answered exactly once; after a restart the registry is consistent and
the next candidate gets through.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.storage.models.registry import Registry
from tests.device.gates import Gate
from tests.device.linear import GOOD, candidate, inputs
from tests.faults.episodes import FAULTS, NEW, OLD, STAGES

if TYPE_CHECKING:
    Episodes = Callable[[str, str, Path], dict[str, Any]]

ROOT = Path(__file__).parents[2]
TO_THE_NEW = {("stage", "timeout"), ("pointer", "timeout"), ("probation", "timeout")}
"""A disk that is slow delays a succession, and labels that do not come prove nothing: all else goes back."""


@pytest.fixture(scope="module")
def episodes() -> Iterator[Episodes]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.faults.episodes"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        orders, answers = process.stdin, process.stdout

        def play(stage: str, fault: str, folder: Path) -> dict[str, Any]:
            orders.write(json.dumps({"stage": stage, "fault": fault, "folder": str(folder)}) + "\n")
            orders.flush()
            answer: dict[str, Any] = json.loads(answers.readline())
            return answer

        yield play
        orders.close()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("stage", STAGES)
def test_a_fault_at_any_stage_ends_on_a_whole_model(
    episodes: Episodes, tmp_path: Path, stage: str, fault: str
) -> None:
    told = episodes(stage, fault, tmp_path)
    if fault == "kill":
        assert told == {"code": -9}
    else:
        assert told["code"] == 0
        check_live(told, NEW if (stage, fault) in TO_THE_NEW else OLD)
    check_after_a_restart(tmp_path, told.get("serving"))


def check_live(told: dict[str, Any], expected: int) -> None:
    """What the process that lived through it says."""
    assert told["hit"], "the fault came"
    assert told["serving"] == told["champion"] == expected, told
    assert told["settled"]
    assert told["errors"] == 0
    assert told["submitted"] == told["published"] == told["answered"], "each sample once"
    assert told["back_after"] < 5.0, "promised is a second; this machine may be busy"


def check_after_a_restart(folder: Path, served_before: int | None) -> None:
    """What a new process finds."""
    with closing(Registry.open(folder)) as registry:
        champion = registry.champion()
        assert champion in ((OLD, NEW) if served_before is None else (served_before,))
        assert [r.version for r in registry.records() if r.status == "champion"] == [champion]
        for record in registry.records():
            registry.verify(record.version)
    with closing(Gate.reopened(folder, latency=30.0)) as gate:
        assert gate.champion.version == champion
        assert np.isfinite(gate.champion.model.predict(inputs(8))).all()
        assert not list(gate.candidates.glob("*"))
        verdict, model = gate.judge(candidate(gate.candidates, 2, GOOD))
        assert model is not None, verdict
        gate.models.set_champion(model.version, "the next one")
        assert gate.registry.champion() == model.version
