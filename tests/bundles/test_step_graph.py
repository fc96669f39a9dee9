"""The graphs of the portable engine as files: what any runtime must be able to read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
import pytest

from edged.bundles.autodiff.tape import BACKWARD, Adjoint, Tape
from edged.bundles.graph.edit import subgraphs
from edged.bundles.graph.templates import mlp
from edged.bundles.source.standardise import Statistics
from edged.bundles.step_graph.portable import MODELS
from edged.bundles.step_graph.training_graph import ALONE, grouped
from edged.domain.training.optimizers import OPTIMIZERS
from edged.engines.portable.description import Description
from tests.building import build, check


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for body in subgraphs(node):
            yield from all_nodes(body)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_every_graph_is_standard_and_suits_old_runtimes(tmp_path: Path, optimizer: str, loss: str) -> None:
    statistics = Statistics.identity(5, 3 if loss == "mse" else None)
    bundle = build(
        mlp(5, 3, (8,)), tmp_path / "b", loss=loss, optimizer=optimizer, standardise=statistics,
        engine="portable",
    )  # fmt: skip
    description = Description.of(bundle)
    assert description.models == MODELS
    assert description.to_json() == bundle.portable
    for name in MODELS.values():
        model = onnx.load(str(bundle.path / name))
        assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 21)]
        assert model.ir_version <= 10
        assert {node.domain for node in all_nodes(model.graph)} == {""}
        onnx.checker.check_model(model, full_check=True)


def test_small_parameters_lie_together_and_aligned_ones_first() -> None:
    groups = grouped({"a": (3, 3), "b": (4, 8), "large": (ALONE,), "c": (16,)})
    assert [[name for name, _ in group.parameters] for group in groups] == [["b", "c", "a"], ["large"]]
    assert [group.joined for group in groups] == [True, False]
    assert [group.shape for group in groups] == [(1, 57), (1, ALONE)]


def test_a_network_is_differentiated_once_for_all_forms_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    derived, rule = list[str](), BACKWARD["Relu"]

    def counted(node: onnx.NodeProto, gradients: Sequence[Adjoint | None], to: Tape) -> list[Adjoint | None]:
        derived.append(node.name)
        return rule(node, gradients, to)

    monkeypatch.setitem(BACKWARD, "Relu", counted)
    build(mlp(5, 3, (8, 8)), tmp_path / "b", loss="cross_entropy")
    assert (len(derived), len(set(derived))) == (2, 2)
    assert check(mlp(5, 3, (8, 8)), loss="cross_entropy").ok
    assert len(derived) == 4
