"""LSTM and GRU layers: gradients against the native engine, in every form they come in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edged.bundles.autodiff.rules.recurrent import FEW, MANY
from edged.bundles.graph.edit import subgraphs
from edged.bundles.graph.writer import attributes_of
from edged.engines import open_engine
from edged.engines.inference import InferenceModel
from edged.errors import BundleError
from edged.storage.models.bundles import Bundle
from tests.building import build
from tests.bundles.engines_agree.gradients import assert_equal, batch, both_gradients, gradients
from tests.installed import ENGINES, built_for_each

LENGTH, WIDTH, HIDDEN = 5, 3, 4
GATES = {"LSTM": 4, "GRU": 3}
FORMS = [("LSTM", 1), ("GRU", 1), ("GRU", 0)]


class Recurrent:
    """A network of recurrent layers over `input (batch, 5, 3)` with `output (batch, 2)`."""

    def __init__(self, operator: str = "LSTM", linear_before_reset: int = 1) -> None:
        self.operator = operator
        self.attributes: dict[str, Any] = {"hidden_size": HIDDEN}
        if operator == "GRU":
            self.attributes["linear_before_reset"] = linear_before_reset
        self.nodes = [helper.make_node("Transpose", ["input"], ["sequence"], perm=[1, 0, 2])]
        self.tensors: list[onnx.TensorProto] = []
        self.directions = 1
        self.rng = np.random.default_rng(1)

    def weight(self, name: str, *shape: int) -> str:
        value = self.rng.standard_normal(shape) * 0.6
        self.tensors.append(numpy_helper.from_array(value.astype(np.float32), name))
        return name

    def sizes(self, *values: int) -> str:
        name = f"sizes{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        name = output or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    def layer(
        self,
        x: str,
        name: str,
        width: int,
        *,
        bias: bool = True,
        more: tuple[str, ...] = (),
        **attributes: Any,
    ) -> list[str]:
        """A layer; all its outputs. `more` are the inputs behind the bias."""
        gates, n = GATES[self.operator] * HIDDEN, self.directions
        inputs = [x, self.weight(f"{name}.w", n, gates, width), self.weight(f"{name}.r", n, gates, HIDDEN)]
        inputs += [self.weight(f"{name}.b", n, 2 * gates) if bias else "", *more]
        outputs = [f"{name}.{part}" for part in ("y", "h", "c")[: 3 if self.operator == "LSTM" else 2]]
        given = self.attributes | attributes
        self.nodes.append(helper.make_node(self.operator, inputs, outputs, name=name, **given))
        return outputs

    def model(self, values: str) -> onnx.ModelProto:
        """The network that ends with a dense layer on `values (batch, 4)`."""
        self.add("Gemm", values, self.weight("v", HIDDEN, 2), self.weight("c", 2), output="output")
        take = helper.make_tensor_value_info("input", TensorProto.FLOAT, ["n", LENGTH, WIDTH])
        give = helper.make_tensor_value_info("output", TensorProto.FLOAT, ["n", 2])
        graph = helper.make_graph(self.nodes, "recurrent", [take], [give], self.tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def last(self, state: str) -> str:
        """A last state as rows."""
        return self.add("Squeeze", state, self.sizes(0))

    def mean(self, states: str) -> str:
        """The mean of the states of all steps as rows."""
        return self.add("ReduceMean", self.add("Squeeze", states, self.sizes(1)), axes=[0], keepdims=0)


@pytest.mark.parametrize("rows", [1, FEW - 1, FEW, MANY])
@pytest.mark.parametrize(("operator", "linear"), FORMS)
def test_the_last_state(tmp_path: Path, operator: str, linear: int, rows: int) -> None:
    network = Recurrent(operator, linear)
    _, last, *_ = network.layer("sequence", "rnn", WIDTH)
    assert_equal(*both_gradients(network.model(network.last(last)), tmp_path, rows=rows))


@pytest.mark.parametrize("rows", [3, 12, MANY + 1])
@pytest.mark.parametrize(("operator", "linear"), FORMS)
def test_all_outputs_of_two_layers_without_bias(
    tmp_path: Path, operator: str, linear: int, rows: int
) -> None:
    network = Recurrent(operator, linear)
    first = network.layer("sequence", "one", WIDTH, bias=False)
    states = network.add("Squeeze", first[0], network.sizes(1))
    second = network.layer(states, "two", HIDDEN, bias=False)
    total = network.mean(second[0])
    for state in (*first[1:], *second[1:]):
        total = network.add("Add", total, network.last(state))
    assert_equal(*both_gradients(network.model(total), tmp_path, rows=rows))


@pytest.mark.parametrize("rows", [3, 12, MANY + 1])
@pytest.mark.parametrize(("operator", "linear"), FORMS)
def test_initial_states_that_are_trained(tmp_path: Path, operator: str, linear: int, rows: int) -> None:
    network = Recurrent(operator, linear)
    batch = network.add("Shape", "input", start=0, end=1)
    shape = network.add("Concat", network.sizes(1), batch, network.sizes(HIDDEN), axis=0)
    count = GATES[operator] - 2
    states = [network.add("Expand", network.weight(f"start{i}", 1, 1, HIDDEN), shape) for i in range(count)]
    _, last, *_ = network.layer("sequence", "rnn", WIDTH, more=("", *states))
    native, portable = both_gradients(network.model(network.last(last)), tmp_path, rows=rows)
    assert np.abs(portable["start0"]).max() > 0
    assert_equal(native, portable)


@pytest.mark.parametrize("rows", [3, MANY + 1])
@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
@pytest.mark.parametrize(("operator", "linear"), FORMS)
def test_other_directions(tmp_path: Path, operator: str, linear: int, direction: str, rows: int) -> None:
    network = Recurrent(operator, linear)
    network.directions = 2 if direction == "bidirectional" else 1
    states, last, *_ = network.layer("sequence", "rnn", WIDTH, direction=direction)
    weighted = network.add("Mul", states, network.weight("each", LENGTH, network.directions, 1, HIDDEN))
    values = [
        network.add("ReduceMean", part, axes=axes, keepdims=0)
        for part, axes in ((weighted, [0, 1]), (last, [0]))
    ]
    made = network.model(network.add("Add", *values))
    assert_equal(*both_gradients(made, tmp_path, rows=rows))
    x, y = batch(Bundle.open(tmp_path / "portable"), rows)
    untrained = InferenceModel(tmp_path / "portable" / "inference_model.onnx").predict(x.reshape(rows, -1))
    opened = open_engine("portable", Bundle.open(tmp_path / "portable"))
    assert opened.evaluate(x, y) == pytest.approx(float(np.mean((untrained - y) ** 2)), rel=1e-5)


def test_one_state_is_read_at_one_step(tmp_path: Path) -> None:
    network = Recurrent("GRU")
    states, *_ = network.layer("sequence", "rnn", WIDTH)
    rows = network.add("Transpose", network.add("Squeeze", states, network.sizes(1)), perm=[1, 0, 2])
    network.tensors.append(numpy_helper.from_array(np.array(-2, np.int64), "step"))
    assert_equal(*both_gradients(network.model(network.add("Gather", rows, "step", axis=1)), tmp_path))


@pytest.mark.parametrize("rows", [3, MANY])
@pytest.mark.parametrize("frozen", ["rnn.r", "rnn.w", "rnn.b"])
def test_a_parameter_of_a_layer_that_is_frozen(tmp_path: Path, frozen: str, rows: int) -> None:
    network = Recurrent("LSTM")
    _, last, _ = network.layer("sequence", "rnn", WIDTH)
    model, found = network.model(network.last(last)), []
    for name, freeze in (("all", []), ("some", [frozen])):
        made = build(model, tmp_path / name, loss="mse", optimizer="sgd", engine="portable", freeze=freeze)
        found.append(gradients(made, *batch(made, rows)))
    every, some = found
    del every[frozen]
    assert every.keys() == some.keys()
    assert_equal(every, some)


def with_all_there_is(operator: str, linear: int, direction: str = "forward") -> onnx.ModelProto:
    """Weights before the layer, `x`, those of the layer, its bias, and initial states that are weights."""
    network = Recurrent(operator, linear)
    network.directions = 2 if direction == "bidirectional" else 1
    network.add("MatMul", "sequence", network.weight("x", WIDTH, WIDTH), output="mixed")
    batch = network.add("Shape", "input", start=0, end=1)
    shape = network.add("Concat", network.sizes(network.directions), batch, network.sizes(HIDDEN), axis=0)
    states = [
        network.add("Expand", network.weight(f"start{i}", network.directions, 1, HIDDEN), shape)
        for i in range(GATES[operator] - 2)
    ]
    _, last, *_ = network.layer("mixed", "rnn", WIDTH, more=("", *states), direction=direction)
    return network.model(network.add("ReduceMean", last, axes=[0], keepdims=0))


@pytest.mark.parametrize(
    ("train", "direction"),
    [(["rnn.[wr]"], "forward"), (["x", "rnn.[wr]", "start*"], "forward"), (["rnn.[wr]"], "bidirectional")],
    ids=str,
)
@pytest.mark.parametrize(("operator", "linear"), [("LSTM", 1), ("GRU", 1)])
def test_where_both_weights_are_trained_all_else_may_be_frozen(
    tmp_path: Path, operator: str, linear: int, train: list[str], direction: str
) -> None:
    model = with_all_there_is(operator, linear, direction)
    assert_equal(*both_gradients(model, tmp_path, train=train))


@pytest.mark.parametrize(
    ("train", "reason"),
    [
        (["rnn.w", "rnn.b"], "R (rnn.r) is not trained"),
        (["rnn.r"], "W (rnn.w) is not trained"),
        (["rnn.b"], "W (rnn.w) and R (rnn.r) are not trained"),
        (["x", "start*"], "W (rnn.w) and R (rnn.r) are not trained"),
    ],
    ids=str,
)
@pytest.mark.parametrize(("operator", "linear"), [("LSTM", 1), ("GRU", 1)])
def test_a_frozen_weight_is_refused_by_the_native_engine_and_trains_on_the_portable_one(
    tmp_path: Path, operator: str, linear: int, train: list[str], reason: str
) -> None:
    """The native engine's process dies in the first step of such a layer."""
    model = with_all_there_is(operator, linear)
    with pytest.raises(BundleError) as caught:
        build(model, tmp_path / "native", loss="mse", train=train, engine="native")
    said = caught.value.line()
    assert f"node rnn: operator {operator} has a gradient that ends the process where {reason}" in said
    assert "--engine portable" in said
    assert not (tmp_path / "native").exists()
    bundle = build(model, tmp_path / "some", loss="mse", optimizer="sgd", train=train)
    every = build(model, tmp_path / "all", loss="mse", optimizer="sgd", engine=ENGINES[-1])
    x, y = batch(every, 3)
    of_every = gradients(every, x, y)
    assert_equal({name: of_every[name] for name in bundle.trainable}, gradients(bundle, x, y))


@pytest.mark.parametrize(("operator", "linear"), FORMS)
def test_large_batches_hold_no_gradient_of_all_steps(tmp_path: Path, operator: str, linear: int) -> None:
    network = Recurrent(operator, linear)
    _, last, *_ = network.layer("sequence", "rnn", WIDTH)
    bundle = build(network.model(network.last(last)), tmp_path / "b", loss="mse")
    graph = onnx.load(str(bundle.path / "step_model.onnx")).graph
    loops = [node for inner in graphs_of(graph) for node in inner.node if node.op_type == "Scan"]
    given = [attributes_of(loop) for loop in loops]
    held = [
        len(each.get("scan_output_directions", ())) for each in given if 1 in each["scan_input_directions"]
    ]
    assert len(held) == 2
    assert min(held) == 0 < max(held)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_a_frozen_layer_is_computed_by_the_stock_operator(tmp_path: Path, direction: str) -> None:
    network = Recurrent("LSTM")
    _, last, _ = network.layer("sequence", "rnn", WIDTH, direction=direction)
    bundles = built_for_each(network.model(network.last(last)), tmp_path, loss="mse", freeze=["rnn.*"])
    assert tuple(bundles) == (ENGINES if direction == "forward" else ("portable",))
    frozen = bundles["portable"]
    step = onnx.load(str(frozen.path / "step_model.onnx"))
    operators = [node.op_type for node in step.graph.node]
    assert "LSTM" in operators
    assert not {"If", "Scan"}.intersection(operators)
    x, y = batch(frozen, 3)
    assert np.abs(gradients(frozen, x, y)["v"]).max() > 0


@pytest.mark.parametrize("batch", [1, 2])
def test_zeros_written_with_the_batch_of_the_export_are_left_out(tmp_path: Path, batch: int) -> None:
    network = Recurrent("LSTM")
    zeros = numpy_helper.from_array(np.zeros((1, batch, HIDDEN), np.float32), "zeros")
    network.tensors.append(zeros)
    _, last, _ = network.layer("sequence", "rnn", WIDTH, more=("", "zeros", "zeros"))
    made = network.model(network.last(last))
    for value in (made.graph.input[0], made.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    native, portable = both_gradients(made, tmp_path, rows=5)
    assert "zeros" not in portable
    assert_equal(native, portable)


def graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for body in subgraphs(node):
            yield from graphs_of(body)


@pytest.mark.parametrize(("operator", "linear"), FORMS)
def test_bodies_hold_standard_operators_alone(tmp_path: Path, operator: str, linear: int) -> None:
    network = Recurrent(operator, linear)
    _, last, *_ = network.layer("sequence", "rnn", WIDTH)
    bundle = build(network.model(network.last(last)), tmp_path / "b", loss="mse")
    for name in ("step_model.onnx", "step_carry_model.onnx", "step_eval_model.onnx"):
        step = onnx.load(str(bundle.path / name))
        onnx.checker.check_model(step, full_check=True)
        assert {node.domain for graph in graphs_of(step.graph) for node in graph.node} == {""}


@pytest.mark.parametrize(
    ("operator", "attributes", "reason"),
    [
        ("LSTM", {"clip": 0.5}, "its clip is 0.5"),
        ("LSTM", {"input_forget": 1}, "its input_forget is 1"),
        ("GRU", {"activations": ["Sigmoid", "Relu"]}, "its activations is Sigmoid, Relu"),
    ],
    ids=str,
)
@pytest.mark.parametrize("engine", ["native", "portable"])
def test_what_is_more_than_a_plain_layer_is_refused(
    tmp_path: Path, operator: str, attributes: dict[str, Any], reason: str, engine: str
) -> None:
    network = Recurrent(operator)
    _, last, *_ = network.layer("sequence", "rnn", WIDTH, **attributes)
    with pytest.raises(BundleError, match=reason) as caught:
        build(network.model(network.last(last)), tmp_path / "b", loss="mse", engine=engine)
    assert caught.value.where == "node rnn"


def test_peepholes_are_refused_whose_native_gradient_is_wrong(tmp_path: Path) -> None:
    network = Recurrent("LSTM")
    peepholes = network.weight("p", 1, 3 * HIDDEN)
    _, last, _ = network.layer("sequence", "rnn", WIDTH, more=("", "", "", peepholes))
    with pytest.raises(BundleError, match="it has the input P"):
        build(network.model(network.last(last)), tmp_path / "b", loss="mse")
