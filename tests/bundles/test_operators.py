"""The required-operators config of a bundle, read by onnxruntime's own parser."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import pytest

from edged.bundles.build import build
from edged.bundles.export.operators import config
from edged.bundles.graph.templates import gru, mlp
from edged.bundles.source.standardise import Statistics
from edged.errors import ConfigError
from tests.commands import edged
from tests.installed import ENGINES, needs_native

if TYPE_CHECKING:
    from edged.storage.models.bundles import Bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    out = tmp_path_factory.mktemp("ops") / "b"
    return build(mlp(4, 3, (5,)), out, loss="cross_entropy", standardise=Statistics.identity(4))


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return build(mlp(4, 3, (5,)), tmp_path_factory.mktemp("ops") / "n", loss="cross_entropy", engine="native")


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
    assert "FusedGemm" in line.split(";")[2].split(",")


def test_bodies_of_loops_count(tmp_path: Path) -> None:
    bundle = build(gru((6, 2), 2, (3,)), tmp_path / "b", loss="cross_entropy", engine="portable")
    standard = next(line for line in config(bundle.path).splitlines() if line.startswith("ai.onnx;"))
    assert {"Scan", "Tanh", "Sigmoid", "Gemm"} <= set(standard.split(";")[2].split(","))


def test_what_other_builds_run_by_its_definition_is_there_in_both_forms(bundle: Bundle) -> None:
    """Stock onnxruntime has no kernel for the loss of a step graph: it runs what that is defined by."""
    needed = operators(config(bundle.path, "portable"))
    assert {"SoftmaxCrossEntropyLoss", "GatherElements", "LogSoftmax", "Squeeze"} <= needed


@needs_native
def test_a_bundle_for_the_native_engine_counts_its_operators(native: Bundle) -> None:
    found = operators(config(native.path, "native"))
    assert {"FusedGemm", "AdamWOptimizer", "InPlaceAccumulatorV2"} <= found
    assert "GatherElements" not in found, "the training build has a kernel"
    with pytest.raises(ConfigError, match="build it with --engine portable"):
        config(native.path, "portable")


def operators(text: str) -> set[str]:
    """All operators of a config, of whatever domain."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name for line in lines for name in line.split(";")[2].split(",")}


def test_a_board_that_only_serves_needs_less(bundle: Bundle) -> None:
    sets = {purpose: operators(config(bundle.path, purpose)) for purpose in ("serving", "portable", "all")}
    assert sets["serving"] < sets["portable"] == sets["all"]
    assert "Gemm" in sets["serving"]


def test_upstream_reads_the_types(bundle: Bundle, tmp_path: Path) -> None:
    file = tmp_path / "required.config"
    assert edged("artifacts", "ops", bundle.path, "--types", "-o", file).code == 0
    parser = importlib.import_module("onnxruntime.tools.reduced_build_config_parser")
    required, types = parser.parse_config(str(file), enable_type_reduction=True)
    # Where the runtime has no kernel for the loss, graphs in ORT format hold its definition.
    written_out = {"Constant"} if "native" in ENGINES else {"Constant", "SoftmaxCrossEntropyLoss"}
    assert operators(config(bundle.path)) - written_out <= {
        n for v in required.values() for s in v.values() for n in s
    }
    entries = types.get_cpp_entries()
    assert any("Gemm, Input, 0, float" in entry for entry in entries)
    assert types.is_typed_registration_needed("ai.onnx", "Gemm", "float")
    assert not types.is_typed_registration_needed("ai.onnx", "Gemm", "double")


@needs_native
def test_ort_format_counts(tmp_path: Path) -> None:
    made = build(
        mlp(4, 3, (5,)), tmp_path / "b", loss="cross_entropy", engine="native",
        ort_format=True,
    )  # fmt: skip
    typed = config(made.path, "serving", types=True)
    assert 'Gemm{"inputs": {"0": ["float"]}}' in typed
