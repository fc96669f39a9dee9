from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edged.bundles.graph.templates import autoencoder, cnn1d, cnn2d, gru, mlp
from edged.bundles.new_model import new_model, parse_inputs
from edged.bundles.source.standardise import Statistics
from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from edged.engines.inference import InferenceModel
from edged.engines.runtime import ort
from edged.errors import ConfigError
from tests.installed import ENGINES, built_for_each


def weights(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {str(tensor.name): numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    return np.asarray(ort.session(model.SerializeToString()).run(None, {"x": x})[0])


def test_an_mlp_computes_what_its_weights_say() -> None:
    model = mlp(3, 2, (5,), seed=1)
    onnx.checker.check_model(model, full_check=True)
    w, x = weights(model), np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)
    hidden = np.maximum(x @ w["layer1.weight"].T + w["layer1.bias"], 0)
    np.testing.assert_allclose(run(model, x), hidden @ w["layer2.weight"].T + w["layer2.bias"], rtol=1e-5)


def test_names_and_versions() -> None:
    model = mlp(3, 2, (5, 4), output="y")
    assert list(weights(model)) == [f"layer{i}.{part}" for i in (1, 2, 3) for part in ("weight", "bias")]
    assert (model.graph.input[0].name, model.graph.output[0].name) == ("x", "y")
    assert (model.opset_import[0].version, model.ir_version) == (21, 10)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_an_autoencoder_gives_back_as_many_values_as_it_takes() -> None:
    model = autoencoder(6, (5, 4), 2)
    onnx.checker.check_model(model, full_check=True)
    assert [w.shape for n, w in weights(model).items() if n.endswith("weight")] == [
        (5, 6), (4, 5), (2, 4), (4, 2), (5, 4), (6, 5)
    ]  # fmt: skip
    assert run(model, np.ones((3, 6), np.float32)).shape == (3, 6)


def test_the_seed_decides() -> None:
    assert mlp(3, 2, seed=1).SerializeToString() == mlp(3, 2, seed=1).SerializeToString()
    assert mlp(3, 2, seed=1).SerializeToString() != mlp(3, 2, seed=2).SerializeToString()


def test_initial_weights_keep_the_size_of_signals() -> None:
    x = np.random.default_rng(0).standard_normal((500, 100)).astype(np.float32)
    assert 0.5 < run(mlp(100, 50, (200, 200, 200)), x).std() < 2.0


def test_a_linear_model() -> None:
    assert list(weights(mlp(3, 2, ()))) == ["layer1.weight", "layer1.bias"]


@pytest.mark.parametrize(("inputs", "hidden"), [(0, (3,)), (3, (0,)), (3, (-1,))])
def test_sizes_below_one_are_refused(inputs: int, hidden: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        mlp(inputs, 2, hidden)


# ---- windows -----------------------------------------------------------------------------------

WINDOW = (16, 3)
WINDOWED: dict[str, Callable[[int], onnx.ModelProto]] = {
    "cnn1d": lambda seed: cnn1d(WINDOW, 4, (5, 6), seed=seed),
    "gru": lambda seed: gru(WINDOW, 4, (6, 5), seed=seed),
}


def windows(n: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, *WINDOW)).astype(np.float32)


@pytest.mark.parametrize("kind", WINDOWED)
def test_networks_for_windows_are_sound_and_seeded(kind: str) -> None:
    make = WINDOWED[kind]
    onnx.checker.check_model(make(0), full_check=True)
    assert make(1).SerializeToString() == make(1).SerializeToString() != make(2).SerializeToString()
    assert run(make(0), windows().reshape(5, -1)).shape == (5, 4)
    assert [tensor.data_type for tensor in make(0).graph.initializer] == [onnx.TensorProto.FLOAT] * len(
        make(0).graph.initializer
    ), "whatever is no parameter is a constant"


def test_a_cnn1d_sees_neighbours_in_time_of_all_channels() -> None:
    """Of the first layer's filters each value changes with five readings and no others."""
    model = cnn1d(WINDOW, 4, (5,))
    first = next(node.output[0] for node in model.graph.node if node.op_type == "Conv")
    model.graph.output.append(onnx.helper.make_tensor_value_info(first, onnx.TensorProto.FLOAT, None))
    session = ort.session(model.SerializeToString())
    x = windows(1)
    before = np.asarray(session.run([first], {"x": x.reshape(1, -1)})[0])
    x[0, 7] += 1.0
    moved = np.asarray(session.run([first], {"x": x.reshape(1, -1)})[0]) != before
    assert np.flatnonzero(moved.any(axis=(0, 1))).tolist() == [5, 6, 7, 8, 9]


def test_a_gru_computes_what_its_weights_say() -> None:
    model, x = gru(WINDOW, 4, (6,), seed=3), windows()
    w = weights(model)

    def sigmoid(z: np.ndarray) -> np.ndarray:
        return np.asarray(1 / (1 + np.exp(-z)))

    inner, recurrent = w["layer1.weight_ih"][0], w["layer1.weight_hh"][0]
    h, states = np.zeros((5, 6)), []
    for t in range(WINDOW[0]):
        (z, r, n), (hz, hr, hn) = (np.split(v, 3, axis=1) for v in (x[:, t] @ inner.T, h @ recurrent.T))
        update = sigmoid(z + hz)
        h = update * h + (1 - update) * np.tanh(n + sigmoid(r + hr) * hn)
        states.append(h)
    wanted = np.mean(states, axis=0) @ w["layer2.weight"].T + w["layer2.bias"]
    np.testing.assert_allclose(run(model, x.reshape(5, -1)), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", WINDOWED)
def test_both_engines_train_networks_for_windows_alike(kind: str, tmp_path: Path) -> None:
    """Twenty steps behind a standardisation; nothing but the layers is trained."""
    x = windows(64, 1)
    y = (x[:, :, 0].mean(axis=1) > 0).astype(np.int64) + 2 * (x.std(axis=(1, 2)) > 1)
    statistics = Statistics.of({"mean": [0.1] * 48, "scale": [1.2] * 48})
    bundles = built_for_each(WINDOWED[kind](0), tmp_path, loss="cross_entropy", standardise=statistics)
    assert tuple(bundles) == ENGINES
    bundle = bundles["portable"]
    assert all(name.startswith("layer") for name in bundle.trainable)
    assert set(bundle.frozen) == {"input.mean", "input.scale"}
    trained = []
    for name, each in bundles.items():
        engine = open_engine(name, each)
        losses = [engine.step(x.reshape(64, -1), y).loss for _ in range(20)]
        assert losses == sorted(losses, reverse=True)
        trained.append(engine.parameters())
    for name in bundle.trainable:
        np.testing.assert_allclose(trained[0][name], trained[-1][name], rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"inputs": "128x9", "outputs": None}, "needs --outputs"),
        ({"inputs": "9"}, "takes windows.*128x9"),
        ({"inputs": "0x9"}, "'0x9' is no size"),
        ({"inputs": "1x2x3x4"}, "is no size of an input"),
        ({"inputs": "128x9", "hidden": ()}, "cnn1d needs layers"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], problem: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"kind": "cnn1d", "outputs": 2} | options
    with pytest.raises(ConfigError, match=problem):
        new_model(
            given["kind"],
            inputs=parse_inputs(given["inputs"]),
            outputs=given["outputs"],
            hidden=given.get("hidden"),
            out=tmp_path / "m.onnx",
            seed=0,
        )
    assert not (tmp_path / "m.onnx").exists()


def test_the_usual_cnn1d_is_small() -> None:
    assert sum(value.size for value in weights(cnn1d((128, 9), 6)).values()) == 23_462


def test_a_cnn2d_sees_what_lies_side_by_side_and_one_above_the_other(tmp_path: Path) -> None:
    # Crosses against squares, of which every row and column holds as much: no sum of pixels tells them apart.
    rng = np.random.default_rng(5)
    shapes = np.array([[[0, 1, 0], [1, 1, 1], [0, 1, 0]], [[1, 0, 1], [0, 1, 0], [1, 0, 1]]], np.float32)
    x, y = rng.standard_normal((300, 2, 8, 8)).astype(np.float32) * 0.3, rng.integers(0, 2, 300)
    for image, label in zip(x, y, strict=True):
        row, column = rng.integers(0, 6, 2)
        image[1, row : row + 3, column : column + 3] += 2 * shapes[label]
    flat = x.reshape(300, -1)
    model = cnn2d((2, 8, 8), 2, (8, 8), seed=1)
    onnx.checker.check_model(model, full_check=True)
    bundles = built_for_each(model, tmp_path, loss="cross_entropy", standardise=Statistics.identity(128))
    losses = []
    for name, bundle in bundles.items():
        engine = open_engine(name, bundle)
        engine.begin(LearningRate(3e-3))
        for _ in range(60):
            engine.step(flat[:200], y[:200])
        engine.export(tmp_path / f"{engine.name}.onnx")
        right = InferenceModel(tmp_path / f"{engine.name}.onnx").predict(flat[200:]).argmax(1) == y[200:]
        assert right.mean() > 0.9
        losses.append(engine.evaluate(flat[200:], y[200:]))
    assert losses[0] == pytest.approx(losses[-1], rel=1e-3)


@pytest.mark.parametrize(("sizes", "shape"), [("8x8", (8, 1, 3, 3)), ("3x8x8", (8, 3, 3, 3))])
def test_a_cnn2d_takes_grey_and_coloured_images(tmp_path: Path, sizes: str, shape: tuple[int, ...]) -> None:
    inputs = parse_inputs(sizes)
    model = new_model("cnn2d", inputs=inputs, outputs=2, hidden=(8,), out=tmp_path / "m.onnx", seed=0)
    assert weights(model)["layer1.weight"].shape == shape
    with pytest.raises(ConfigError, match="takes images"):
        new_model("cnn2d", inputs=(9,), outputs=2, hidden=None, out=tmp_path / "m.onnx", seed=0)
