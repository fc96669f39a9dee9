"""Nominal checkpoints, parameters in files of their own, and models that come with external data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
import pytest
import safetensors.numpy
from onnx import TensorProto, numpy_helper

from edged.bundles.graph.templates import mlp
from edged.bundles.inspect import verify
from edged.bundles.source import normalise
from edged.bundles.source.standardise import Statistics
from edged.cli.doctor import examine
from edged.domain.bundle_contents import PARAMETERS
from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from edged.engines.inference import InferenceModel
from edged.engines.model_parameters import initial_parameters
from edged.engines.native import api as training_api
from edged.engines.native import checkpoint
from edged.engines.onnx.fields import whole_model
from edged.errors import BundleError, CorruptError
from edged.storage.models.bundles import Bundle
from tests.building import build
from tests.commands import write_config
from tests.device.gates import Gate
from tests.device.linear import SCHEMA
from tests.installed import ENGINES, needs_native

if TYPE_CHECKING:
    from edged.engines.native.checkpoint import Property

RNG = np.random.default_rng(2)
X = RNG.standard_normal((9, 4)).astype(np.float32)
Y = RNG.integers(0, 2, 9)
FORMS: Mapping[str, dict[str, Any]] = {
    PARAMETERS: {"checkpoint": "nominal"},
}


def built(path: Path, **more: Any) -> Bundle:
    """4 features, 2 classes, input statistics, one frozen parameter."""
    statistics = Statistics.identity(4)
    return build(
        mlp(4, 2, (6,), seed=3),
        path,
        loss="cross_entropy",
        standardise=statistics,
        freeze=["layer1.bias"],
        **more,
    )


@pytest.fixture(params=FORMS)
def apart(request: pytest.FixtureRequest, tmp_path: Path) -> Bundle:
    bundle = built(tmp_path / "apart", **FORMS[request.param])
    assert request.param in bundle.files
    return bundle


@pytest.fixture
def full(tmp_path: Path) -> Bundle:
    return built(tmp_path / "full")


@pytest.fixture
def native(tmp_path: Path) -> Bundle:
    return built(tmp_path / "native", engine="native")


def test_the_values_are_in_one_file_and_the_model_is_the_same(apart: Bundle, full: Bundle) -> None:
    held = sum(value.nbytes for value in open_engine("portable", full).parameters().values())
    others = {name: entry.bytes for name, entry in apart.files.items() if name not in FORMS}
    assert {name for name in others if others[name] > full.files[name].bytes} <= {
        "checkpoint",
        "inference_model.onnx",
    }
    assert sum(apart.files[name].bytes for name in FORMS if name in apart.files) >= held
    assert whole_model(apart.inference_model) == full.inference_model.read_bytes()
    assert whole_model(full.inference_model) == full.inference_model.read_bytes()
    for bundle in (apart, full):
        predicted = InferenceModel(bundle.inference_model).predict(X)
        np.testing.assert_array_equal(predicted, InferenceModel(full.inference_model).predict(X))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("engine", ENGINES)
def test_it_trains_exports_and_continues_as_a_full_one_does(tmp_path: Path, form: str, engine: str) -> None:
    apart = built(tmp_path / "apart", engine=engine, **FORMS[form])
    full = built(tmp_path / "full", engine=engine)
    engines = [open_engine(engine, bundle) for bundle in (apart, full)]
    for each in engines:
        each.begin(LearningRate(0.05))
    losses = [[each.step(X, Y).loss for _ in range(5)] for each in engines]
    assert losses[0] == losses[1]
    (tmp_path / "saved").mkdir()
    engines[0].save(tmp_path / "saved")
    for number, each in enumerate(engines):
        each.export(tmp_path / f"{number}.onnx")
    predicted = [InferenceModel(tmp_path / f"{number}.onnx").predict(X) for number in range(2)]
    np.testing.assert_array_equal(predicted[0], predicted[1])
    resumed = open_engine(engine, apart)
    resumed.restore(tmp_path / "saved")
    assert resumed.step(X, Y).loss == engines[1].step(X, Y).loss


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("engine", ENGINES)
def test_it_verifies_and_is_read_back(tmp_path: Path, form: str, engine: str) -> None:
    bundle = built(tmp_path / "b", engine=engine, **FORMS[form])
    assert verify(bundle.path).ok
    assert Bundle.open(bundle.path) == bundle


@needs_native
def test_upstreams_own_api_loads_what_we_write(native: Bundle, tmp_path: Path) -> None:
    api = training_api.load("api")
    nominal = built(tmp_path / "nominal", engine="native", **FORMS[PARAMETERS])
    state = api.CheckpointState.load_checkpoint(str(native.checkpoint))
    expected = {name: parameter.data for name, parameter in state.parameters}
    for name, value in open_engine("native", native).parameters().items():
        np.testing.assert_array_equal(expected[name], value)
    state = api.CheckpointState.load_checkpoint(str(nominal.checkpoint))
    module = api.Module(str(nominal.training_model), state, str(nominal.eval_model))
    with pytest.raises(RuntimeError, match="nominal state"):
        module(X, Y)


@needs_native
def test_the_page_says_how_upstreams_api_gets_the_parameters(
    native: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(tmp_path / "bundle", checkpoint="nominal", engine="native")
    monkeypatch.chdir(tmp_path)
    api = training_api.load("api")
    known = {name: getattr(api, name) for name in ("CheckpointState", "Module", "Optimizer")}
    known |= {"np": np, "onnx": onnx, "safetensors": safetensors, "OrtValue": onnxruntime.OrtValue}
    page = Path(__file__).parents[2] / "docs" / "checkpoints.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    exec(code, known)  # noqa: S102  what a reader would type
    engine = open_engine("native", native)
    engine.begin(LearningRate(0.05))
    known["optimizer"].set_learning_rate(0.05)
    for _ in range(3):
        assert float(known["module"](X, Y)) == engine.step(X, Y).loss
        known["optimizer"].step()
        known["module"].lazy_reset_grad()


@needs_native
def test_we_read_what_upstream_writes(native: Bundle, tmp_path: Path) -> None:
    held = checkpoint.read(native.checkpoint)
    assert held.moments == {}
    tensors = [
        [numpy_helper.from_array(v, n) for n, v in part.items()] for part in (held.trainable, held.frozen)
    ]
    training_api.load("onnxblock").save_checkpoint(
        tuple(tensors), str(tmp_path / "n"), nominal_checkpoint=True
    )
    found = checkpoint.read(tmp_path / "n")
    assert found.nominal
    assert (found.trainable.keys(), found.frozen.keys()) == (held.trainable.keys(), held.frozen.keys())
    api = training_api.load("api")
    state = api.CheckpointState.load_checkpoint(str(native.checkpoint))
    module = api.Module(str(native.training_model), state, str(native.eval_model))
    optimizer = api.Optimizer(str(native.optimizer_model), module)
    module(X, Y)
    optimizer.step()
    for include in (False, True):  # with the optimizer's state and without
        api.CheckpointState.save_checkpoint(state, str(tmp_path / "s"), include_optimizer_state=include)
        assert set(checkpoint.read(tmp_path / "s").moments) == (set(held.trainable) if include else set())


def test_without_its_parameters_it_is_refused(apart: Bundle) -> None:
    name = next(name for name in FORMS if name in apart.files)
    (apart.path / name).rename(apart.path.parent / "elsewhere")
    with pytest.raises(BundleError, match="missing") as caught:
        Bundle.open(apart.path)
    assert name in caught.value.line()
    unchecked = Bundle.open(apart.path, verify=False)
    with pytest.raises(BundleError) as caught:
        open_engine("portable", unchecked)
    assert "\n" not in caught.value.line()
    with pytest.raises(BundleError, match="parameters of the model cannot be read"):
        whole_model(apart.inference_model)
    (apart.path.parent / "elsewhere").rename(apart.path / name)
    assert verify(apart.path).ok


@pytest.mark.parametrize(
    ("engine", "refusal"),
    [("native", "parameters of another model"), ("portable", r"not what bundle\.json says")],
)
def test_parameters_of_another_model_are_refused(tmp_path: Path, engine: str, refusal: str) -> None:
    bundle = built(tmp_path / "b", checkpoint="nominal", engine=engine)
    other = build(mlp(4, 3, (6,)), tmp_path / "o", loss="cross_entropy", checkpoint="nominal")
    (bundle.path / PARAMETERS).write_bytes((other.path / PARAMETERS).read_bytes())
    with pytest.raises(CorruptError, match=r"not what bundle\.json says"):
        Bundle.open(bundle.path)
    with pytest.raises((BundleError, CorruptError), match=refusal):
        open_engine(engine, Bundle.open(bundle.path, verify=False))


@pytest.mark.parametrize("place", ["../model.bin", "/etc/hostname", "down/model.bin"])
def test_a_model_that_points_elsewhere_is_not_followed(apart: Bundle, place: str) -> None:
    model = onnx.load(str(apart.inference_model), load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = place
    apart.inference_model.write_bytes(model.SerializeToString())
    with pytest.raises(CorruptError, match="no file beside it"):
        whole_model(apart.inference_model)


def test_a_model_that_does_not_say_where_is_refused_and_what_is_no_model_stays(apart: Bundle) -> None:
    model = onnx.load(str(apart.inference_model), load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            entry.key = entry.key.replace("length", "breadth")
    apart.inference_model.write_bytes(model.SerializeToString())
    with pytest.raises(CorruptError, match="does not say where its values are"):
        whole_model(apart.inference_model)
    for content in (b"nothing", b"", b"\x3a\xff"):
        apart.inference_model.write_bytes(content)
        assert whole_model(apart.inference_model) == content


def test_places_behind_the_end_are_noticed(apart: Bundle) -> None:
    name = next(name for name in FORMS if name in apart.files)
    content = (apart.path / name).read_bytes()
    (apart.path / name).write_bytes(content[:-8])
    with pytest.raises(CorruptError, match="shorter than the model says"):
        whole_model(apart.inference_model)


@pytest.mark.parametrize("name", FORMS)
def test_the_first_champion_is_one_file_that_stands_for_itself(tmp_path: Path, name: str) -> None:
    model = mlp(SCHEMA.width, SCHEMA.outputs, (6,))
    bundle = build(model, tmp_path / "b", loss="mse", **FORMS[name])
    x = RNG.standard_normal((5, SCHEMA.width)).astype(np.float32)
    expected = InferenceModel(bundle.inference_model).predict(x)
    (tmp_path / "state").mkdir()
    with closing(Gate(tmp_path / "state", 1.0)) as gate:
        served = gate.models.install_base(bundle.inference_model)
        np.testing.assert_array_equal(served.model.predict(x), expected)
        (bundle.path / name).unlink()
        np.testing.assert_array_equal(gate.reboot().model.predict(x), expected)


def test_the_doctor_says_what_is_missing(tmp_path: Path) -> None:
    bundle = built(tmp_path / "b", checkpoint="nominal")
    stream = {"features": 4, "task": "classify", "classes": 2}
    config = write_config(tmp_path, stream, model={"bundle": str(bundle.path)})
    (bundle.path / PARAMETERS).unlink()
    found = {finding.what: finding for finding in examine(config)}
    assert found["bundle"].level == "error"
    assert "delivered apart" in found["bundle"].result


# ---- models with external data ---------------------------------------------------------------


def with_external_data(folder: Path, width: int = 600) -> Path:
    """A model of `(width, width)` and `(width, 2)`, its weights in `weights.bin`."""
    folder.mkdir(exist_ok=True)
    onnx.save(
        mlp(width, 2, (width,), seed=1), str(folder / "m.onnx"), save_as_external_data=True, size_threshold=0,
        location="weights.bin",
    )  # fmt: skip
    return folder / "m.onnx"


def test_a_model_with_external_data_becomes_the_same_bundle(tmp_path: Path) -> None:
    outside = build(with_external_data(tmp_path / "m", 20), tmp_path / "b", loss="mse")
    inside = build(mlp(20, 2, (20,), seed=1), tmp_path / "c", loss="mse")
    assert outside.fingerprint == inside.fingerprint


def test_more_values_than_one_message_holds_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(normalise, "MOST", 1000)
    with pytest.raises(BundleError, match=r"has 1,\d+ bytes, 1,000 can be built from"):
        build(with_external_data(tmp_path / "m", 16), tmp_path / "b", loss="mse")


@pytest.mark.parametrize("place", ["../weights.bin", "absolute", "."])
def test_external_data_outside_of_the_models_directory_is_refused(tmp_path: Path, place: str) -> None:
    path = with_external_data(tmp_path / "m", 20)
    (tmp_path / "weights.bin").write_bytes((tmp_path / "m" / "weights.bin").read_bytes())
    place = str(tmp_path / "weights.bin") if place == "absolute" else place
    model = onnx.load(str(path), load_external_data=False)
    for tensor in model.graph.initializer:
        next(entry for entry in tensor.external_data if entry.key == "location").value = place
    path.write_bytes(model.SerializeToString())
    with pytest.raises(BundleError, match="which is no file beside it"):
        build(path, tmp_path / "b", loss="mse")


def test_external_data_that_is_missing_or_short_is_one_clear_line(tmp_path: Path) -> None:
    path = with_external_data(tmp_path / "m", 20)
    data = tmp_path / "m" / "weights.bin"
    content = data.read_bytes()
    data.write_bytes(content[:-4])
    with pytest.raises(BundleError, match=r"weights\.bin: is shorter than the model says"):
        build(path, tmp_path / "b", loss="mse")
    data.unlink()
    with pytest.raises(BundleError, match=r"weights\.bin: .*cannot be read: No such file"):
        build(path, tmp_path / "b", loss="mse")


# ---- properties ------------------------------------------------------------------------------


@needs_native
def test_properties_go_both_ways(native: Bundle, tmp_path: Path) -> None:
    api = training_api.load("api")
    own: dict[str, Property] = {"steps": -3, "large": 1 << 40, "rate": 0.5, "serial": "007 µ", "empty": ""}
    held = replace(checkpoint.read(native.checkpoint), properties=dict(own))
    (tmp_path / "c").write_bytes(checkpoint.dump(held))
    state = api.CheckpointState.load_checkpoint(str(tmp_path / "c"))
    assert dict(iter(state.properties)) == own
    state.properties["steps"], state.properties["more"] = 4, -0.25
    api.CheckpointState.save_checkpoint(state, str(tmp_path / "d"))
    assert checkpoint.read(tmp_path / "d").properties == own | {"steps": 4, "more": -0.25}


@needs_native
def test_a_float64_parameter_is_no_checkpoint_of_ours(tmp_path: Path) -> None:
    tensor = onnx.helper.make_tensor("w", TensorProto.DOUBLE, [2], [1.0, 2.0])
    training_api.load("onnxblock").save_checkpoint(([tensor], []), str(tmp_path / "c"))
    with pytest.raises(checkpoint.FormatError, match="no whole float32 tensor"):
        checkpoint.read(tmp_path / "c")


@needs_native
@pytest.mark.parametrize("form", [{}, *FORMS.values()])
def test_parameters_of_a_bundle_for_the_native_engine_are_found_in_its_model(
    tmp_path: Path, form: dict[str, Any]
) -> None:
    bundle = built(tmp_path / "b", engine="native", **form)
    expected = open_engine("native", bundle).parameters()
    found = initial_parameters(bundle)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
