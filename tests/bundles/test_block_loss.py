"""Losses that are blocks of upstream's training package: the examples of docs/losses.md, on both engines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edged.bundles.build import build
from edged.bundles.graph.templates import autoencoder, mlp
from edged.bundles.inspect import verify
from edged.bundles.losses.block import BlockLoss
from edged.bundles.source.standardise import Statistics
from edged.cli.main import app
from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from edged.engines.portable.engine import PortableEngine
from edged.errors import BundleError, ConfigError
from edged.storage.models.bundles import Bundle
from tests.bundles.engines_agree.gradients import ENGINES, assert_equal, gradients, numerical
from tests.commands import strict_json

if TYPE_CHECKING:
    import onnx

PAGE = Path(__file__).parents[2] / "docs" / "losses.md"
RNG = np.random.default_rng(11)
X = RNG.standard_normal((9, 5)).astype(np.float32)
Y = (2 * RNG.standard_normal((9, 3))).astype(np.float32)
HEAD = "from onnxruntime.training import onnxblock\nb = onnxblock.blocks\n"


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """The files that the page shows."""
    shown = re.findall(r"```python file=(\S+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for name, code in shown:
        (tmp_path / name).write_text(code)
    assert [name for name, _ in shown] == ["losses.py", "penalised.py"]
    return tmp_path


def said(p: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    hidden = np.maximum(x @ p["layer1.weight"].T + p["layer1.bias"], 0)
    return np.asarray(hidden @ p["layer2.weight"].T + p["layer2.bias"])


def huber(p: dict[str, np.ndarray], delta: float = 1.0) -> float:
    away = np.abs(said(p, X.astype(np.float64)) - Y)
    return float(np.where(away < delta, away**2 / 2, delta * (away - delta / 2)).mean())


@pytest.mark.parametrize(("name", "delta"), [("Huber", 1.0), ("narrow", 0.1)])
def test_huber_is_its_formula(examples: Path, name: str, delta: float) -> None:
    loss = BlockLoss(f"{examples / 'losses.py'}:{name}")
    bundle = build(mlp(5, 3, (8,)), examples / "b", loss=loss, optimizer="sgd")
    assert (bundle.loss, bundle.engines, bundle.label.name) == ("custom", ENGINES, "target")
    start = open_engine("native", bundle).parameters()
    expected = numerical(lambda p: huber(p, delta), start)
    for engine in ENGINES:
        assert open_engine(engine, bundle).evaluate(X, Y) == pytest.approx(huber(start, delta), rel=1e-5)
        assert_equal(expected, gradients(bundle, engine, X, Y))


def test_a_penalty_on_weights_is_in_loss_and_gradient(examples: Path) -> None:
    loss = BlockLoss(f"{examples / 'penalised.py'}:Reconstruction")
    bundle = build(autoencoder(5, (4,), 2), examples / "b", loss=loss, optimizer="sgd")
    plain = build(autoencoder(5, (4,), 2), examples / "p", loss="mse", optimizer="sgd")
    start = open_engine("native", bundle).parameters()
    weights = [name for name in start if name.endswith(".weight")]
    assert len(weights) == 4
    more = 5e-4 * sum(float((start[name].astype(np.float64) ** 2).sum()) for name in weights)
    without = gradients(plain, "native", X, X)
    for engine in ENGINES:
        losses = [open_engine(engine, each).evaluate(X, X) for each in (bundle, plain)]
        assert losses[0] - losses[1] == pytest.approx(more, rel=1e-3)
        assert more > 1e-3
        found = gradients(bundle, engine, X, X)
        assert_equal({n: g + 1e-3 * start[n] * (n in weights) for n, g in without.items()}, found)


def test_the_commands_of_the_page(examples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As they stand there, in the directory of the files; the bundles verify."""
    made = {"model.onnx": mlp(5, 3, (8,)), "autoencoder.onnx": autoencoder(5, (4,), 2)}
    for name, model in made.items():
        (examples / name).write_bytes(model.SerializeToString())
    commands = re.findall(
        r"^edged (artifacts build .*\.py:.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(commands) == 3
    for command in commands:
        words = [
            str(examples / word) if "." in word or word == "bundle" else word for word in command.split()
        ]
        app([*words, "--json"], standalone_mode=False)
        told = strict_json(capsys.readouterr().out)
        assert (told["loss"], told["notes"]) == ("custom", [])
        assert verify(examples / "bundle")["ok"]


def test_adamw_steps_rows_of_weight_0_and_many_steps_at_once(examples: Path) -> None:
    """The scale of AdamW's moments, padding and the loop over steps know such a loss too."""
    bundle = build(mlp(5, 3, (8,)), examples / "b", loss=BlockLoss(f"{examples / 'losses.py'}:Huber"))
    native, portable, many = (open_engine(name, bundle) for name in ("native", "portable", "portable"))
    padded = PortableEngine(bundle)
    short = (
        np.concatenate([X, np.full((4, 5), 7, np.float32)]),
        np.concatenate([Y, np.zeros((4, 3), np.float32)]),
    )
    for engine in (native, portable, many, padded):
        engine.begin(LearningRate(0.02))
    losses = [native.step(X, Y).loss for _ in range(20)]
    assert [portable.step(X, Y).loss for _ in range(20)] == pytest.approx(losses, rel=1e-4)
    assert [step.loss for step in many.steps([(X, Y)] * 20)] == pytest.approx(losses, rel=1e-4)
    weights = (np.arange(13) < 9).astype(np.float32)
    assert [padded.step(*short, weights=weights).loss for _ in range(20)] == pytest.approx(losses, rel=1e-4)
    assert losses[-1] < losses[0]


def test_it_judges_standardised_targets_in_the_networks_own_units(examples: Path) -> None:
    loss, spread = BlockLoss(f"{examples / 'losses.py'}:Huber"), np.full(3, 2, np.float32)
    statistics = Statistics(np.zeros(5, np.float32), np.ones(5, np.float32), spread, np.float32(1) / spread)
    plain = build(mlp(5, 3, (8,)), examples / "p", loss=loss)
    units = build(mlp(5, 3, (8,)), examples / "u", loss=loss, standardise=statistics)
    for engine in ENGINES:
        judged = open_engine(engine, plain).evaluate(X, Y), open_engine(engine, units).evaluate(X, Y * 2 + 2)
        assert judged[0] == pytest.approx(judged[1], rel=1e-5)


def test_upstreams_own_block_is_the_built_in_loss(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(HEAD + "loss = onnxblock.loss.CrossEntropyLoss()\n")
    own = build(mlp(5, 3, (8,)), tmp_path / "a", loss=BlockLoss(f"{tmp_path / 'own.py'}:loss"))
    built_in = build(mlp(5, 3, (8,)), tmp_path / "b", loss="cross_entropy")
    assert own.label == built_in.label
    y = RNG.integers(0, 3, 9)
    for name in ENGINES:
        engines = [open_engine(name, bundle) for bundle in (own, built_in)]
        for _ in range(20):
            losses = [engine.step(X, y).loss for engine in engines]
            assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_the_bundle_is_read_back_as_it_was_built_and_built_the_same_again(examples: Path) -> None:
    loss = BlockLoss(f"{examples / 'losses.py'}:Huber")
    bundles = [build(mlp(5, 3, (8,)), examples / name, loss=loss) for name in "ab"]
    assert bundles[0].fingerprint == bundles[1].fingerprint
    assert Bundle.open(bundles[0].path) == bundles[0]


BLOCK = HEAD + "class Loss(onnxblock.Block):\n    def build(self, out):\n        "


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (BLOCK + "return b.Abs()(out)", r"must be one number, what it returns is of shape \['batch', 3\]"),
        (BLOCK + "return b.ReduceMean()(b.Abs()(out))", "takes no label"),
        (BLOCK + "return b.Abs()(b.InputLike(out)('target')) + 'x'", "one number, .* is of unknown shape"),
        (BLOCK + "raise KeyError('layer9')", "cannot be built: KeyError: 'layer9'"),
        (BLOCK + "self.base.graph.node[0].name = 'other'; return onnxblock.loss.MSELoss()(out)",
         "changes the network; it may only add nodes"),
        (BLOCK + "del self.base.graph.node[0]; return onnxblock.loss.MSELoss()(out)", "cannot be built"),
    ],
)  # fmt: skip
def test_a_block_that_is_no_loss_is_one_clear_line(tmp_path: Path, code: str, says: str) -> None:
    (tmp_path / "l.py").write_text(code)
    with pytest.raises(BundleError, match=says) as caught:
        build(mlp(5, 3), tmp_path / "b", loss=BlockLoss(f"{tmp_path / 'l.py'}:Loss"))
    assert "l.py:Loss" in caught.value.line()
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("source", "code", "says"),
    [
        ("l.py:Absent", "", "is no onnxblock.Block"),
        ("l.py:Loss", "Loss = 3", "is no onnxblock.Block"),
        ("l.py:Loss", "class Loss: pass", "is no onnxblock.Block"),
        ("l.py:Loss", HEAD + "class Loss(onnxblock.TrainingBlock): pass", "is no onnxblock.Block"),
        ("l.py:Loss", "import nowhere", "cannot be imported: ModuleNotFoundError"),
        ("l.py:Loss", "class (", "cannot be imported: SyntaxError"),
        ("absent.py:Loss", "", "cannot be imported: FileNotFoundError"),
        ("no.such.module:Loss", "", "cannot be imported: ModuleNotFoundError"),
    ],
)
def test_what_is_no_block_is_one_clear_line(tmp_path: Path, source: str, code: str, says: str) -> None:
    (tmp_path / "l.py").write_text(code)
    with pytest.raises(ConfigError, match=says) as caught:
        BlockLoss(str(tmp_path / source) if ".py" in source else source)
    assert "\n" not in caught.value.line()


def test_a_module_of_the_working_directory(examples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(examples)
    (examples / "own_losses.py").write_text((examples / "losses.py").read_text())
    bundle = build(mlp(5, 3, (8,)), examples / "b", loss=BlockLoss("own_losses:Huber"))
    assert bundle.loss == "custom"


def test_a_file_of_the_working_directory_stays(examples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream's blocks remove `temp.onnx`, whoever has written it."""
    monkeypatch.chdir(examples)
    model: onnx.ModelProto = mlp(5, 3, (8,))
    (examples / "temp.onnx").write_bytes(model.SerializeToString())
    build(examples / "temp.onnx", examples / "b", loss=BlockLoss("losses.py:Huber"))
    assert (examples / "temp.onnx").is_file()
