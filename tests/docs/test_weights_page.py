"""The program of docs/weights.md reads updates that were saved as they came."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest
from safetensors.numpy import load_file

from edged.domain.training.weight_coding import fingerprint
from tests.weights import Sender, big_bundle

if TYPE_CHECKING:
    from edged.device.outbound.weight_updates import WeightUpdate

PAGE = Path(__file__).parents[2] / "docs" / "weights.md"


@pytest.fixture
def sender(tmp_path: Path) -> Iterator[Sender]:
    made = Sender(tmp_path / "state", 1883, big_bundle(tmp_path / "bundle", 24), dtype="int8")
    yield made
    made.stop()


def saved(update: WeightUpdate, folder: Path) -> Path:
    """As `mosquitto_sub` leaves them: one file a message."""
    folder.mkdir()
    (folder / "manifest").write_text(json.dumps(update.manifest()), encoding="utf-8")
    for number, chunk in enumerate(update.chunks):
        (folder / str(number)).write_bytes(chunk)
    return folder


def read(folder: Path, out: Path) -> subprocess.CompletedProcess[str]:
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    command = [sys.executable, "-c", found[1], str(folder), str(out)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_the_program_of_the_page_reads_an_update(
    sender: Sender, tmp_path: Path, dtype: Literal["float32", "int8"]
) -> None:
    update = sender.updates.update(sender.model(0), dtype)
    folder, out = saved(update, tmp_path / "update"), tmp_path / "weights.safetensors"
    done = read(folder, out)
    assert (done.returncode, done.stderr) == (0, "")
    weights = load_file(out)
    assert fingerprint(weights) == update.manifest()["parameters"]
    assert all(np.abs(weights[name] - own).max() < 0.05 for name, own in sender.weights.items())
    (folder / "0").write_bytes(b"torn")
    assert "damaged" in read(folder, out).stderr
