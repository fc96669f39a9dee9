"""Execution providers: what is asked for is used or refused, never silently replaced."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from edged.bundles.graph.templates import mlp
from edged.engines.inference import InferenceModel
from edged.engines.runtime import ort
from edged.engines.runtime.ort import CPU, check, confirm, onnxruntime, with_cpu
from edged.errors import ConfigError, UnavailableError

HERE = onnxruntime.get_available_providers()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(mlp(4, 3), str(tmp_path / "m.onnx"))
    return tmp_path / "m.onnx"


def test_the_cpu_comes_last() -> None:
    assert with_cpu(["CPUExecutionProvider", "XExecutionProvider"]) == ["XExecutionProvider", *CPU]


def test_one_that_is_not_built_in_is_refused_with_those_that_are() -> None:
    check(HERE, "training.provider")
    with pytest.raises(ConfigError) as refused:
        check(["XExecutionProvider"], "training.provider")
    assert refused.value.where == "training.provider"
    assert all(name in refused.value.remedy for name in HERE)


def test_one_that_the_session_has_left_out_is_refused(model: Path) -> None:
    for session in (ort.session(str(model)), ort.session_in_steps(str(model), lambda: None)):
        confirm(session, CPU)
        with pytest.raises(UnavailableError, match="XExecutionProvider is in this onnxruntime, but cannot"):
            confirm(session, ["XExecutionProvider", *CPU])


def test_every_one_that_is_built_in_serves(model: Path) -> None:
    x = np.ones((2, 4), np.float32)
    expected = InferenceModel(model).predict(x)
    for name in HERE:
        np.testing.assert_allclose(InferenceModel(model, providers=[name]).predict(x), expected, rtol=1e-4)
