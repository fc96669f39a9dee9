"""The command line as a child process, and what came of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import yaml

from tests.forked import ForkServer, may_fork

COMMAND = [sys.executable, "-m", "edged"]
SECONDS = 100
_COMMANDS = ForkServer("commands")


@dataclass(frozen=True)
class Answer:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Stdout, which has to be one JSON value on one line and nothing else."""
        assert self.out.count("\n") == 1, self.out + self.err
        return strict_json(self.out)

    @property
    def problem(self) -> str:
        """Stderr, which has to be one line, with nothing on stdout.

        What onnxruntime says of a processor that it does not know, as under an emulator, does not count.
        """
        assert self.out == ""
        lines = [line for line in self.err.splitlines() if not line.startswith("onnxruntime cpuid_info")]
        assert len(lines) == 1, self.err
        assert self.err.endswith("\n")
        return lines[0]


def strict_json(text: str) -> Any:
    """Read JSON as other languages do: without NaN and Infinity."""
    return json.loads(text, parse_constant=_no_number)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def edged(*arguments: object, **environment: str) -> Answer:
    """Run `edged` with these arguments, forked where that makes no difference."""
    words = [*map(str, arguments)]
    wanted = os.environ | environment
    if words[:1] == ["run"] or not may_fork(wanted):
        done = subprocess.run(
            [*COMMAND, *words], capture_output=True, text=True, check=False, timeout=SECONDS, env=wanted
        )
        return Answer(done.returncode, done.stdout, done.stderr)
    with tempfile.TemporaryDirectory() as place:
        out, err = Path(place, "out"), Path(place, "err")
        process = _COMMANDS.start(words, wanted, out, err)
        try:
            code = process.wait(SECONDS)
        finally:
            process.kill()
        return Answer(code, *(file.read_text(encoding="utf-8") for file in (out, err)))


def write_config(folder: Path, stream: dict[str, Any], **sections: Any) -> Path:
    """A configuration file in `folder`, its state beside it."""
    path = folder / "edged.yaml"
    values = {"device": {"id": "rig"}, "stream": stream} | sections
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def two_classes(n: int, width: int = 4, seed: int = 0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Features `(n, width)` float32 and labels `(n,)`: whether the first feature is above 0."""
    x = np.random.default_rng(seed).normal(size=(n, width)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64)


def generated_page_is_current(script: str) -> bool:
    """Whether a page under `docs/` says what its script would write; prints what differs."""
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, str(root / "docs" / script), "--check"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    sys.stdout.write(done.stderr)
    return (done.returncode, done.stderr) == (0, "")
