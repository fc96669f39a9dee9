"""What stands in the way of training is found before anything is built, by node, with what to do."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edged.bundles.build import BuildCheck
from edged.bundles.preflight import DERIVED, Obstacle
from edged.bundles.source.normalise import conform
from edged.engines.native import api
from edged.engines.runtime.ort import onnxruntime
from edged.errors import BundleError, ConfigError, UnavailableError
from tests.building import build, check
from tests.bundles.engines_agree.stacks import Stack
from tests.bundles.models import chain, model
from tests.installed import needs_native
from tests.networks import Network
from tests.zoo import ZOO


def weight(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.random.default_rng(0).standard_normal(shape).astype(np.float32), name)


def obstacles(given: onnx.ModelProto, train: list[str], engine: str) -> list[Obstacle]:
    return [*check(given, train=train, engine=engine).findings]


def findings(given: onnx.ModelProto, *train: str, engine: str = "portable") -> list[tuple[str, str]]:
    names = list(train) or [
        tensor.name for tensor in conform(copy.deepcopy(given)).graph.initializer if tensor.data_type == 1
    ]
    return [(found.node, found.operator) for found in obstacles(given, names, engine)]


def two_without_a_gradient() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["input", "w"], ["h"]),
        helper.make_node("Sinh", ["h"], ["s"], name="first"),
        helper.make_node("MatMul", ["s", "m"], ["k"]),
        helper.make_node("Atan", ["k"], ["a"], name="second"),
        helper.make_node("MatMul", ["a", "v"], ["output"]),
    ]
    return model(nodes, [weight("w", 4, 4), weight("m", 4, 4), weight("v", 4, 2)])


@pytest.mark.parametrize("engine", ["native", "portable"])
def test_every_node_is_told_with_what_to_train_instead(tmp_path: Path, engine: str) -> None:
    found = obstacles(two_without_a_gradient(), ["w", "m", "v"], engine)
    assert [(item.node, item.operator) for item in found] == [("first", "Sinh"), ("second", "Atan")]
    assert ["--train last:2;" in found[0].remedy, "--train last:1;" in found[1].remedy] == [True, True]
    with pytest.raises(
        BundleError, match=r"node first: operator Sinh .*and 1 more: see `edged artifacts check`"
    ):
        build(two_without_a_gradient(), tmp_path / "b", loss="mse", engine=engine)
    assert list(tmp_path.iterdir()) == []
    assert findings(two_without_a_gradient(), "m", "v", engine=engine) == [("second", "Atan")]
    behind = build(two_without_a_gradient(), tmp_path / "b", loss="mse", train=["last:1"], engine=engine)
    assert behind.trainable == ("v",)


@pytest.mark.parametrize("engine", ["native", "portable"])
@pytest.mark.parametrize("name", ["mlp", "mlp_residual", "cnn2d", "lstm"])
def test_nothing_is_found_in_what_both_engines_train(name: str, engine: str) -> None:
    entry = ZOO[name]
    assert check(entry.make(True), loss=entry.loss, engine=engine).findings == ()


def convolved(operator: str, **attributes: Any) -> onnx.ModelProto:
    """A convolution, an operator that makes a grid larger, and the mean of it."""
    net = Network(2, 4, 4)
    x = net.conv("x", "conv", (2, 2), [3, 3])
    if operator == "Resize":
        y = net.add("Resize", [x, "", net.tensor("scales", np.array([1, 1, 2, 2], np.float32))], **attributes)
    else:
        y = net.add(operator, [x, net.weight("up", (2, 2, 2, 2), 8)], **attributes)
    net.dense(net.add("Flatten", [net.add("GlobalAveragePool", [y])]), "head", 2, 3, "output")
    return net.model(operator.lower(), 3)


UNSAFE: dict[str, Callable[[], onnx.ModelProto]] = {
    "AveragePool": lambda: ZOO["cnn_average"].make(True),
    "ConvTranspose": lambda: convolved("ConvTranspose", strides=[2, 2]),
    "Resize": lambda: convolved("Resize", mode="nearest", coordinate_transformation_mode="asymmetric",
                                nearest_mode="floor"),
    "Dropout": lambda: ZOO["mlp_dropout"].make(True),
    "BatchNormalization": lambda: ZOO["cnn_batchnorm"].make(True),
}  # fmt: skip


@pytest.mark.parametrize("operator", UNSAFE)
def test_what_the_native_engine_dies_of_or_gets_wrong_is_for_the_portable_one(
    operator: str, tmp_path: Path
) -> None:
    given = UNSAFE[operator]()
    freeze = ["*.running_*"] if operator.startswith("Batch") else []
    with pytest.raises(BundleError, match=rf"node \S+: operator {operator} .*--engine portable"):
        build(given, tmp_path / "n", loss="mse", engine="native", freeze=freeze)
    assert build(given, tmp_path / "b", loss="mse", freeze=freeze).engine == "portable"


@pytest.mark.parametrize(("width", "refused"), [(4, False), (12, True)])
def test_groups_of_several_channels_are_for_the_portable_engine(width: int, refused: bool) -> None:
    stack = Stack(width, 5).conv(4, 1, group=4)
    grouped = str(stack.nodes[-1].name)
    given = stack.model()
    assert findings(given) == []
    assert findings(given, engine="native") == ([(grouped, "Conv")] if refused else [])


def test_only_what_a_gradient_comes_through_is_looked_at() -> None:
    """Conditions, shapes and positions may be computed from anything."""
    nodes = [
        helper.make_node("MatMul", ["input", "w"], ["h"]),
        helper.make_node("Sinh", ["h"], ["s"], name="aside"),
        helper.make_node("Greater", ["s", "zero"], ["positive"]),
        helper.make_node("Where", ["positive", "h", "input"], ["chosen"]),
        helper.make_node("MatMul", ["chosen", "v"], ["output"]),
    ]
    zero = numpy_helper.from_array(np.float32(0), "zero")
    given = model(nodes, [weight("w", 4, 4), weight("v", 4, 2), zero])
    assert findings(given, "w", "v") == []


@pytest.mark.parametrize("engine", ["native", "portable"])
def test_an_operator_of_onnxruntimes_own_is_refused_with_the_remedy(tmp_path: Path, engine: str) -> None:
    given = chain("QuickGelu")
    given.graph.node[1].domain = "com.microsoft"
    given.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(
        BundleError, match="operator QuickGelu cannot be trained through: it is onnx"
    ) as raised:
        build(given, tmp_path / "b", loss="mse", engine=engine)
    assert "before onnxruntime optimised it" in raised.value.remedy


@pytest.mark.parametrize("engine", ["native", "portable"])
def test_a_node_that_is_refused_for_its_form_is_told_once_with_the_reason(engine: str) -> None:
    nodes = [
        helper.make_node("MatMul", ["input", "w"], ["h"]),
        helper.make_node("Einsum", ["h", "m"], ["product"], name="sum", equation="...i,ij->...j"),
        helper.make_node("Sinh", ["product"], ["s"], name="curve"),
        helper.make_node("MatMul", ["s", "v"], ["output"]),
    ]
    given = model(nodes, [weight("w", 4, 4), weight("m", 4, 4), weight("v", 4, 2)])
    found = obstacles(given, ["w", "m", "v"], engine)
    assert [item.node for item in found] == ["sum", "curve"]
    assert "its equation has" in found[0].what


PAGE = Path(__file__).parents[2] / "docs" / "studies" / "native-engine.md"


def test_every_test_that_the_page_names_is_there() -> None:
    table = PAGE.read_text(encoding="utf-8").split("<!-- items -->")[1].split("<!-- end of items -->")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 15
    for row in rows:
        named = re.findall(r"`(tests/\S+\.py)::(\w+)`", row.rsplit(" | ", 1)[1])
        assert named, row
        for file, name in named:
            source = (PAGE.parents[2] / file).read_text(encoding="utf-8")
            assert f"\ndef {name}(" in source, f"{file}::{name}"


# ---- the table ---------------------------------------------------------------------------------


@pytest.fixture
def quiet() -> Iterator[None]:
    """The gradient builder sets the logger to INFO and leaves it so."""
    yield
    onnxruntime.set_default_logger_severity(3)


def derived(node: onnx.NodeProto, values: dict[str, np.ndarray]) -> bool:
    """Whether onnxruntime's builder has a gradient for the operator of `node`, which reads x among others."""
    builder = api.load("onnxblock._training_graph_utils").GradientGraphBuilder
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, v.shape) for name, v in values.items()]
    outputs = [helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)]
    graph = helper.make_graph([node], "one", inputs, outputs)
    asked = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = onnxruntime.SessionOptions()
    made = builder(asked.SerializeToString(), {node.output[0]}, {"x"}, node.output[0], options)
    try:
        made.build()
    except RuntimeError as problem:
        return "gradient builder has not been registered" not in str(problem)
    return True


X = np.full((2, 3), 0.5, np.float32)
# They want grids or squares; of places and random numbers there is nothing to derive.
OTHERS = {
    "Bernoulli", "Det", "EyeLike", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "NonZero",
    "Optional", "OptionalGetElement", "RandomNormalLike", "RandomUniformLike", "SequenceConstruct",
}  # fmt: skip


def unary() -> list[str]:
    """Standard operators that take one tensor of floats and give one, and need nothing else."""
    names = {item.name for item in onnx.defs.get_all_schemas() if onnx.defs.has(item.name, 21, "")}
    return sorted(name for name in names - OTHERS if is_unary(onnx.defs.get_schema(name, 21, "")))


def is_unary(schema: onnx.defs.OpSchema) -> bool:
    ends = [*schema.inputs, *schema.outputs]
    floats = len(ends) == 2 and all("tensor(float)" in end.types for end in ends)
    return floats and not schema.deprecated and not any(a.required for a in schema.attributes.values())


@needs_native
@pytest.mark.usefixtures("quiet")
def test_the_builder_derives_what_the_table_says() -> None:
    names = unary()
    assert len(names) > 35
    found = {name for name in names if derived(helper.make_node(name, ["x"], ["y"], name="n"), {"x": X})}
    assert found >= DERIVED.intersection(names)


PAIRS: dict[str, dict[str, int]] = {
    "Add": {}, "Sub": {}, "Mul": {}, "Div": {}, "Pow": {}, "Min": {}, "Max": {}, "PRelu": {},
    "Mod": {"fmod": 1},
}  # fmt: skip


@needs_native
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("operator", PAIRS)
def test_the_builder_derives_what_the_table_says_for_pairs(operator: str) -> None:
    node = helper.make_node(operator, ["x", "z"], ["y"], name="n", **PAIRS[operator])
    assert derived(node, {"x": X, "z": X + 1}) or operator not in DERIVED


# ---- the command's function --------------------------------------------------------------------


def checked(folder: Path, given: onnx.ModelProto, **options: Any) -> BuildCheck:
    onnx.save(given, str(folder / "m.onnx"))
    return check(folder / "m.onnx", **options)


def test_a_check_tells_what_a_build_would_make(tmp_path: Path) -> None:
    told = checked(tmp_path, chain(opset=11, ir_version=6, batch=1))
    assert (told.ok, told.engine, told.findings) == (True, "portable", ())
    assert "brought from opset 11 to opset 13" in told.notes
    assert "the batch was fixed at 1: it may be of any size now" in told.notes
    assert told.bundle is not None
    assert {row.name for row in told.bundle.parameters if row.trainable} == {
        "fc1.weight",
        "fc2.weight",
        "fc2.bias",
    }
    assert told.bundle.bytes == sum(file.bytes for file in told.bundle.files)
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_a_check_of_a_model_for_one_engine(tmp_path: Path) -> None:
    assert checked(tmp_path, ZOO["cnn_average"].make(True)).ok
    told = checked(tmp_path, ZOO["cnn_average"].make(True), engine="native")
    assert (told.ok, told.engine) == (False, "native")
    assert [finding.node for finding in told.findings] == ["averagepool.2", "averagepool.5"]


def test_a_form_that_the_portable_engine_does_not_have_is_found_by_trying(tmp_path: Path) -> None:
    given = convolved("Resize", mode="cubic")
    told = checked(tmp_path, given, engine="portable")
    assert not told.ok
    assert "its mode is cubic" in told.findings[-1].what
    assert told.findings[-1].node.startswith("resize")


def test_without_the_training_build_of_onnxruntime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "available", lambda: False)
    assert checked(tmp_path, chain()).ok
    with pytest.raises(UnavailableError, match="pip install onnxruntime-training-cpu"):
        checked(tmp_path, chain(), engine="native")
    assert not checked(tmp_path, chain("Sinh"), engine="native").ok


def test_a_check_of_what_is_no_network_for_training(tmp_path: Path) -> None:
    told = checked(tmp_path, chain(batch="n", opset=5))
    assert not told.ok
    assert "opset 5" in told.findings[0].what
    with pytest.raises(ConfigError, match="matches no parameter"):
        checked(tmp_path, chain(), train=["head.*"])


def test_an_optimizer_that_the_native_engine_has_not(tmp_path: Path) -> None:
    told = checked(tmp_path, chain(), optimizer="sgd_momentum", engine="native")
    assert not told.ok
    assert told.findings[0].what.startswith("optimizer: the native engine has no ")
