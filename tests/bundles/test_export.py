"""Models for other programs: other outputs, levels, sizes and formats."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edged import __version__
from edged.bundles.export.export import ExportReport, ExportRequest, export, quantised
from edged.bundles.graph.edit import opset_of
from edged.bundles.graph.naming import Naming
from edged.bundles.graph.templates import cnn1d, gru, mlp
from edged.engines import open_engine
from edged.engines.native import api
from edged.engines.onnx.fields import input_width, with_metadata
from edged.engines.portable.engine import PortableEngine
from edged.engines.runtime import ort
from edged.errors import BundleError, ConfigError
from tests.building import build
from tests.bundles.models import chain, model
from tests.commands import edged
from tests.installed import built_for_each, needs_native

if TYPE_CHECKING:
    from edged.storage.models.bundles import Bundle

ROWS = np.random.default_rng(0).standard_normal((8, 96)).astype(np.float32)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    out = tmp_path_factory.mktemp("export") / "b"
    return build(cnn1d((32, 3), 4, (8, 8)), out, loss="cross_entropy")


def made(source: Path, out: Path, **wish: Any) -> ExportReport:
    return export(source, out, ExportRequest(**wish))


def compared(report: ExportReport) -> tuple[float, float]:
    """The largest difference, and the largest value before."""
    assert report.difference is not None
    assert report.largest is not None
    return report.difference, report.largest


def run(path: Path, rows: np.ndarray[Any, Any] = ROWS) -> list[np.ndarray[Any, Any]]:
    session = ort.session(str(path))
    take = session.get_inputs()[0]
    return list(session.run(None, {take.name: rows.reshape(-1, *take.shape[1:])}))


@pytest.mark.parametrize("opset", [13, 17, 20])
def test_a_model_keeps_the_opset_that_it_came_with(tmp_path: Path, opset: int) -> None:
    given = chain("Relu", opset=opset)
    for engine, bundle in built_for_each(given, tmp_path, loss="mse").items():
        assert bundle.opset == opset
        trained = open_engine(engine, bundle)
        x, y = np.ones((3, 4), np.float32), np.zeros((3, 2), np.float32)
        assert trained.step(x, y).applied
        trained.export(tmp_path / "trained.onnx")
        made(bundle.path, tmp_path / "made.onnx", outputs=("output",))
        for name in ("trained", "made"):
            found = onnx.load(str(tmp_path / f"{name}.onnx"))
            assert (opset_of(found), found.ir_version) == (opset, 8)
        answer = run(tmp_path / "trained.onnx", x)[0]
        assert float((answer**2).mean()) == pytest.approx(trained.evaluate(x, y), rel=1e-5)


def test_without_a_wish_it_is_the_bundles_own_model(bundle: Bundle, tmp_path: Path) -> None:
    told = made(bundle.path, tmp_path / "model.onnx")
    assert (told.difference, told.outputs, told.float32_layers) == (0.0, ("logits",), ())
    assert told.bytes == (tmp_path / "model.onnx").stat().st_size
    assert min(told.us) > 0
    np.testing.assert_array_equal(run(tmp_path / "model.onnx")[0], run(bundle.inference_model)[0])


@pytest.mark.parametrize(("name", "wish"), [("m.onnx", {}), ("m.onnx", {"optimise": "basic"}), ("m.ort", {})])
def test_it_says_what_its_numbers_are(tmp_path: Path, name: str, wish: dict[str, Any]) -> None:
    naming = Naming(("temp", "vib"), ("°C", "g"), ("ok", "worn"), context=(20.0,))
    named = build(mlp(4, 2, (8,)), tmp_path / "b", loss="cross_entropy", naming=naming)
    made(named.path, tmp_path / name, **wish)
    assert metadata(tmp_path / name) == {
        "edged.version": __version__, "edged.features": '["temp", "vib"]', "edged.units": '["°C", "g"]',
        "edged.classes": '["ok", "worn"]', "edged.context": "[20.0]",
    }  # fmt: skip
    if name.endswith(".onnx"):
        onnx.checker.check_model(str(tmp_path / name))


def test_entries_of_others_stay_and_those_of_edged_are_replaced() -> None:
    model = mlp(4, 2, (8,))
    onnx.helper.set_model_props(model, {"author": "me", "edged.version": "0"})
    content = with_metadata(with_metadata(model.SerializeToString(), {"edged.run": "1"}), {"edged.run": "2"})
    assert ort.session(content).get_modelmeta().custom_metadata_map == {"author": "me", "edged.run": "2"}
    assert onnx.load_from_string(content).graph == model.graph
    assert input_width(content) == 4


def metadata(path: Path) -> dict[str, str]:
    return dict(ort.session(str(path)).get_modelmeta().custom_metadata_map)


def test_chosen_outputs_are_there_and_nothing_else_is_computed(bundle: Bundle, tmp_path: Path) -> None:
    told = made(bundle.path, tmp_path / "inside.onnx", outputs=("layer2.relu", "layer1"))
    assert told.outputs == ("layer2.relu", "layer1")
    assert told.difference is None
    inside = onnx.load(str(tmp_path / "inside.onnx"))
    onnx.checker.check_model(inside, full_check=True)
    assert not {"layer3.weight", "layer4.weight"} & {tensor.name for tensor in inside.graph.initializer}
    relu, first = run(tmp_path / "inside.onnx")
    assert relu.min() == 0.0
    made(bundle.path, tmp_path / "all.onnx", outputs=("logits", "layer1"))
    logits, again = run(tmp_path / "all.onnx")
    np.testing.assert_array_equal(again, first)
    np.testing.assert_allclose(logits, run(bundle.inference_model)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("level", ["basic", "extended", "all"])
def test_an_optimised_model_answers_the_same(bundle: Bundle, tmp_path: Path, level: str) -> None:
    told = made(bundle.path, tmp_path / "model.onnx", optimise=level)
    assert compared(told)[0] < 1e-5
    operators = {node.op_type for node in onnx.load(str(tmp_path / "model.onnx")).graph.node}
    assert "Constant" not in operators, "something was done"
    assert ("FusedConv" in operators) == (level != "basic")


def test_quantised_it_is_smaller_and_near(bundle: Bundle, tmp_path: Path) -> None:
    told = made(bundle.path, tmp_path / "model.onnx", int8=True)
    difference, largest = compared(told)
    assert 0 < difference < 0.05 * largest
    operators = [node.op_type for node in onnx.load(str(tmp_path / "model.onnx")).graph.node]
    assert (operators.count("ConvInteger"), operators.count("MatMulInteger")) == (2, 2)


def test_int8_takes_a_third_of_the_bytes(tmp_path: Path) -> None:
    dense = build(mlp(64, 6, (128, 64)), tmp_path / "b", loss="cross_entropy")
    told = made(dense.path, tmp_path / "model.onnx", int8=True)
    assert told.bytes < 0.34 * told.source_bytes


def test_layers_that_stay_in_float32_are_named(tmp_path: Path) -> None:
    recurrent = build(gru((6, 2), 2, (3,)), tmp_path / "b", loss="cross_entropy")
    told = made(recurrent.path, tmp_path / "model.onnx", int8=True)
    assert [layer.split(" ")[1] for layer in told.float32_layers] == ["(GRU)"]


def test_without_a_layer_to_quantise_int8_is_refused() -> None:
    weight = numpy_helper.from_array(np.ones(4, np.float32), "weight")
    only = model([helper.make_node("Mul", ["input", "weight"], ["output"])], [weight])
    with pytest.raises(BundleError, match="no layer that could be quantised: MatMul, Gemm, Conv"):
        quantised(only)


def test_int8_with_an_inner_output_in_ort_format(bundle: Bundle, tmp_path: Path) -> None:
    told = made(bundle.path, tmp_path / "model.ort", int8=True, outputs=("logits", "layer3.relu"))
    difference, largest = compared(told)
    assert 0 < difference < 0.05 * largest
    assert (tmp_path / "model.ort").read_bytes()[4:8] == b"ORTM"
    assert len(run(tmp_path / "model.ort")) == 2


@pytest.mark.parametrize(
    ("out", "wish", "told"),
    [
        ("m.onnx", {"outputs": ("layer33",)}, "no node computes 'layer33'.*such as layer3"),
        ("m.onnx", {"outputs": ("layer3.weight",)}, "no node computes"),
        ("m.onnx", {"optimise": "most"}, "unknown level 'most'.*none, basic"),
        ("m.bin", {}, "end it in .onnx or .ort"),
    ],
)
def test_what_cannot_be_had_is_said(
    bundle: Bundle, tmp_path: Path, out: str, wish: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        made(bundle.path, tmp_path / out, **wish)
    assert re.search(told, refused.value.line())
    assert not list(tmp_path.iterdir())


@needs_native
def test_what_upstream_made_and_the_registry_keeps_is_exported_too(bundle: Bundle, tmp_path: Path) -> None:
    artifacts = api.load("artifacts")
    source = cnn1d((32, 3), 4, (8, 8))
    artifacts.generate_artifacts(
        source,
        requires_grad=[t.name for t in source.graph.initializer if t.data_type == TensorProto.FLOAT],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=str(tmp_path),
    )
    made(tmp_path, tmp_path / "from.onnx", outputs=("logits", "layer1"))
    made(bundle.path, tmp_path / "own.onnx", outputs=("logits", "layer1"))
    for one, other in zip(run(tmp_path / "from.onnx"), run(tmp_path / "own.onnx"), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    stored = tmp_path / "3"
    stored.mkdir()
    plain = build(mlp(4, 2, (3,)), tmp_path / "plain", loss="cross_entropy")
    PortableEngine(plain).export(stored / "model.onnx")
    assert compared(made(stored, tmp_path / "stored.onnx", int8=True))[0] > 0


def test_the_command_compares_on_recorded_data(bundle: Bundle, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", X=ROWS * 3, y=np.arange(8) % 4)
    out = tmp_path / "model.onnx"
    command = ("artifacts", "export", bundle.path, "-o", out, "--quantise", "int8")
    told = edged(*command, "--data", tmp_path / "data.npz", "--json").json
    want = run(bundle.inference_model, ROWS * 3)[0]
    assert told["largest"] == pytest.approx(float(np.abs(want).max()), rel=1e-4)
    assert edged(*command[:-1], "int4").code == 2
