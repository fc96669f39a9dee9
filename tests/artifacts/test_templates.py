from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edged.artifacts.templates import autoencoder, mlp
from edged.engines import ort
from edged.errors import ConfigError


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
    assert (model.opset_import[0].version, model.ir_version) == (17, 8)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_an_autoencoder_gives_back_as_many_values_as_it_takes() -> None:
    model = autoencoder(6, (5, 4), 2, activation="tanh")
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


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown activation 'swish'.*relu, tanh, sigmoid"):
        mlp(3, 2, activation="swish")  # type: ignore[arg-type]
