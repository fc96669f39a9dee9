"""The network of two experts: what each sees, that each learns by itself, and what a bundle of it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edged.bundles.build import build
from edged.bundles.graph.templates import experts
from edged.bundles.standard_network import request_of
from edged.domain.child_orders import CONTEXT, StandardBundleOrder, StandardNetwork
from edged.domain.judging.outputs import probabilities
from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from edged.engines.inference import InferenceModel
from edged.errors import ConfigError, ModelError
from edged.storage.models.bundles import Bundle

FEATURES, CLASSES = 3, 4
WIDTH = FEATURES * (1 + len(CONTEXT))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return ordered(tmp_path_factory.mktemp("experts") / "bundle", "portable")


def ordered(out: Path, engine: str) -> Bundle:
    network = StandardNetwork("classify", WIDTH, CLASSES, "experts", (1, FEATURES), (16,), 0, CONTEXT)
    return build(request_of(StandardBundleOrder(network, out, engine=engine, label_smoothing=0.1)), out)


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(64, WIDTH)).astype(np.float32)


def test_the_bundle_says_its_context_and_its_outputs(bundle: Bundle) -> None:
    assert bundle.context == CONTEXT
    assert bundle.output_names == ("logits", "experts")
    assert "mix.weights" in bundle.frozen
    assert bundle.loss == "cross_entropy"


def test_the_output_is_the_mixture_of_equals(bundle: Bundle, rows: np.ndarray) -> None:
    model = InferenceModel(bundle.inference_model)
    each = model.predict_experts(rows)
    assert (model.experts, each.shape) == (2, (64, 2, CLASSES))
    np.testing.assert_allclose(model.predict(rows), each.mean(axis=1), atol=1e-5)


def test_the_first_sees_no_context(bundle: Bundle, rows: np.ndarray) -> None:
    model, other = InferenceModel(bundle.inference_model), rows.copy()
    other[:, FEATURES:] += 1
    before, after = model.predict_experts(rows), model.predict_experts(other)
    assert np.array_equal(before[:, 0], after[:, 0])
    assert not np.allclose(before[:, 1], after[:, 1])


@pytest.mark.parametrize("engine", ["portable", "native"])
def test_each_learns_what_it_can_see(engine: str, tmp_path: Path) -> None:
    """The label is in the context: the second learns it, the first learns that it cannot know."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(512, WIDTH)).astype(np.float32)
    y = np.digitize(x[:, FEATURES], [-0.7, 0, 0.7]).astype(np.int64)
    learning = open_engine(engine, ordered(tmp_path / "b", engine))
    learning.begin(LearningRate(3e-3))
    for _ in range(1000):
        drawn = rng.integers(0, len(x), 64)
        learning.step(x[drawn], y[drawn])
    learning.export(tmp_path / "model.onnx")
    model = InferenceModel(tmp_path / "model.onnx")
    right = (model.predict_experts(x).argmax(axis=2) == y[:, None]).mean(axis=0)
    assert right[0] < 0.5
    assert right[1] > 0.85
    assert probabilities(model.predict(x)).max(axis=1).mean() > 0.4


def test_a_model_of_one_part_has_no_experts(tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    order = StandardBundleOrder(StandardNetwork("classify", 3, 2, "mlp", (1, 3), (4,)), out)
    model = InferenceModel(build(request_of(order), out).inference_model)
    assert model.experts == 0
    with pytest.raises(ModelError, match="no experts"):
        model.predict_experts(np.zeros((1, 3), np.float32))


def test_sizes_are_checked() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        experts(4, 4, 2, (0,))
