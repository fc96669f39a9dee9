"""The required-operators config of a bundle, read by onnxruntime's own parser."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import pytest

from edged.bundles.export.export import required_operators
from edged.bundles.graph.templates import gru, mlp
from edged.bundles.source.standardise import Statistics
from edged.errors import ConfigError
from tests.building import build
from tests.commands import edged
from tests.installed import needs_native

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
    needed = operators_of(required)
    for name in bundle.files:
        if name.endswith(".onnx"):
            for node in onnx.load(str(bundle.path / name)).graph.node:
                # A Constant becomes an initialiser.
                assert node.op_type in needed | {"Constant"}, (name, node.op_type)


def operators_of(required: dict[str, dict[int, set[str]]]) -> set[str]:
    return {name for versions in required.values() for names in versions.values() for name in names}


def test_what_the_runtime_makes_of_a_graph_is_there_too(bundle: Bundle) -> None:
    assert "FusedGemm" in operators(required_operators(bundle.path))


def test_bodies_of_loops_count(tmp_path: Path) -> None:
    bundle = build(gru((6, 2), 2, (3,)), tmp_path / "b", loss="cross_entropy", engine="portable")
    assert {"Scan", "Tanh", "Sigmoid", "Gemm"} <= operators(required_operators(bundle.path))


@needs_native
def test_a_bundle_for_the_native_engine_counts_its_operators(native: Bundle) -> None:
    found = operators(required_operators(native.path))
    assert {"FusedGemm", "AdamWOptimizer", "InPlaceAccumulatorV2"} <= found
    with pytest.raises(ConfigError, match="one of all, serving"):
        required_operators(native.path, "portable")


def operators(text: str) -> set[str]:
    """All operators of a config, of whatever domain."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name for line in lines for name in line.split(";")[2].split(",")}


def test_a_board_that_only_serves_needs_less(bundle: Bundle) -> None:
    sets = {purpose: operators(required_operators(bundle.path, purpose)) for purpose in ("serving", "all")}
    assert sets["serving"] < sets["all"]
    assert "Gemm" in sets["serving"]


def test_upstream_reads_the_types(bundle: Bundle, tmp_path: Path) -> None:
    file = tmp_path / "required.config"
    assert edged("artifacts", "ops", bundle.path, "--types", "-o", file).code == 0
    parser = importlib.import_module("onnxruntime.tools.reduced_build_config_parser")
    required, types = parser.parse_config(str(file), enable_type_reduction=True)
    assert operators(required_operators(bundle.path)) <= operators_of(required)
    entries = types.get_cpp_entries()
    assert any("Gemm, Input, 0, float" in entry for entry in entries)
    assert types.is_typed_registration_needed("ai.onnx", "Gemm", "float")
    assert not types.is_typed_registration_needed("ai.onnx", "Gemm", "double")
