from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from edged.bundles.graph.templates import autoencoder, mlp
from edged.bundles.source.standardise import Statistics, standardise_model
from edged.engines.runtime import ort
from edged.errors import BundleError


def run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    onnx.checker.check_model(model, full_check=True)
    return np.asarray(ort.session(model.SerializeToString()).run(None, {"x": x.astype(np.float32)})[0])


def test_raw_units_go_in() -> None:
    plain, wrapped = mlp(2, 3), mlp(2, 3)
    standardise_model(wrapped, Statistics.of({"mean": [100.0, -5.0], "scale": [0.01, 4.0]}))
    x = np.array([[250.0, -4.0], [90.0, -5.5]])
    np.testing.assert_allclose(run(wrapped, x), run(plain, (x - [100, -5]) * [0.01, 4.0]), rtol=1e-5)


def test_absurd_readings_are_clipped() -> None:
    model = mlp(2, 3)
    standardise_model(model, Statistics.identity(2))
    np.testing.assert_array_equal(
        run(model, np.array([[1e30, -1e30]])), run(model, np.array([[10.0, -10.0]]))
    )


def test_raw_units_come_out() -> None:
    plain, wrapped = mlp(2, 1, output="y"), mlp(2, 1, output="y")
    standardise_model(
        wrapped,
        Statistics.of({"mean": [0, 0], "scale": [1, 1], "target_mean": [1e4], "target_scale": [0.01]}),
    )
    x = np.array([[1.0, 2.0], [-3.0, 0.5]])
    np.testing.assert_allclose(run(wrapped, x), run(plain, x) * 100 + 1e4, rtol=1e-6)


def test_a_reconstruction_comes_back_in_the_inputs_units() -> None:
    plain, wrapped = autoencoder(2, (4,), 2), autoencoder(2, (4,), 2)
    standardise_model(wrapped, Statistics.of({"mean": [1e3, 1], "scale": [0.1, 10]}, reconstruct=True))
    z = np.array([[0.3, -0.2]])
    np.testing.assert_allclose(
        run(wrapped, z / [0.1, 10] + [1e3, 1]), run(plain, z) / [0.1, 10] + [1e3, 1], rtol=1e-4
    )


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"mean": [0.0]}, "mean and scale are needed"),
        ({"mean": [0, 0], "scale": [1]}, "equally long"),
        ({"mean": [0, float("nan")], "scale": [1, 1]}, "must be finite"),
        ({"mean": [0, 0], "scale": [1, 0]}, "above 0"),
        ({"mean": [0, 0], "scale": [1, float("inf")]}, "finite"),
        ({"mean": ["a", 0], "scale": [1, 1]}, "lists of numbers"),
        ({"mean": [0], "scale": [1], "target_mean": [1]}, "belong together"),
    ],
)
def test_useless_statistics_are_refused(values: dict[str, Any], what: str) -> None:
    with pytest.raises(BundleError, match=what):
        Statistics.of(values)


def test_statistics_of_another_width_are_refused() -> None:
    with pytest.raises(BundleError, match=r"x: statistics of length 3 do not fit the model's input"):
        standardise_model(mlp(2, 1), Statistics.identity(3))
    with pytest.raises(BundleError, match="do not fit the model's output"):
        standardise_model(mlp(2, 1), Statistics.identity(2, reconstruct=True))


def test_a_name_that_is_taken_is_refused() -> None:
    model = mlp(2, 1)
    standardise_model(model, Statistics.identity(2))
    with pytest.raises(BundleError, match="already has a tensor"):
        standardise_model(model, Statistics.identity(2))


def test_a_target_may_be_a_change_from_a_column_of_the_input() -> None:
    plain, wrapped = mlp(3, 2, output="y"), mlp(3, 2, output="y")
    given = {"mean": [0] * 3, "scale": [1] * 3, "target_mean": [5, 0], "target_scale": [0.01, 10]}
    standardise_model(wrapped, replace(Statistics.of(given), change_of=(2, 0)))
    x = np.array([[1.0, 2.0, 30000.0], [-3.0, 0.5, -4.0]])
    change = run(plain, np.clip(x, -10, 10)) / [0.01, 10] + [5, 0]
    np.testing.assert_allclose(run(wrapped, x), x[:, [2, 0]] + change, rtol=1e-6)
