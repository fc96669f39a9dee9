"""Which parameters are trained, by layers counted from the output."""

from __future__ import annotations

from pathlib import Path

import pytest

from edged.bundles.graph.templates import gru, mlp
from edged.bundles.source.normalise import conform, read_model
from edged.bundles.source.trainable import layers, select
from edged.errors import ConfigError
from tests.building import build

EXPORTED = Path(__file__).parent / "exported"


def test_a_layer_is_a_node_with_its_bias_wherever_that_is_added() -> None:
    encoder = layers(conform(read_model(EXPORTED / "trained_encoder.onnx")).graph)
    assert encoder[-2:] == [["layer.norm2.weight", "layer.norm2.bias"], ["head.weight", "head.bias"]]
    assert encoder[0][1] == "layer.self_attn.in_proj_bias"
    assert len(encoder) == 7
    recurrent = layers(gru((8, 3), 2, (5, 4)).graph)
    assert [len(layer) for layer in recurrent] == [3, 3, 2]


def test_the_last_layers_are_trained_and_the_others_are_not(tmp_path: Path) -> None:
    bundle = build(mlp(5, 2, (8, 8)), tmp_path / "b", loss="mse", train=["last:2"])
    assert bundle.trainable == ("layer2.weight", "layer2.bias", "layer3.weight", "layer3.bias")
    assert bundle.frozen == ("layer1.weight", "layer1.bias")


def test_globs_and_layers_go_together() -> None:
    graph = mlp(5, 2, (8, 8)).graph
    trainable, _ = select(graph, ["last:1", "layer1.bias"], ["*3.bias"])
    assert trainable == ["layer1.bias", "layer3.weight"]
    assert select(graph, [], ["last:2"])[0] == ["layer1.weight", "layer1.bias"]


@pytest.mark.parametrize("count", ["last:4", "last:0", "last:"])
def test_layers_that_are_not_there_are_refused(count: str) -> None:
    with pytest.raises(ConfigError, match="last:"):
        select(mlp(5, 2, (8, 8)).graph, [count], [])
