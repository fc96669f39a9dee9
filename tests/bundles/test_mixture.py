"""What a stream serves is one ONNX file: its networks, how much each counts, and the head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest

from edged.bundles.export.mixture import export_mixture
from edged.bundles.graph.templates import experts, mlp
from edged.domain.judging.expert_mix import ExpertMix, StreamModel
from edged.domain.judging.outputs import probabilities
from edged.domain.judging.ridge_head import RidgeHead
from edged.engines.inference import InferenceModel
from edged.errors import BundleError, RefusedError
from edged.host.child_process import run_order

if TYPE_CHECKING:
    from pathlib import Path

    from edged.domain.child_orders import MixtureOrder

WIDTH, MEASURED, CLASSES = 12, 3, 3


def rows(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, WIDTH)).astype(np.float32) * 3 + 1
    return x, x[:, :CLASSES].argmax(axis=1)


def served(path: Path, network: onnx.ModelProto, *, head: bool = True, random: bool = False) -> StreamModel:
    """A model in service for 400 labels: its weights have moved, and the head knows them."""
    onnx.save(network, str(path))
    known = RidgeHead(WIDTH, MEASURED, CLASSES) if head else None
    model = StreamModel(InferenceModel(path), ExpertMix(None, known), random=random)
    x, y = rows(400, 1)
    if known is not None:
        known.learn(x, y)
    said = model.predict_both(x)[1]
    if said is not None and isinstance(model.mix, ExpertMix):
        model.mix.update(said, said[:, 0].argmax(axis=1) if known is None else y)
    return model


def same(model: StreamModel, order: MixtureOrder) -> None:
    x, _ = rows(200, 2)
    made = InferenceModel(order.out)
    np.testing.assert_allclose(
        probabilities(made.predict(x)), probabilities(model.predict(x)), rtol=1e-3, atol=1e-5
    )


@pytest.mark.parametrize("head", [True, False])
def test_the_file_answers_as_the_stream_does(tmp_path: Path, head: bool) -> None:
    model = served(tmp_path / "model.onnx", experts(WIDTH, MEASURED, CLASSES, (8,)), head=head)
    order = model.mixture(tmp_path / "model.onnx", tmp_path / "mixture.onnx")
    assert len(set(order.weights)) == len(order.weights) == 2 + head
    run_order("edged.bundles", order, 60)
    same(model, order)


def test_a_network_of_ones_own_is_mixed_with_the_head(tmp_path: Path) -> None:
    model = served(tmp_path / "model.onnx", mlp(WIDTH, CLASSES, (8,), output="logits"))
    order = model.mixture(tmp_path / "model.onnx", tmp_path / "mixture.onnx")
    assert len(order.weights) == 2
    export_mixture(order)
    same(model, order)


def test_what_is_not_mixed_or_not_trained_is_refused(tmp_path: Path) -> None:
    path, out = tmp_path / "model.onnx", tmp_path / "mixture.onnx"
    plain = served(path, mlp(WIDTH, CLASSES, (8,), output="logits"), head=False)
    with pytest.raises(RefusedError, match="nothing is mixed"):
        plain.mixture(path, out)
    untrained = served(path, experts(WIDTH, MEASURED, CLASSES, (8,)), random=True)
    with pytest.raises(RefusedError, match="untrained"):
        untrained.mixture(path, out)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    path, out = tmp_path / "model.onnx", tmp_path / "mixture.onnx"
    order = served(path, experts(WIDTH, MEASURED, CLASSES, (8,))).mixture(path, out)
    onnx.save(mlp(WIDTH, CLASSES, (8,), output="logits"), str(path))
    with pytest.raises(BundleError, match="one network, and weights of 2 experts"):
        export_mixture(order)
    assert not out.exists()
