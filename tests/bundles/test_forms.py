"""Bundles in ORT format: trained, exported, and changed; and networks of 8-bit integers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

from edged.bundles.build import build
from edged.bundles.export import parameters
from edged.bundles.export.forms import initializers
from edged.bundles.export.int8 import Quantiser, left_in_float32
from edged.bundles.graph.templates import autoencoder, cnn1d, cnn2d, gru, mlp
from edged.bundles.inspect import inspect, verify
from edged.bundles.source.standardise import Statistics
from edged.domain.bundle_contents import Slot, StoredForm
from edged.domain.model_files import FLOAT32
from edged.domain.protocols import LearningRate
from edged.engines import model_parameters, open_engine
from edged.engines.inference import InferenceModel
from edged.engines.onnx.base_model import BaseModel
from edged.engines.onnx.flatbuffer import root
from edged.errors import BundleError, CorruptError, ModelError, UnavailableError
from edged.storage.files.checksummed_json import read_sealed, seal
from edged.storage.models.bundles import Bundle
from tests.bundles.models import chain, model
from tests.commands import edged
from tests.installed import ENGINES, needs_native

if TYPE_CHECKING:
    from edged.domain.protocols import Engine

NETWORKS: dict[str, tuple[onnx.ModelProto, int]] = {
    "mlp": (mlp(16, 4, (32, 16)), 16),
    "cnn1d": (cnn1d((32, 3), 4, (8, 8)), 96),
    "cnn2d": (cnn2d((1, 12, 12), 4, (4, 8)), 144),
    "gru": (gru((8, 3), 4, (8,)), 24),
}


def rows(width: int, count: int = 32) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    x = np.random.default_rng(0).standard_normal((count, width)).astype(np.float32)
    return x, (np.arange(count) % 4).astype(np.int64)


def trained(bundle: Bundle, width: int, steps: int = 30) -> Engine:
    made = open_engine(bundle.engine, bundle)
    made.begin(LearningRate(0.01))
    for _ in range(steps):
        made.step(*rows(width))
    return made


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    network, _ = NETWORKS["mlp"]
    out = tmp_path_factory.mktemp("forms") / "both"
    return build(network, out, loss="cross_entropy", standardise=Statistics.identity(16), ort_format=True)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_trains_as_without_ort_format_and_exports_the_same_model(
    name: str, engine: str, tmp_path: Path
) -> None:
    network, width = NETWORKS[name]
    plain = build(network, tmp_path / "plain", loss="cross_entropy", engine=engine)
    both = build(network, tmp_path / "both", loss="cross_entropy", ort_format=True, engine=engine)
    assert both.inference_model.suffix == ".ort"
    assert engine == "portable" or both.training_model.suffix == ".ort"
    expected, got = (trained(bundle, width) for bundle in (plain, both))
    for key, value in expected.parameters().items():
        np.testing.assert_array_equal(got.parameters()[key], value)
    expected.export(tmp_path / "expected.onnx")
    got.export(tmp_path / "got.ort")
    x, _ = rows(width)
    want = InferenceModel(tmp_path / "expected.onnx").predict(x)
    np.testing.assert_allclose(InferenceModel(tmp_path / "got.ort").predict(x), want, rtol=1e-4, atol=1e-4)


def test_the_same_network_gives_the_same_bytes_but_in_ort_format(bundle: Bundle, tmp_path: Path) -> None:
    again = build(
        NETWORKS["mlp"][0],
        tmp_path / "b",
        loss="cross_entropy",
        standardise=Statistics.identity(16),
        ort_format=True,
    )
    assert again.files.keys() == bundle.files.keys()
    for name, entry in bundle.files.items():
        assert again.files[name] == entry or name.endswith(".ort"), name


def test_weights_of_a_stored_model_in_ort_format_are_read_again(bundle: Bundle, tmp_path: Path) -> None:
    engine = trained(bundle, 16)
    engine.export(tmp_path / "model.ort")

    def unpack(_: bytes) -> Any:
        raise AssertionError

    found = model_parameters.parameters_of(tmp_path, bundle, unpack)
    for name, value in engine.parameters().items():
        np.testing.assert_array_equal(found[name], value)
    (tmp_path / "model.ort").write_bytes(b"something else")
    with pytest.raises(UnavailableError, match="cannot be read"):
        model_parameters.parameters_of(tmp_path, bundle, unpack)


@needs_native
def test_a_bundle_for_the_native_engine_alone_knows_where_weights_lie(tmp_path: Path) -> None:
    network, width = NETWORKS["mlp"]
    native = build(network, tmp_path / "b", loss="cross_entropy", engine="native", ort_format=True)
    assert native.portable is None
    engine = trained(native, width)
    engine.export(tmp_path / "model.ort")
    found = model_parameters.initial_parameters(native)
    assert found.keys() == engine.parameters().keys()
    assert set(initializers((tmp_path / "model.ort").read_bytes())) >= found.keys()


@pytest.mark.parametrize("engine", ENGINES)
def test_inspecting_verifying_and_changing_parameters_know_the_forms(
    bundle: Bundle, tmp_path: Path, engine: str
) -> None:
    assert "inference_model.ort" in {f.name for f in inspect(bundle.path).files}
    verify(bundle.path)
    copied = tmp_path / "b"
    build(NETWORKS["mlp"][0], copied, loss="cross_entropy", ort_format=True, engine=engine)
    bias = np.full(4, 7.0, np.float32)
    parameters.put(copied, {"layer3.bias": bias})
    changed = Bundle.open(copied)
    base = BaseModel.of_form(changed, FLOAT32)
    assert base is not None
    np.testing.assert_array_equal(base.parameters()["layer3.bias"], bias)
    assert InferenceModel(base.path).predict(rows(16)[0]).mean() > 5.0
    assert InferenceModel(copied / "inference_model.onnx").predict(rows(16)[0]).mean() > 5.0
    verify(copied)


def test_what_the_runtime_folds_is_left_open_so_that_weights_can_be_replaced(tmp_path: Path) -> None:
    """A scale in front of the weights is a constant that an optimiser would multiply into them."""
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(0)
    parameter = {
        name: numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("weight", (2, 4)), ("gain", (4, 2)))
    }
    nodes = [
        helper.make_node("Transpose", ["weight"], ["turned"], perm=[1, 0]),
        helper.make_node("Mul", ["turned", "gain"], ["scaled"]),
        helper.make_node("MatMul", ["input", "scaled"], ["output"]),
    ]
    made = build(
        model(nodes, list(parameter.values())),
        tmp_path / "b",
        loss="cross_entropy",
        engine="portable",
        ort_format=True,
    )
    engine = open_engine("portable", made)
    other = {"weight": np.ones((2, 4), np.float32), "gain": np.full((4, 2), 2.0, np.float32)}
    engine.set_parameters(other)
    engine.export(tmp_path / "model.ort")
    x = np.eye(4, dtype=np.float32)
    np.testing.assert_allclose(InferenceModel(tmp_path / "model.ort").predict(x), 2.0)


def test_a_file_of_another_format_version_is_refused_with_what_to_do(bundle: Bundle, tmp_path: Path) -> None:
    content = bundle.inference_model.read_bytes()
    assert root(content, b"ORTM").text(0) == "6"
    start = content.index(b"\x01\x00\x00\x006\x00")
    other = tmp_path / "model.ort"
    other.write_bytes(content[: start + 4] + b"9" + content[start + 5 :])
    assert root(other.read_bytes(), b"ORTM").text(0) == "9"
    with pytest.raises(ModelError, match="version") as refused:
        InferenceModel(other)
    assert "build the bundle with the version that runs it" in refused.value.line()
    with pytest.raises(CorruptError, match="not in ORT format"):
        initializers(b"no model at all, whatever its name")


def test_a_description_that_is_not_whole_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    assert bundle.forms is not None
    assert seal(bundle.to_json()) == (bundle.path / "bundle.json").read_bytes()
    file, values = tmp_path / "bundle.json", dict(read_sealed(bundle.path / "bundle.json"))
    broken: list[Any] = [{"file": "inference_model.ort"}, {"slots": []}, {"file": 7, "slots": []}, 7]
    for wrong in broken:
        file.write_bytes(seal({**values, "forms": {FLOAT32: wrong}}))
        with pytest.raises(CorruptError, match=r"forms\.float32\S* is missing or wrong"):
            Bundle.open(tmp_path, verify=False)
    impossible_slot = Slot("layer1.weight", 0, (0,))
    for impossible in (
        StoredForm("elsewhere.onnx", ()),
        replace(bundle.forms[FLOAT32], slots=(impossible_slot,)),
    ):
        with pytest.raises(CorruptError, match="not whole"):
            BaseModel.of_form(replace(bundle, forms={FLOAT32: impossible}), FLOAT32)
    outside = replace(bundle.forms[FLOAT32], slots=(Slot("layer1.bias", 10**9, (32,)),))
    base = BaseModel.of_form(replace(bundle, forms={FLOAT32: outside}), FLOAT32)
    assert base is not None
    with pytest.raises(CorruptError, match="outside of the file"):
        base.parameters()


def test_without_a_layer_to_quantise_int8_is_refused() -> None:
    from onnx import helper, numpy_helper

    weight = numpy_helper.from_array(np.ones(4, np.float32), "weight")
    only = model([helper.make_node("Mul", ["input", "weight"], ["output"])], [weight])
    with pytest.raises(BundleError, match="no layer that could be quantised: Gemm, MatMul, Conv"):
        Quantiser(only, ["weight"]).run()


def test_what_is_no_plain_layer_is_left_as_it_is() -> None:
    """A product with a factor, and one whose weights come first."""
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(0)
    shapes = {"plain": (4, 4), "scaled": (4, 2), "first": (4, 4)}
    weights = [
        numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in shapes.items()
    ]
    nodes = [
        helper.make_node("MatMul", ["input", "plain"], ["hidden"], name="a"),
        helper.make_node("Transpose", ["hidden"], ["turned"], perm=[1, 0], name="b"),
        helper.make_node("MatMul", ["first", "turned"], ["mixed"], name="c"),
        helper.make_node("Gemm", ["mixed", "scaled"], ["output"], transA=1, alpha=0.5, name="d"),
    ]
    made = Quantiser(model(nodes, weights), shapes).run()
    assert [node.op_type for node in made.graph.node if node.name in "abcd"] == [
        "Transpose",
        "MatMul",
        "Gemm",
    ]
    assert left_in_float32(made, shapes) == ["c (MatMul)", "d (Gemm)"]


def test_reconstructions_and_other_exports_have_the_forms_too(tmp_path: Path) -> None:
    statistics = Statistics.identity(6, reconstruct=True)
    coder = build(
        autoencoder(6, (5,), 3), tmp_path / "a", loss="mse", standardise=statistics, ort_format=True
    )
    assert verify(coder.path).ok
    other = build(chain("Tanh"), tmp_path / "c", loss="cross_entropy", ort_format=True)
    assert verify(other.path).ok


def test_the_command_builds_them(tmp_path: Path) -> None:
    network, out = tmp_path / "gru.onnx", tmp_path / "b"
    onnx.save(NETWORKS["gru"][0], str(network))
    build_options = ("-o", out, "--loss", "cross_entropy", "--ort-format", "--json")
    made = edged("artifacts", "build", network, *build_options).json
    assert "inference_model.ort" in {file["name"] for file in made["files"]}
    assert Bundle.open(out).inference_model.name == "inference_model.ort"
