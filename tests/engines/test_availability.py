"""What can be imported where, and what is said where something is missing; each in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from edged.domain.bundle_contents import Tensor
from edged.engines import open_engine
from edged.engines.native import api
from edged.engines.runtime.ort import CPU, onnxruntime
from edged.errors import ConfigError, UnavailableError
from edged.storage.models.bundles import Bundle

BUNDLE = Bundle(
    path=Path("nowhere"),
    edged="0",
    loss="mse",
    optimizer="adamw",
    input=Tensor("x", ("batch", 2)),
    output=Tensor("y", ("batch", 1)),
    label=Tensor("target", ("batch", 1)),
    trainable=(),
    frozen=(),
)


def fresh(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def test_serving_imports_no_training_code_and_no_onnx() -> None:
    code = (
        "import sys, edged.engines, edged.engines.inference\n"
        "bad = ('onnxruntime.training', 'onnxruntime.training.api', 'onnxruntime.training.artifacts',\n"
        "       'onnx', 'google.protobuf', 'edged.engines.native')\n"
        "print([m for m in bad if m in sys.modules])"
    )
    assert fresh(code) == "[]"


# A stock build of onnxruntime has no folder `training`: the same is shown by looking for it elsewhere.
WITHOUT = (
    "from pathlib import Path\n"
    "from edged.engines import open_engine\nfrom edged.engines.native import api as training_api\n"
    "from edged.errors import UnavailableError\nfrom tests.engines.test_availability import BUNDLE\n"
    "import onnxruntime; onnxruntime.__file__ = '/nowhere/onnxruntime/__init__.py'\n"
    "print(training_api.available())\n"
    "try:\n    open_engine('native', BUNDLE)\n"
    "except UnavailableError as problem:\n    print(problem.exit_code, problem)"
)


def test_without_the_training_build_it_is_said_what_to_use() -> None:
    available, line = fresh(WITHOUT).splitlines()
    assert available == "False"
    assert line.startswith("4 engine native: onnxruntime-training is not installed (pip install onnxruntime-")
    assert "or use the portable engine: training.engine: portable" in line


@pytest.mark.parametrize(("engine", "other"), [("portable", "native"), ("native", "portable")])
def test_a_bundle_for_the_other_engine_is_not_opened(engine: str, other: str) -> None:
    with pytest.raises(UnavailableError, match=rf"built for the {other} engine .*--engine {engine}"):
        open_engine(engine, replace(BUNDLE, engine=other))


def test_an_unknown_engine_is_a_mistake_in_the_configuration() -> None:
    with pytest.raises(ConfigError, match=r"there is no engine 'torch' .*portable, native"):
        open_engine("torch", BUNDLE)


def test_a_provider_that_this_build_has_not_is_a_mistake_in_the_configuration() -> None:
    with pytest.raises(ConfigError) as refused:
        open_engine("portable", BUNDLE, providers=["TensorrtExecutionProvider", "CPUExecutionProvider"])
    assert refused.value.where == "training.provider"
    assert "no TensorrtExecutionProvider" in refused.value.what
    assert "CPUExecutionProvider" in refused.value.remedy


def test_the_native_engine_takes_no_other_provider_than_the_cpu() -> None:
    for other in {*onnxruntime.get_available_providers()} - {*CPU}:
        with pytest.raises(ConfigError, match=f"the native engine has no {other}"):
            open_engine("native", replace(BUNDLE, engine="native"), providers=[other])


if api.available():

    def test_the_training_api_comes_without_torch_and_leaves_the_runtime_usable() -> None:
        code = (
            "import sys; from edged.engines.native import api as training_api\n"
            "api = training_api.load('api'); import onnxruntime\n"
            "assert training_api.load('api') is api is onnxruntime.training.api\n"
            "print('torch' in sys.modules, onnxruntime.InferenceSession is not None)"
        )
        assert fresh(code) == "False True"
