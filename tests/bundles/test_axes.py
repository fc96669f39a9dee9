"""Sequences of open length, and models that have time before the batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edged.bundles.source.axes import fix_sequence
from edged.domain.protocols import LearningRate
from edged.domain.training.optimizers import Optimizer
from edged.engines import open_engine
from edged.engines.inference import InferenceModel
from edged.engines.runtime import ort
from edged.errors import BundleError, ConfigError
from edged.storage.models.bundles import Bundle
from tests.building import build, check
from tests.networks import Network

LENGTH, FEATURES, HIDDEN = 6, 3, 4
ROWS = np.random.default_rng(0).standard_normal((5, LENGTH * FEATURES)).astype(np.float32)
X = ROWS.reshape(5, LENGTH, FEATURES)
ADAMW = Optimizer.of("adamw")


def recurrent(*sizes: int | str, time_first: bool = False) -> onnx.ModelProto:
    """A GRU and a dense layer of its last state; its input has these sizes."""
    net = Network(*X.shape[1:])
    last = net.recurrent("x", "GRU", FEATURES, HIDDEN, time_first=time_first)[1]
    net.dense(net.add("Squeeze", [last, net.sizes(0)]), "head", HIDDEN, 3, "output")
    made = net.model("recurrent", 3)
    takes = helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)
    made.graph.input[0].CopyFrom(takes)
    return made


def outputs(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    return np.asarray(ort.session(model.SerializeToString()).run(None, {"x": x})[0])


def assert_it_answers_and_learns(bundle: Bundle, expected: np.ndarray) -> None:
    assert bundle.input.shape == ("batch", LENGTH, FEATURES)
    assert bundle.output.shape == ("batch", *expected.shape[1:])
    np.testing.assert_allclose(InferenceModel(bundle.inference_model).predict(ROWS), expected, rtol=1e-5)
    engine, y = open_engine("portable", bundle), np.arange(len(X)) % 3
    engine.begin(LearningRate(0.05))
    before = engine.evaluate(ROWS, y)
    for _ in range(60):
        assert engine.step(ROWS, y).applied
    assert engine.evaluate(ROWS, y) < before / 2


@pytest.mark.parametrize(
    ("sizes", "time_first", "fixed"),
    [
        (("rows", "time", FEATURES), False, "axis 1 of 'x' (time)"),
        ((None, None, FEATURES), False, "axis 1 of 'x'"),
        ((1, "time", FEATURES), False, "axis 1 of 'x' (time)"),
        (("time", "rows", FEATURES), True, "axis 0 of 'x' (time)"),
        ((None, None, FEATURES), True, "axis 0 of 'x'"),
    ],
)
def test_an_open_length_is_fixed_by_the_option(
    tmp_path: Path, sizes: tuple[int | str, ...], time_first: bool, fixed: str
) -> None:
    given, file = recurrent(*sizes, time_first=time_first), tmp_path / "m.onnx"
    onnx.save(given, str(file))
    with pytest.raises(BundleError, match=r"^the length of axis .* is open.*--sequence LENGTH"):
        build(given, tmp_path / "b", loss="cross_entropy", engine="portable")
    notes: list[str] = []
    build(file, tmp_path / "b", loss="cross_entropy", sequence=LENGTH, add_note=notes.append)
    assert f"the length of {fixed} is fixed: {LENGTH}" in notes
    checked = check(file, loss="cross_entropy", sequence=LENGTH)
    assert (checked.ok, list(checked.notes)) == (True, notes)
    expected = outputs(recurrent("rows", LENGTH, FEATURES), X)
    assert_it_answers_and_learns(Bundle.open(tmp_path / "b"), expected)


@pytest.mark.parametrize(("sizes", "time_first"), [(("n", LENGTH, 3), False), ((LENGTH, "n", 3), True)])
def test_a_length_for_a_model_without_an_open_one_is_refused(
    sizes: tuple[int | str, ...], time_first: bool
) -> None:
    given = recurrent(*sizes, time_first=time_first)
    with pytest.raises(ConfigError, match=r"--sequence: the model has no axis of open length besides"):
        fix_sequence(given, 9, pytest.fail)


def test_several_open_lengths_are_refused_by_name(tmp_path: Path) -> None:
    given = recurrent("n", "time", "channels")
    told = r"several lengths are open .*: axis 1 of 'x' \(time\), axis 2 of 'x' \(channels\)"
    with pytest.raises(BundleError, match=told):
        fix_sequence(given, LENGTH, pytest.fail)
    onnx.save(given, str(tmp_path / "m.onnx"))
    for sequence in (None, LENGTH):
        found = check(tmp_path / "m.onnx", loss="mse", sequence=sequence).findings
        assert [each.what.startswith("several lengths") for each in found] == [True]


def test_inputs_of_one_open_length_get_it_together(tmp_path: Path) -> None:
    net = Network(0)
    table, other = (net.weight(name, (9, 4), 1) for name in ("table", "kinds"))
    words = net.add("Add", [net.add("Gather", [table, "x"]), net.add("Gather", [other, "kind"])])
    net.dense(net.add("ReduceMean", [words], axes=[1], keepdims=0), "head", 4, 3, "output")
    given = net.model("pair", 3)
    del given.graph.input[:]
    given.graph.input.extend(
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "time"]) for name in ("x", "kind")
    )
    notes: list[str] = []
    fix_sequence(given, 5, notes.append)
    assert notes == ["the length of axis 1 of 'x' (time), axis 1 of 'kind' (time) is fixed: 5"]
    assert build(given, tmp_path / "b", loss="cross_entropy", engine="portable").input.width == 10


def test_time_before_the_batch_becomes_windows(tmp_path: Path) -> None:
    given, notes = recurrent(LENGTH, "rows", FEATURES, time_first=True), list[str]()
    expected = outputs(given, X.swapaxes(0, 1))
    bundle = build(given, tmp_path / "b", loss="cross_entropy", engine="portable", add_note=notes.append)
    assert notes == ["the batch was the second axis, it is the first now: x ['rows', 6, 3]"]
    assert_it_answers_and_learns(bundle, expected)


def test_an_output_with_time_before_the_batch_is_turned_too(tmp_path: Path) -> None:
    net = Network(LENGTH, FEATURES)
    states = net.add("Squeeze", [net.recurrent("x", "GRU", FEATURES, 4, time_first=True)[0], net.sizes(1)])
    net.add("Relu", [net.project(states, "head", 4, 2)], "output")
    given = net.model("each_step", 2)
    for value, width in ((given.graph.input[0], FEATURES), (given.graph.output[0], 2)):
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, [LENGTH, "rows", width]))
    expected = outputs(given, X.swapaxes(0, 1)).swapaxes(0, 1)
    bundle = build(given, tmp_path / "b", loss="mse", engine="portable")
    assert bundle.output.shape == bundle.label.shape == ("batch", LENGTH, 2)
    found = InferenceModel(bundle.inference_model).predict(ROWS)
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-5)


def test_windows_are_not_standardised(tmp_path: Path) -> None:
    onnx.save(recurrent(LENGTH, "rows", FEATURES, time_first=True), str(tmp_path / "m.onnx"))
    np.savez(tmp_path / "d.npz", X=X, y=np.zeros(len(X), np.int64))
    notes: list[str] = []
    told = build(
        tmp_path / "m.onnx", tmp_path / "b", loss="cross_entropy", data=tmp_path / "d.npz",
        standardise=True, add_note=notes.append,
    )  # fmt: skip
    assert told.standardise is None
    assert notes[0].startswith("inputs are taken as they are: standardisation is for (batch, n)")
