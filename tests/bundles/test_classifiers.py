"""Networks of scikit-learn as skl2onnx writes them, and other classifiers that give labels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edged.bundles.graph.naming import Naming
from edged.bundles.source.normalise import read_model
from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from edged.engines.inference import InferenceModel
from edged.errors import BundleError, ConfigError
from tests.building import build
from tests.bundles.models import chain

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

EXPORTED = Path(__file__).parent / "exported"


def model(name: str) -> onnx.ModelProto:
    return read_model(EXPORTED / f"scikit_{name}.onnx")


def softmax(logits: Floats) -> Floats:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def both_classes(logits: Floats) -> Floats:
    positive = 1 / (1 + np.exp(-logits))
    return np.concatenate([1 - positive, positive], axis=1)


@pytest.mark.parametrize(
    ("name", "loss", "answer", "classes"),
    [
        ("named", "cross_entropy", softmax, ("idle", "normal", "worn")),
        ("numbered", "cross_entropy", softmax, ("5", "6", "7")),
        ("binary", "bce_with_logits", both_classes, ()),
        ("values", "mse", np.asarray, ()),
        ("targets", "mse", np.asarray, ()),
    ],
)
def test_a_network_of_scikit_learn_answers_as_before_and_learns(
    tmp_path: Path, name: str, loss: str, answer: Callable[[Floats], Floats], classes: tuple[str, ...]
) -> None:
    notes: list[str] = []
    bundle = build(model(name), tmp_path / "b", loss=loss, engine="portable", add_note=notes.append)
    assert bundle.trainable == ("coefficient", "intercepts", "coefficient1", "intercepts1")
    assert bundle.output.names == classes
    assert any(note.startswith(f"a classifier, cut at its logits (add_result1) for --loss {loss}")
               for note in notes) == (loss != "mse")  # fmt: skip
    assert not [note for note in notes if note.startswith("not compared")]
    assert [(entry.domain, entry.version) for entry in onnx.load(bundle.inference_model).opset_import] == [
        ("", 18)
    ]
    known = np.load(EXPORTED / f"scikit_{name}.npz")
    found = answer(InferenceModel(bundle.inference_model).predict(known["x"]))
    np.testing.assert_allclose(found, known["y"].reshape(found.shape), rtol=1e-4, atol=1e-5)
    engine, x = open_engine("portable", bundle), known["x"]
    y = known["t"] if loss == "cross_entropy" else known["t"].reshape(len(x), -1).astype(np.float32)
    engine.begin(LearningRate(0.02))
    before = engine.evaluate(x, y)
    for _ in range(100):
        assert engine.step(x, y).applied
    assert engine.evaluate(x, y) < before / 2


def test_its_labels_are_compared_with_the_names_that_are_given(tmp_path: Path) -> None:
    own, others = Naming(classes=("idle", "normal", "worn")), Naming(classes=("normal", "idle", "worn"))
    bundle = build(model("named"), tmp_path / "b", loss="cross_entropy", engine="portable", naming=own)
    assert bundle.output.names == own.classes
    with pytest.raises(ConfigError, match=r"--classes: the model's classes are idle, normal, worn; given: n"):
        build(model("named"), tmp_path / "c", loss="cross_entropy", engine="portable", naming=others)


def test_two_classes_that_share_a_logit_need_the_binary_loss(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"one output per class, .*--loss bce_with_logits"):
        build(model("binary"), tmp_path / "b", loss="cross_entropy", engine="portable")


def test_rows_that_are_not_those_of_the_input_are_refused(tmp_path: Path) -> None:
    column = chain()
    column.graph.node[-1].output[0] = "values"
    column.graph.node.append(helper.make_node("Relu", ["values"], ["positive"]))
    column.graph.node.append(helper.make_node("Reshape", ["positive", "column"], ["output"]))
    column.graph.initializer.append(numpy_helper.from_array(np.array([-1, 1], np.int64), "column"))
    column.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 1
    with pytest.raises(BundleError, match=r"output: the output has 2\*batch rows"):
        build(column, tmp_path / "b", loss="mse")


def labelled(last: str, behind: str) -> onnx.ModelProto:
    """Two layers, `last`, and as second output what `behind` makes of it."""
    made = chain()
    made.graph.node[-1].output[0] = "logits"
    made.graph.node.extend([
        helper.make_node(last, ["logits"], ["output"], name="last"),
        helper.make_node(behind, ["output"], ["found"]),
        helper.make_node("Cast", ["found"], ["label"], to=TensorProto.INT64),
    ])  # fmt: skip
    made.graph.output.append(helper.make_tensor_value_info("label", TensorProto.INT64, None))
    return made


def test_any_classifier_that_gives_labels_is_cut(tmp_path: Path) -> None:
    bundle = build(labelled("Softmax", "ArgMax"), tmp_path / "b", loss="cross_entropy", engine="portable")
    assert (bundle.output.name, bundle.output.shape) == ("logits", ("batch", 2))


@pytest.mark.parametrize("parts", [("Relu", "ArgMax"), ("Softmax", "Relu")])
def test_what_is_made_of_something_else_is_not_cut(tmp_path: Path, parts: tuple[str, str]) -> None:
    with pytest.raises(BundleError, match="exactly one output, it has: output, label"):
        build(labelled(*parts), tmp_path / "b", loss="cross_entropy")
