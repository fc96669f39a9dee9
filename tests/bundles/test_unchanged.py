"""A network that already has weights keeps what it says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edged.bundles.graph.templates import mlp
from edged.bundles.inspect import inspect
from edged.bundles.source.axes import check_outputs
from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from edged.engines.inference import InferenceModel
from edged.errors import BundleError
from edged.storage.models.bundles import Bundle
from tests.building import build
from tests.zoo import ZOO

if TYPE_CHECKING:
    from edged.bundles.inspect import BundleReport

RNG = np.random.default_rng(0)
# Raw units of very different sizes, far beyond the limits of standardised inputs.
X = (RNG.standard_normal((200, 3)) * [1, 40, 900] + [5, 400, -3000]).astype(np.float32)


def trained() -> onnx.ModelProto:
    """A network in raw units whose outputs all depend on the large ones; its producer is not edged."""
    made = mlp(3, 2, (), seed=1)
    for tensor in made.graph.initializer:
        if tensor.name.endswith("weight"):
            tensor.CopyFrom(
                numpy_helper.from_array(np.array([[1, 0.1, 0.01], [-1, 0.2, 0.02]], np.float32), tensor.name)
            )
    made.producer_name = "somebody"
    return made


def built(folder: Path, model: onnx.ModelProto, **options: Any) -> BundleReport:
    onnx.save(model, str(folder / "m.onnx"))
    np.savez(folder / "d.npz", X=X, y=np.zeros(len(X), np.int64))
    notes: list[str] = []
    build(
        folder / "m.onnx", folder / "b", loss="cross_entropy", data=folder / "d.npz", add_note=notes.append,
        **{"standardise": None, **options},
    )  # fmt: skip
    return replace(inspect(folder / "b"), notes=tuple(notes))


def says(path: Path) -> np.ndarray:
    return np.asarray(InferenceModel(path).predict(X))


def test_a_network_of_raw_units_says_the_same_afterwards(tmp_path: Path) -> None:
    told = built(tmp_path, trained())
    np.testing.assert_allclose(
        says(tmp_path / "b" / "inference_model.onnx"), says(tmp_path / "m.onnx"), rtol=1e-5
    )
    assert told.standardise is None
    assert "inputs are taken as they are" in (told.notes or ("",))[0]


def test_it_is_standardised_where_that_is_asked_for(tmp_path: Path) -> None:
    told = built(tmp_path, trained(), standardise=True)
    assert told.standardise is not None
    assert not [note for note in told.notes or () if "as they are" in note]


def with_scaling(second: str) -> onnx.ModelProto:
    """The network with a mean and a spread of its own in front, as PyTorch exports buffers."""
    made = trained()
    (given,) = made.graph.input
    for node in made.graph.node:
        node.input[:] = ["scaled" if name == given.name else name for name in node.input]
    spread = X.std(axis=0) if second == "Div" else 1 / X.std(axis=0)
    made.graph.initializer.extend([
        numpy_helper.from_array(X.mean(axis=0), "0.mean"), numpy_helper.from_array(spread, "0.spread"),
    ])  # fmt: skip
    front = [
        onnx.helper.make_node("Sub", [given.name, "0.mean"], ["centred"]),
        onnx.helper.make_node(second, ["centred", "0.spread"], ["scaled"]),
    ]
    nodes = [*front, *made.graph.node]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


@pytest.mark.parametrize("second", ["Div", "Mul"])
@pytest.mark.parametrize("train", [[], ["*"]])
def test_a_scaling_of_its_own_is_trained_only_if_told(tmp_path: Path, second: str, train: list[str]) -> None:
    told = built(tmp_path, with_scaling(second), train=train)
    bundle = Bundle.open(tmp_path / "b")
    assert ({"0.mean", "0.spread"} <= set(bundle.frozen)) == (not train)
    assert any("scaling of the inputs is frozen" in note for note in told.notes or ()) == (not train)
    np.testing.assert_allclose(
        says(tmp_path / "b" / "inference_model.onnx"), says(tmp_path / "m.onnx"), rtol=1e-4, atol=1e-5
    )


def test_a_new_network_is_standardised_as_before(tmp_path: Path) -> None:
    told = built(tmp_path, mlp(3, 2, (4,)))
    assert told.standardise is not None
    assert told.notes == ()


@pytest.mark.parametrize("standardise", [None, False])
def test_what_a_bundle_was_trained_to_is_not_standardised_again(
    tmp_path: Path, standardise: bool | None
) -> None:
    first = built(tmp_path, mlp(3, 2, (4,)), standardise=standardise)
    engine = open_engine("portable", Bundle.open(tmp_path / "b"))
    engine.begin(LearningRate(0.05))
    for _ in range(20):
        engine.step(X, (X[:, 0] > 5).astype(np.int64))
    engine.export(tmp_path / "trained.onnx")
    second = built(tmp_path, onnx.load(tmp_path / "trained.onnx"))
    np.testing.assert_allclose(
        says(tmp_path / "b" / "inference_model.onnx"), says(tmp_path / "trained.onnx"), rtol=1e-6
    )
    assert (second.standardise, second.parameters) == (first.standardise, first.parameters)
    kept = "the standardisation in front of the network stays as it is"
    assert second.notes is not None
    assert second.notes[0].startswith(kept if standardise is None else "inputs are taken as they are")
    assert not any("scaling of the inputs" in note for note in second.notes), "it is told once"


def test_a_form_that_says_something_else_is_refused() -> None:
    other = trained()
    tensor = next(t for t in other.graph.initializer if t.name.endswith("bias"))
    tensor.CopyFrom(numpy_helper.from_array(np.array([3, 0], np.float32), tensor.name))
    check_outputs(trained(), trained(), X, pytest.fail)
    with pytest.raises(BundleError, match="the output 'logits' would differ by 3 "):
        check_outputs(trained(), other, np.zeros((4, 3), np.float32), pytest.fail)


def test_dropout_and_batch_normalisation_do_not_count_as_a_difference(tmp_path: Path) -> None:
    for name in ("mlp_dropout", "cnn_batchnorm"):
        entry, notes = ZOO[name], list[str]()
        build(entry.make(True), tmp_path / name, loss=entry.loss, freeze=entry.freeze, add_note=notes.append)
        assert not [note for note in notes if note.startswith("not compared")]


def test_a_file_that_cannot_be_run_here_is_not_compared_and_that_is_said() -> None:
    notes: list[str] = []
    newer = trained()
    newer.opset_import[0].version = 99
    check_outputs(newer, trained(), None, notes.append)
    assert notes[0].startswith("not compared with the given file, which cannot be run here: ")
