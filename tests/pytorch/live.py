"""PyTorch exports and trains here and now, the engines come to the same weights: `make test-torch`.

`EDGED_TORCH` names the interpreter of an environment with torch, onnx and onnxscript. Both of PyTorch's
exporters are asked. What the newer one folds into the layer before it, BatchNorm, is left to the older one:
folded, it is another network to train.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from edged.errors import BundleError
from tests.bundles.trained import CASES, OPTIMIZERS, Case, compare
from tests.commands import edged
from tests.installed import ENGINES

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 1800
FOLDED = ("batchnorm", "batchnorm_frozen", "cnn2d", "separable")
# Those of tests/pytorch/networks.py, which only an interpreter with torch can import.
MORE = (
    "rnn", "rnn_relu_both_ways", "lstm_both_ways", "gru_both_ways", "attention", "volumes", "bilinear_grid",
    "nearest_grid", "shuffled", "more_activations", "root_mean_square", "bilinear_form", "running_sum",
    "largest", "log_sum_exp", "norms",
)  # fmt: skip
EVERY = [*CASES, *map(Case, MORE)]
STEPS = ("1", "10", "150", "200")
EXPORTERS = {
    "classic": EVERY,
    "dynamo": [case for case in EVERY if case.name not in FOLDED],
}


@pytest.fixture(scope="module", params=EXPORTERS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """An exporter, and the directory of what PyTorch has just written with it."""
    python = os.environ.get("EDGED_TORCH")
    if python is None:
        pytest.fail("EDGED_TORCH names no interpreter: run `make test-torch`")
    folder = tmp_path_factory.mktemp(request.param)
    names = [case.name for case in EXPORTERS[request.param]]
    options = ["--into", str(folder), "--steps", *STEPS, *(["--dynamo"] if request.param == "dynamo" else [])]
    done = subprocess.run(
        [python, "-W", "ignore", "-m", "tests.bundles.exported.make_trained", *names, *options],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
        timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return str(request.param), folder


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("case", EVERY, ids=lambda case: case.name)
def test_the_weights_are_pytorchs(
    exported: tuple[str, Path], case: Case, optimizer: str, tmp_path: Path
) -> None:
    exporter, folder = exported
    if case not in EXPORTERS[exporter]:
        pytest.skip("the exporter folds its BatchNorm")
    for engine in case.engines:
        if engine not in ENGINES:
            continue
        try:
            bundle = case.bundle(folder, optimizer, tmp_path / engine, engine)
        except BundleError as problem:  # onnxruntime-training has no gradient for it
            refused = engine == "native" and "--engine portable" in problem.line()
            assert refused, problem.line()  # noqa: PT017
        else:
            compare(case, folder, optimizer, bundle)


def test_the_tutorials_network_is_exported(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tutorial-pytorch.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^<!-- save: export.py -->\n```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "export.py").write_text(code, encoding="utf-8")
    subprocess.run([os.environ["EDGED_TORCH"], "export.py"], cwd=tmp_path, check=True, timeout=SECONDS)
    checked = edged("artifacts", "check", tmp_path / "press.onnx")
    assert checked.code == 0, checked.out + checked.err
