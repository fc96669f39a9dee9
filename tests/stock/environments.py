"""Environments with stock onnxruntime and edged's wheel, and what is run in them."""

from __future__ import annotations

import filecmp
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.commands import Answer
from tests.running_device import Device

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGE = ROOT / "edged"
# Emulated machines take their time.
SECONDS = 100 * int(os.environ.get("EDGED_TEST_PATIENCE", "1"))
REMEDY = "run the tests with `make test`, which makes it"


@dataclass(frozen=True)
class Environment:
    """One environment; `record` is a file with the forbidden imports that its processes tried."""

    home: Path
    record: Path

    @classmethod
    def find(cls, which: str, record: Path) -> Environment:
        """The environment `oldest` or `newest`; AssertionError where it is missing or has an old edged."""
        home = Path(os.environ.get(f"EDGED_STOCK_{which.upper()}", ROOT / f".venv-stock-{which}")).resolve()
        assert (home / "bin" / "edged").exists(), f"{home} is not there: {REMEDY}"
        found = cls(home, record)
        stale = next(found._changed(), None)
        assert stale is None, f"{home} was made before edged/{stale} was changed: {REMEDY}"
        return found

    def _changed(self) -> Iterator[Path]:
        installed = next(self.home.glob("lib/python3*/site-packages/edged"))
        for path in PACKAGE.rglob("*.py"):
            mine, other = path.relative_to(PACKAGE), installed / path.relative_to(PACKAGE)
            if not other.exists() or not filecmp.cmp(path, other, shallow=False):
                yield mine

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.home / "bin" / "python")

    @property
    def edged(self) -> str:
        """Its `edged` command."""
        return str(self.home / "bin" / "edged")

    @property
    def variables(self) -> dict[str, str]:
        """Our own environment variables, with the guard on the path in place of the working tree."""
        path = {"PYTHONPATH": str(HERE / "guard"), "EDGED_TEST_IMPORTS": str(self.record)}
        return os.environ | path

    def run(self, command: str, *arguments: object, folder: Path) -> Answer:
        """Run a program of this environment in `folder`, outside of the working tree."""
        done = subprocess.run(
            [str(self.home / "bin" / command), *map(str, arguments)],
            capture_output=True, text=True, check=False, timeout=SECONDS, env=self.variables, cwd=folder,
        )  # fmt: skip
        return Answer(done.returncode, done.stdout, done.stderr)


class StockDevice(Device):
    """A daemon that runs in such an environment."""

    def __init__(
        self, home: Environment, folder: Path, port: int, stream: dict[str, Any], **more: Any
    ) -> None:
        super().__init__(folder, port, stream, **more)
        self._home = home

    def start(self, **environment: str) -> None:
        """Start the daemon."""
        with self.log.open("ab") as sink:
            self.process = subprocess.Popen(
                [self._home.edged, "run", str(self.path)],
                stdout=sink, stderr=sink, cwd=self.folder, env=self._home.variables | environment,
            )  # fmt: skip
