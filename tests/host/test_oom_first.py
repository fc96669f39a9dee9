"""What trains is what the kernel ends first, before it has imported anything."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from edged.host.child_process import command

if TYPE_CHECKING:
    import pytest

MODULE = """
import json, sys
score = open("/proc/self/oom_score_adj").read().strip()
print(json.dumps([__name__, score, sys.argv[0], "numpy" in sys.modules, "edged.trainer" in sys.modules]))
sys.exit(7)
"""


def test_a_module_runs_as_itself_with_the_score_raised_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work.py").write_text(MODULE)
    done = subprocess.run(command("work"), cwd=tmp_path, capture_output=True, text=True, check=False)
    name, score, argument, numpy, trainer = json.loads(done.stdout)
    assert (name, score, numpy, trainer) == ("__main__", "900", False, False)
    assert argument.endswith("work.py")
    assert (done.returncode, done.stderr) == (7, "")


def test_a_group_that_cannot_be_joined_is_told_and_the_module_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work.py").write_text("print('done')")
    monkeypatch.setenv("EDGED_TRAINER_CGROUP", str(tmp_path / "gone"))
    done = subprocess.run(command("work"), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "done\n"
    assert done.stderr == "work: control group not joined: No such file or directory\n"
