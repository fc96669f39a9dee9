"""The required-operators config of a bundle, read by onnxruntime's own parser."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import onnx
import pytest

from edged.artifacts.build import build
from edged.artifacts.operators import config
from edged.artifacts.standardise import Statistics
from edged.artifacts.templates import gru, mlp
from tests.commands import edged

if TYPE_CHECKING:
    from pathlib import Path

    from edged.storage.bundles import Bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    out = tmp_path_factory.mktemp("ops") / "b"
    return build(mlp(4, 3, (5,)), out, loss="cross_entropy", standardise=Statistics.identity(4))


def test_upstream_reads_it_and_every_operator_of_every_graph_is_there(bundle: Bundle, tmp_path: Path) -> None:
    file = tmp_path / "required.config"
    assert edged("artifacts", "ops", bundle.path, "-o", file).code == 0
    parser = importlib.import_module("onnxruntime.tools.reduced_build_config_parser")
    required, _ = parser.parse_config(str(file))
    for name in bundle.files:
        if name.endswith(".onnx"):
            for node in onnx.load(str(bundle.path / name)).graph.node:
                version = 17 if not node.domain else 1
                assert node.op_type in required[node.domain or "ai.onnx"][version], (name, node.op_type)


def test_what_the_runtime_makes_of_a_graph_is_there_too(bundle: Bundle) -> None:
    line = next(line for line in config(bundle.path).splitlines() if line.startswith("com.microsoft;1;"))
    assert {"FusedGemm", "AdamWOptimizer", "InPlaceAccumulatorV2"} <= set(line.split(";")[2].split(","))


def test_bodies_of_loops_count(tmp_path: Path) -> None:
    bundle = build(gru((6, 2), 2, (3,)), tmp_path / "b", loss="cross_entropy", engine="portable")
    standard = next(line for line in config(bundle.path).splitlines() if line.startswith("ai.onnx;"))
    assert {"Scan", "Tanh", "Sigmoid", "MatMul"} <= set(standard.split(";")[2].split(","))
