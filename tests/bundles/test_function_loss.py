"""Losses that are functions: the examples of docs/losses.md, on every engine."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from edged.bundles.graph.templates import autoencoder, mlp
from edged.bundles.inspect import verify
from edged.bundles.losses.objective import FunctionLoss
from edged.bundles.source.standardise import Statistics
from edged.cli.main import app
from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from edged.engines.portable.engine import PortableEngine
from edged.errors import BundleError, ConfigError
from edged.storage.models.bundles import Bundle
from tests.building import build
from tests.bundles.engines_agree.gradients import assert_equal, gradients, numerical
from tests.commands import strict_json
from tests.installed import ENGINES, built_for_each

PAGE = Path(__file__).parents[2] / "docs" / "losses.md"
RNG = np.random.default_rng(11)
X = RNG.standard_normal((9, 5)).astype(np.float32)
Y = (2 * RNG.standard_normal((9, 3))).astype(np.float32)


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


@pytest.mark.parametrize(("name", "delta"), [("huber", 1.0), ("narrow", 0.1)])
def test_huber_is_its_formula(examples: Path, name: str, delta: float) -> None:
    loss = FunctionLoss(f"{examples / 'losses.py'}:{name}")
    bundles = built_for_each(mlp(5, 3, (8,)), examples, loss=loss, optimizer="sgd")
    assert tuple(bundles) == ENGINES
    start = open_engine("portable", bundles["portable"]).parameters()
    expected = numerical(lambda p: huber(p, delta), start)
    for engine, bundle in bundles.items():
        assert (bundle.loss, bundle.label.name) == ("custom", "target")
        assert open_engine(engine, bundle).evaluate(X, Y) == pytest.approx(huber(start, delta), rel=1e-5)
        assert_equal(expected, gradients(bundle, X, Y))


def test_a_penalty_on_weights_is_in_loss_and_gradient(examples: Path) -> None:
    loss = FunctionLoss(f"{examples / 'penalised.py'}:reconstruction")
    bundles = built_for_each(autoencoder(5, (4,), 2), examples, loss=loss, optimizer="sgd")
    plain = build(autoencoder(5, (4,), 2), examples / "p", loss="mse", optimizer="sgd")
    start = open_engine("portable", plain).parameters()
    weights = [name for name in start if name.endswith(".weight")]
    assert len(weights) == 4
    more = 5e-4 * sum(float((start[name].astype(np.float64) ** 2).sum()) for name in weights)
    without = gradients(plain, X, X)
    for bundle in bundles.values():
        losses = [open_engine(each.engine, each).evaluate(X, X) for each in (bundle, plain)]
        assert losses[0] - losses[1] == pytest.approx(more, rel=1e-3)
        assert more > 1e-3
        found = gradients(bundle, X, X)
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
        app([*words, "--force", "--json"], standalone_mode=False)
        told = strict_json(capsys.readouterr().out)
        assert (told["loss"], told["notes"]) == ("custom", [])
        assert verify(examples / "bundle").ok


def test_adamw_steps_and_rows_of_weight_0(examples: Path) -> None:
    """The scale of AdamW's moments, and padding know such a loss too."""
    loss = FunctionLoss(f"{examples / 'losses.py'}:huber")
    bundles = built_for_each(mlp(5, 3, (8,)), examples, loss=loss)
    one, other = (open_engine(name, bundles[name]) for name in (ENGINES[-1], "portable"))
    padded = PortableEngine(bundles["portable"])
    short = (
        np.concatenate([X, np.full((4, 5), 7, np.float32)]),
        np.concatenate([Y, np.zeros((4, 3), np.float32)]),
    )
    for engine in (one, other, padded):
        engine.begin(LearningRate(0.02))
    losses = [one.step(X, Y).loss for _ in range(20)]
    assert [other.step(X, Y).loss for _ in range(20)] == pytest.approx(losses, rel=1e-4)
    weights = (np.arange(13) < 9).astype(np.float32)
    assert [padded.step(*short, weights=weights).loss for _ in range(20)] == pytest.approx(losses, rel=1e-4)
    assert losses[-1] < losses[0]


def test_it_judges_standardised_targets_in_the_networks_own_units(examples: Path) -> None:
    loss, spread = FunctionLoss(f"{examples / 'losses.py'}:huber"), np.full(3, 2, np.float32)
    statistics = Statistics(np.zeros(5, np.float32), np.ones(5, np.float32), spread, np.float32(1) / spread)
    for engine in ENGINES:
        plain = build(mlp(5, 3, (8,)), examples / "p", loss=loss, engine=engine)
        units = build(mlp(5, 3, (8,)), examples / "u", loss=loss, standardise=statistics, engine=engine)
        judged = open_engine(engine, plain).evaluate(X, Y), open_engine(engine, units).evaluate(X, Y * 2 + 2)
        assert judged[0] == pytest.approx(judged[1], rel=1e-5)


def test_the_bundle_is_read_back_as_it_was_built_and_built_the_same_again(examples: Path) -> None:
    loss = FunctionLoss(f"{examples / 'losses.py'}:huber")
    bundles = [build(mlp(5, 3, (8,)), examples / name, loss=loss) for name in "ab"]
    assert bundles[0].fingerprint == bundles[1].fingerprint
    assert Bundle.open(bundles[0].path) == bundles[0]


CODE = "def loss(g, out):\n    "
TARGET = "g.label('target', g.row(out))"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("return g.add('Abs', [out])", r"must be one float32 number, .* is of shape \['batch', 3\]"),
        ("return g.add('ReduceMean', [g.add('Abs', [out])])", "takes no labels: give it one, with"),
        (f"return g.add('Sub', [out, {TARGET}]) + 'x'", "one float32 number, .* of unknown shape"),
        (f"{TARGET}; return g.add('ArgMax', [out])", "one float32 number, .* of unknown shape or type"),
        ("raise KeyError('layer9')", "cannot be built: KeyError: 'layer9'"),
        ("return g.add('Abss', [out])", "No Op registered for Abss"),
        ("return g.add('ReduceMean', [out], axis=1)", "Unrecognized attribute: axis for operator ReduceMean"),
        (f"return g.add('Add', [out, {TARGET}.upper()])", "input 'TARGET' of node"),
        ("return g.add('Add', [out, g.label('labels', dtype='int64')])", "inconsistent type"),
        ("return g.add('ReduceMean', [g.label('target', ['n'])], keepdims=0)", "takes 'target': float32 or"),
        (f"return g.add('ReduceSum', [g.add('Sub', [{TARGET}, g.label('o')])])", "takes 2 labels"),
        (f"{TARGET}; return {TARGET}", "cannot be built: ValidationError"),
    ],
)  # fmt: skip
def test_what_is_no_loss_is_one_clear_line(tmp_path: Path, code: str, says: str) -> None:
    (tmp_path / "l.py").write_text(CODE + code)
    with pytest.raises(BundleError, match=says) as caught:
        build(mlp(5, 3), tmp_path / "b", loss=FunctionLoss(f"{tmp_path / 'l.py'}:loss"))
    assert "l.py:loss: the loss " in caught.value.line()
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("source", "code", "says"),
    [
        ("l.py:absent", "", "is no function that writes a loss"),
        ("l.py:loss", "loss = 3", "is no function that writes a loss"),
        ("l.py:loss", "class loss: pass", "is no function that writes a loss"),
        ("l.py:loss", "import nowhere", "cannot be imported: ModuleNotFoundError"),
        ("l.py:loss", "class (", "cannot be imported: SyntaxError"),
        ("absent.py:loss", "", "cannot be imported: FileNotFoundError"),
        ("no.such.module:loss", "", "cannot be imported: ModuleNotFoundError"),
    ],
)
def test_what_is_no_function_is_one_clear_line(tmp_path: Path, source: str, code: str, says: str) -> None:
    (tmp_path / "l.py").write_text(code)
    with pytest.raises(ConfigError, match=says) as caught:
        FunctionLoss(str(tmp_path / source) if ".py" in source else source)
    assert "\n" not in caught.value.line()


def test_the_native_engine_refuses_what_upstream_derives_wrongly_or_not_at_all(tmp_path: Path) -> None:
    """As it is in networks: an installed training package does not stand in the way."""
    (tmp_path / "l.py").write_text(
        CODE + f"return g.add('ReduceMean', [g.add('Softplus', [g.add('Sub', [out, {TARGET}])])], keepdims=0)"
    )
    loss = FunctionLoss(f"{tmp_path / 'l.py'}:loss")
    with pytest.raises(BundleError, match=r"operator Softplus has no gradient.*--engine portable"):
        build(mlp(5, 3, (8,)), tmp_path / "b", loss=loss, engine="native")
    bundle = build(mlp(5, 3, (8,)), tmp_path / "b", loss=loss, optimizer="sgd")
    start = open_engine("portable", bundle).parameters()
    expected = numerical(lambda p: float(np.logaddexp(0, said(p, X.astype(np.float64)) - Y).mean()), start)
    assert_equal(expected, gradients(bundle, X, Y))


def test_a_module_of_the_working_directory(examples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(examples)
    (examples / "own_losses.py").write_text((examples / "losses.py").read_text())
    bundle = build(mlp(5, 3, (8,)), examples / "b", loss=FunctionLoss("own_losses:huber"))
    assert bundle.loss == "custom"
