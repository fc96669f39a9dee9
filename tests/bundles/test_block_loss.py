"""Losses that are blocks of onnxruntime-training's `onnxblock`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edged.bundles.graph.templates import mlp
from edged.bundles.losses.objective import FunctionLoss
from edged.engines import open_engine
from edged.errors import BundleError, ConfigError, UnavailableError
from tests.building import build
from tests.installed import ENGINES, built_for_each, needs_native

RNG = np.random.default_rng(11)
HEAD = "from onnxruntime.training import onnxblock\n"
OWN = """b = onnxblock.blocks
class Loss(onnxblock.Block):
    def build(self, out):
        """


def block(folder: Path, code: str) -> FunctionLoss:
    (folder / "own.py").write_text(HEAD + code)
    return FunctionLoss(f"{folder / 'own.py'}:Loss")


@pytest.mark.skipif("native" in ENGINES, reason="onnxruntime-training is installed")
def test_without_the_package_it_says_what_to_do_instead(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="this loss needs onnxruntime-training") as caught:
        block(tmp_path, "Loss = onnxblock.loss.MSELoss")
    assert "write it as a function: see docs/losses.md" in caught.value.line()


@needs_native
@pytest.mark.parametrize(("kind", "name"), [("CrossEntropyLoss", "cross_entropy"), ("MSELoss", "mse")])
@pytest.mark.parametrize("made", ["", "()"])
def test_upstreams_own_block_is_the_built_in_loss(tmp_path: Path, kind: str, name: str, made: str) -> None:
    for folder in ("own", "built-in"):
        (tmp_path / folder).mkdir()
    loss = block(tmp_path, f"Loss = onnxblock.loss.{kind}{made}")
    own = built_for_each(mlp(5, 3, (8,)), tmp_path / "own", loss=loss)
    built_in = built_for_each(mlp(5, 3, (8,)), tmp_path / "built-in", loss=name)
    assert (own["portable"].label, tuple(own)) == (built_in["portable"].label, ENGINES)
    x = RNG.standard_normal((9, 5)).astype(np.float32)
    y = RNG.integers(0, 3, 9) if name == "cross_entropy" else x[:, :3]
    for engine in ENGINES:
        engines = [open_engine(engine, bundles[engine]) for bundles in (own, built_in)]
        for _ in range(20):
            losses = [each.step(x, y).loss for each in engines]
            assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@needs_native
@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("return b.Abs()(out)", r"must be one float32 number, what it returns is of shape \['batch', 3\]"),
        ("return b.ReduceMean()(b.Abs()(out))", "takes no labels"),
        ("raise KeyError('layer9')", "cannot be built: KeyError: 'layer9'"),
        ("self.base.graph.node[0].name = 'other'; return onnxblock.loss.MSELoss()(out)",
         "changes the network; it may only add nodes"),
        ("del self.base.graph.node[0]; return onnxblock.loss.MSELoss()(out)", "cannot be built"),
    ],
)  # fmt: skip
def test_a_block_that_is_no_loss_is_one_clear_line(tmp_path: Path, code: str, says: str) -> None:
    with pytest.raises(BundleError, match=says) as caught:
        build(mlp(5, 3), tmp_path / "b", loss=block(tmp_path, OWN + code))
    assert "own.py:Loss" in caught.value.line()


@needs_native
def test_a_training_block_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no function that writes a loss"):
        block(tmp_path, "class Loss(onnxblock.TrainingBlock): pass")


@needs_native
def test_a_file_of_the_working_directory_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream's blocks remove `temp.onnx`, whoever has written it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "temp.onnx").write_bytes(mlp(5, 3, (8,)).SerializeToString())
    build(tmp_path / "temp.onnx", tmp_path / "b", loss=block(tmp_path, "Loss = onnxblock.loss.MSELoss"))
    assert (tmp_path / "temp.onnx").is_file()
