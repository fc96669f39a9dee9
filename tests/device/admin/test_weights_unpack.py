"""`edged weights unpack`: updates that were saved as they came, made into files that others read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import load_file

from edged.domain.training.weight_coding import fingerprint
from edged.engines.inference import InferenceModel
from edged.engines.portable.engine import PortableEngine
from tests.commands import edged
from tests.weights import Sender, big_bundle

if TYPE_CHECKING:
    from edged.device.outbound.weight_updates import WeightUpdate


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


@pytest.mark.slow
def test_an_update_becomes_a_model(sender: Sender, tmp_path: Path) -> None:
    update = sender.updates.update(sender.model(0))
    folder, out = saved(update, tmp_path / "update"), tmp_path / "two.onnx"
    done = edged("weights", "unpack", folder, "--bundle", sender.bundle.path, "-o", out, "--json")
    assert done.code == 0, done.err
    assert done.json["fingerprint"] == update.about.parameters
    engine = PortableEngine(sender.bundle)
    engine.set_parameters(sender.weights)
    engine.export(tmp_path / "own.onnx")
    x = np.random.default_rng(0).standard_normal((50, 32)).astype(np.float32)
    got, own = (InferenceModel(path).predict(x) for path in (out, tmp_path / "own.onnx"))
    assert np.abs(got - own).max() < 0.2
    (folder / "0").write_bytes(b"torn")
    assert "chunk 0" in edged("weights", "unpack", folder).err


def test_whole_weights_come_back_bit_by_bit(sender: Sender, tmp_path: Path) -> None:
    update = sender.updates.update(sender.model(0), "float32")
    out = tmp_path / "whole.safetensors"
    assert edged("weights", "unpack", saved(update, tmp_path / "whole"), "-o", out).code == 0
    assert fingerprint(load_file(out)) == fingerprint(sender.weights)
    assert "neither" in edged("weights", "unpack", tmp_path / "whole", "-o", tmp_path / "x.onnx").err
    assert "no manifest" in edged("weights", "unpack", tmp_path, "--json").err
