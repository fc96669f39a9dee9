"""Models of several outputs: losses that are added up, and as many labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from edged.bundles.build import build
from edged.bundles.inspect import inspect, verify
from edged.bundles.losses.cross_entropy import CrossEntropy
from edged.bundles.losses.function import FunctionLoss
from edged.bundles.losses.objective import LossHead
from edged.bundles.losses.options import parse
from edged.bundles.source.standardise import Statistics
from edged.cli.doctor import examine
from edged.domain.protocols import LearningRate
from edged.domain.stream.schema import Schema
from edged.engines import open_engine
from edged.engines.native import api as training_api
from edged.engines.portable.engine import PortableEngine
from edged.errors import BundleError, ConfigError, TrainingError
from edged.storage.files.checksummed_json import seal
from edged.storage.models.bundles import Bundle
from tests.commands import edged, write_config
from tests.installed import ENGINES, needs_native

if TYPE_CHECKING:
    from numpy.typing import NDArray

RNG = np.random.default_rng(5)
X = RNG.standard_normal((10, 4)).astype(np.float32)
STATES: NDArray[Any] = RNG.integers(0, 3, 10)
LEVELS: NDArray[Any] = RNG.standard_normal((10, 2)).astype(np.float32)
BOTH = [LossHead("state", "cross_entropy"), LossHead("level", "mse", 0.3)]


def two_headed(*, spare: bool = False) -> onnx.ModelProto:
    """`x (n, 4)` → shared layer → `state (n, 3)`, and from that on → `level (n, 2)`; perhaps `code` too."""
    rng = np.random.default_rng(1)
    shapes = {"w": (4, 6), "state.w": (6, 3), "level.w": (3, 2), "spare.w": (6, 5)}
    tensors = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) * np.float32(0.5), name)
        for name, shape in shapes.items()
        if spare or name != "spare.w"
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["shared"]),
        helper.make_node("Tanh", ["shared"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "state.w"], ["state"]),
        helper.make_node("Tanh", ["state"], ["bent"]),
        helper.make_node("MatMul", ["bent", "level.w"], ["level"]),
    ]
    sizes = {"state": 3, "level": 2}
    if spare:
        nodes.append(helper.make_node("MatMul", ["hidden", "spare.w"], ["code"]))
        sizes = {"code": 5, **sizes}
    gives = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size]) for name, size in sizes.items()
    ]
    take = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    graph = helper.make_graph(nodes, "two", [take], gives, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def terms(p: dict[str, np.ndarray], rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cross-entropy and square error of each row."""
    state = np.tanh(X[rows].astype(np.float64) @ p["w"]) @ p["state.w"]
    level = np.tanh(state) @ p["level.w"]
    surprise = np.log(np.exp(state).sum(1)) - state[np.arange(len(rows)), STATES[rows]]
    return surprise, ((level - LEVELS[rows]) ** 2).mean(1)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return build(two_headed(), tmp_path / "b", loss=BOTH)


def test_the_bundle_tells_outputs_labels_and_losses(bundle: Bundle) -> None:
    assert (bundle.loss, bundle.engines, bundle.output_names) == (
        "cross_entropy",
        ENGINES,
        ("state", "level"),
    )
    assert [label.name for label in bundle.labels] == ["labels.state", "target.level"]
    assert [(term.output, term.weight) for term in bundle.losses] == [("state", 1.0), ("level", 0.3)]
    assert Bundle.open(bundle.path) == bundle
    told = inspect(bundle.path)
    assert [label.dtype for label in told.labels] == ["int64", "float32"]
    assert [output.name for output in told.outputs] == ["state", "level"]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_sum_is_what_is_minimised(bundle: Bundle, engine: str) -> None:
    trained = open_engine(engine, bundle)
    trained.begin(LearningRate(0.02))
    losses = []
    for _ in range(60):
        surprise, square = terms(trained.parameters(), np.arange(10))
        expected = surprise.mean() + 0.3 * square.mean()
        assert trained.evaluate(X, [STATES, LEVELS]) == pytest.approx(expected, rel=1e-5)
        losses.append(trained.step(X, [STATES, LEVELS]).loss)
        assert losses[-1] == pytest.approx(expected, rel=1e-5)
    assert losses[-1] < 0.7 * losses[0]


def test_both_engines_come_to_the_same_weights(bundle: Bundle) -> None:
    engines = [open_engine(name, bundle) for name in ("auto", "portable")]
    for engine in engines:
        engine.begin(LearningRate(0.02))
    batches = [(X[i : i + 6], [STATES[i : i + 6], LEVELS[i : i + 6]]) for i in range(4)] * 5
    for x, y in batches:
        assert engines[1].step(x, y).loss == pytest.approx(engines[0].step(x, y).loss, rel=1e-5)
    expected = engines[0].parameters()
    for engine in engines[1:]:
        for name, value in engine.parameters().items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_weights_of_rows_and_of_classes_go_into_the_sum(tmp_path: Path) -> None:
    classes, rows = (1.0, 4.0, 0.25), RNG.uniform(0.1, 2, 10)
    heads = [LossHead("state", CrossEntropy(classes), 0.5), LossHead("level", "mse", 2.0)]
    engine = PortableEngine(build(two_headed(), tmp_path / "b", loss=heads, engine="portable"))
    surprise, square = terms(engine.parameters(), np.arange(10))
    counted = rows * np.asarray(classes)[STATES]
    expected = 0.5 * (counted * surprise).sum() / counted.sum() + 2 * (rows * square).sum() / rows.sum()
    step = engine.step(X, [STATES, LEVELS], weights=rows.astype(np.float32))
    assert step.loss == pytest.approx(expected, rel=1e-5)
    # What counts nothing is as if it were not there, in the gradient too.
    engine.restore(saved(engine, tmp_path))
    short, padded = (PortableEngine(Bundle.open(tmp_path / "b")) for _ in range(2))
    for _ in range(5):
        short.step(X[:6], [STATES[:6], LEVELS[:6]])
        padded.step(X, [STATES, LEVELS], weights=(np.arange(10) < 6).astype(np.float32))
    for name, value in short.parameters().items():
        np.testing.assert_allclose(padded.parameters()[name], value, rtol=1e-4, atol=1e-6)


def saved(engine: PortableEngine, folder: Path) -> Path:
    made = folder / "saved"
    made.mkdir()
    engine.save(made)
    return made


def test_exports_have_all_outputs_and_the_first_is_served(bundle: Bundle, tmp_path: Path) -> None:
    for name in ENGINES:
        engine = open_engine(name, bundle)
        engine.step(X, [STATES, LEVELS])
        engine.export(tmp_path / "m.onnx")
        session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
        assert [output.name for output in session.get_outputs()] == ["state", "level"]
        state, level = session.run(None, {"x": X})
        p = engine.parameters()
        np.testing.assert_allclose(state, np.tanh(X @ p["w"]) @ p["state.w"], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(level, np.tanh(state) @ p["level.w"], rtol=1e-4, atol=1e-5)


@needs_native
def test_upstreams_own_api_trains_it(bundle: Bundle) -> None:
    api = training_api.load("api")
    state = api.CheckpointState.load_checkpoint(str(bundle.checkpoint))
    module = api.Module(str(bundle.training_model), state, str(bundle.eval_model))
    optimizer = api.Optimizer(str(bundle.optimizer_model), module)
    assert module.input_names() == ["x", "labels.state", "target.level"]
    losses = []
    for _ in range(30):
        losses.append(float(module(X, STATES, LEVELS)))
        optimizer.step()
        module.lazy_reset_grad()
    assert losses[-1] < losses[0]


def test_it_verifies_and_inputs_are_standardised(tmp_path: Path) -> None:
    statistics = Statistics(np.full(4, 3, np.float32), np.full(4, 0.5, np.float32))
    bundle = build(two_headed(), tmp_path / "b", loss=BOTH, standardise=statistics)
    assert [check.check for check in verify(bundle.path).checks][3:] == ["training", *ENGINES[1:]]
    plain = build(two_headed(), tmp_path / "p", loss=BOTH)
    y = [STATES, LEVELS]
    for name in ENGINES:
        losses = open_engine(name, bundle).evaluate(X * 2 + 3, y), open_engine(name, plain).evaluate(X, y)
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_outputs_that_are_not_named_are_left_out(tmp_path: Path) -> None:
    one = build(two_headed(spare=True), tmp_path / "b", loss=[LossHead("state", "cross_entropy")])
    assert (one.output_names, one.losses, one.label.name) == (("state",), (), "labels")
    assert set(one.trainable) == {"w", "state.w"}
    assert verify(one.path).ok


def test_a_function_may_take_all_outputs_at_once(tmp_path: Path) -> None:
    (tmp_path / "l.py").write_text(
        "def both(graph, state, level):\n"
        "    classes = graph.label('class', dtype='int64')\n"
        "    surprise = graph.add('SoftmaxCrossEntropyLoss', [state, classes])\n"
        "    away = graph.add('Sub', [level, graph.label('value', graph.row(level))])\n"
        "    square = graph.add('ReduceMean', [graph.add('Mul', [away, away])], keepdims=0)\n"
        "    return graph.add('Add', [surprise, square])\n"
    )
    bundle = build(two_headed(), tmp_path / "b", loss=FunctionLoss(f"{tmp_path / 'l.py'}:both"))
    assert [label.name for label in bundle.labels] == ["class", "value"]
    assert bundle.output_names == ("state", "level")
    surprise, square = terms(open_engine("portable", bundle).parameters(), np.arange(10))
    for name in ENGINES:
        loss = open_engine(name, bundle).evaluate(X, [STATES, LEVELS])
        assert loss == pytest.approx(surprise.mean() + square.mean(), rel=1e-5)
    assert verify(bundle.path).ok


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        ("mse", "exactly one output, it has: state, level"),
        ([LossHead("state", "mse"), LossHead("nowhere", "mse")], "nowhere: the model has no such output"),
        ([LossHead("state", "mse"), LossHead("state", "l1")], "output state: has two losses"),
        ([LossHead("state", "hinge")], "there is no loss 'hinge'"),
        ([LossHead("absent", "mse")], "outputs: state, level"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, loss: Any, says: str) -> None:
    with pytest.raises((BundleError, ConfigError), match=says):
        build(two_headed(), tmp_path / "b", loss=loss)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("y", [STATES, [STATES], [STATES, LEVELS[:, :1]], [LEVELS, STATES]])
def test_labels_that_do_not_fit_are_one_clear_line(
    bundle: Bundle, engine: str, y: Sequence[np.ndarray]
) -> None:
    trained = open_engine(engine, bundle)
    with pytest.raises(TrainingError, match="refuses a batch"):
        trained.step(X, y)
    assert trained.step(X, [STATES, LEVELS]).applied


def test_the_command_line(tmp_path: Path) -> None:
    onnx.save(two_headed(spare=True), str(tmp_path / "m.onnx"))
    build_it = ["artifacts", "build", tmp_path / "m.onnx", "-o", tmp_path / "b"]
    answer = edged(*build_it, "--loss", "state=cross_entropy", "--loss", "level=mse:0.3",
                   "--class-weights", "1,2,3", "--json").json  # fmt: skip
    assert [(term["loss"], term["weight"]) for term in answer["losses"]] == [
        ("cross_entropy", 1),
        ("mse", 0.3),
    ]
    assert answer["losses"][0]["options"] == {"class_weights": [1, 2, 3]}
    assert seal(Bundle.open(tmp_path / "b").to_json()) == (tmp_path / "b" / "bundle.json").read_bytes()
    says = "1·cross_entropy(state, class weights 1:2:3) + 0.3·mse(level), adamw"
    assert says in edged("artifacts", "inspect", tmp_path / "b").out


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["state=mse", "mse"], "'mse' names no output"),
        (["=mse"], "'=mse' names no output"),
        (["state="], "'state=' names no output"),
        (["state=mse:0"], "weight 0.0 is out of range"),
        (["state=mse:nan"], "weight nan is out of range"),
        (["state=mse:inf"], "weight inf is out of range"),
        (["state=nowhere.py:Loss:0.5"], "nowhere.py: cannot be imported"),
    ],
)
def test_words_that_are_no_loss_are_one_clear_line(texts: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse(texts)


def test_classes_are_weighed_of_one_cross_entropy_only() -> None:
    heads = ["a=cross_entropy", "b=cross_entropy"]
    for texts in (heads, ["mse"]):
        with pytest.raises(ConfigError, match="has no classes to weigh"):
            parse(texts, "1,2")
    assert parse(["a=mse", "b=cross_entropy:2"], "1,2") == [
        LossHead("a", "mse"),
        LossHead("b", CrossEntropy((1.0, 2.0)), 2.0),
    ]


def test_a_daemon_refuses_several_labels(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"takes several labels \(labels.state, target.level\)"):
        bundle.check_schema(Schema((), 4, "classify", ("a", "b", "c")))
    stream = {"features": 4, "task": "classify", "classes": 3}
    config = write_config(tmp_path, stream, model={"bundle": str(bundle.path)})
    found = {finding.what: finding for finding in examine(config)}
    assert found["bundle"].level == "error"
    assert "takes several labels" in found["bundle"].result
