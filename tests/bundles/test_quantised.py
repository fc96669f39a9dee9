"""Frozen parts that came quantised run as delivered; the layers behind them train."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edged.bundles.graph.templates import mlp
from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from edged.engines.runtime import ort
from tests.building import build, check

FEATURES, CLASSES, ROWS = 8, 3, 64
X = np.random.default_rng(0).standard_normal((ROWS, FEATURES)).astype(np.float32)
Y = np.digitize(X[:, 0] + X[:, 1], [-0.7, 0.7]).astype(np.int64)
FORMS = {
    "QDQ": {"QuantizeLinear", "DequantizeLinear"},
    "QOperator": {"QLinearMatMul", "QGemm"},
    "dynamic": {"MatMulInteger"},
}


def quantised(folder: Path, form: str) -> onnx.ModelProto:
    """A network of onnxruntime's quantisation tool, with a float32 layer of random weights behind it."""
    tool = importlib.import_module("onnxruntime.quantization")
    source, out = folder / "source.onnx", folder / "quantised.onnx"
    onnx.save(mlp(FEATURES, 16, (32,)), str(source))
    if form == "dynamic":
        tool.quantize_dynamic(source, out)
    else:
        rows = iter([{"x": X}])

        class Reader(tool.CalibrationDataReader):  # type: ignore[misc,name-defined]
            def get_next(self) -> dict[str, np.ndarray] | None:
                return next(rows, None)

        tool.quantize_static(source, out, Reader(), quant_format=tool.QuantFormat[form])
    model = onnx.load(str(out))
    body, weights = model.graph.output[0].name, np.random.default_rng(1).standard_normal((16, CLASSES))
    tensors = {"head.weight": weights * 0.1, "head.bias": np.zeros(CLASSES)}
    model.graph.initializer.extend(
        numpy_helper.from_array(value.astype(np.float32), name) for name, value in tensors.items()
    )
    model.graph.node.append(
        helper.make_node("Relu", [body], ["body"], name="body"),
    )
    model.graph.node.append(helper.make_node("Gemm", ["body", *tensors], ["scores"], name="head"))
    model.graph.output[0].CopyFrom(
        helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, ["batch", CLASSES])
    )
    return model


@pytest.mark.parametrize("form", FORMS)
def test_a_quantised_part_runs_as_delivered_and_the_head_trains(tmp_path: Path, form: str) -> None:
    given = quantised(tmp_path, form)
    operators = {node.op_type for node in given.graph.node}
    assert operators & FORMS[form]
    bundle = build(given, tmp_path / "b", loss="cross_entropy", train=["head.*"])
    assert set(bundle.trainable) == {"head.weight", "head.bias"}
    served = onnx.load(str(bundle.inference_model))
    assert FORMS[form] & operators <= {node.op_type for node in served.graph.node}
    (expected,) = ort.session(given.SerializeToString()).run(None, {"x": X})
    (found,) = ort.session(str(bundle.inference_model)).run(None, {bundle.input.name: X})
    np.testing.assert_allclose(found, expected, atol=1e-5)
    engine = open_engine("portable", bundle)
    engine.begin(LearningRate(0.01))
    before = engine.evaluate(X, Y)
    for _ in range(100):
        engine.step(X, Y)
    assert engine.evaluate(X, Y) < 0.8 * before


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_scales_of_quantised_layers_are_no_parameters_to_train(tmp_path: Path, form: str) -> None:
    assert set(build(quantised(tmp_path, form), tmp_path / "b", loss="cross_entropy").trainable) == {
        "head.weight",
        "head.bias",
    }


def test_layers_that_quantise_what_they_see_are_refused_with_the_remedy(tmp_path: Path) -> None:
    (finding,) = check(quantised(tmp_path, "dynamic"), loss="cross_entropy").findings
    assert finding.operator == "DynamicQuantizeLinear"
    assert "--train last:2" in finding.remedy


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_a_layer_in_front_of_quantised_ones_is_refused_by_name(tmp_path: Path, form: str) -> None:
    model = quantised(tmp_path, form)
    given = model.graph.input[0].name
    for node in model.graph.node:
        node.input[:] = ["scaled" if name == given else name for name in node.input]
    model.graph.node.insert(0, helper.make_node("Mul", [given, "first"], ["scaled"], name="first"))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(FEATURES, np.float32), "first"))
    (finding,) = check(model, loss="cross_entropy").findings
    assert finding.what.endswith("the loss does not depend on first")
    assert "--freeze" in finding.remedy
