"""Parameters read from model files without the package onnx, against what that package reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edged.engines.onnx.fields import parameters_within
from edged.errors import CorruptError

EXPORTED = sorted((Path(__file__).parents[2] / "bundles" / "exported").glob("*.onnx"))
FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)


def model_of(*tensors: onnx.TensorProto) -> bytes:
    graph = helper.make_graph([], "g", [], [], initializer=list(tensors))
    content: bytes = helper.make_model(graph).SerializeToString()
    return content


def read_by_onnx(content: bytes) -> dict[str, Any]:
    tensors = onnx.load_model_from_string(content).graph.initializer
    return {t.name: numpy_helper.to_array(t).astype(np.float32) for t in tensors if t.data_type in FLOATS}


@pytest.mark.parametrize("path", EXPORTED, ids=lambda path: path.stem)
def test_models_of_other_tools_are_read_as_onnx_reads_them(path: Path) -> None:
    content = path.read_bytes()
    expected = read_by_onnx(content)
    assert expected
    found = parameters_within(content, expected)
    assert {name: (v.shape, v.tobytes()) for name, v in found.items()} == {
        name: (v.shape, v.tobytes()) for name, v in expected.items()
    }


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("shape", [(2, 3), (1,), (), (0, 4)], ids=str)
def test_every_way_to_store_floats_is_read(kind: int, raw: bool, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(1).normal(size=shape).astype(helper.tensor_dtype_to_np_dtype(kind))
    tensor = (
        numpy_helper.from_array(values, "w")
        if raw
        else helper.make_tensor("w", kind, shape, values.ravel().tolist())
    )
    found = parameters_within(model_of(tensor), ["w", "absent"])
    assert found.keys() == {"w"}
    assert found["w"].shape == shape
    assert found["w"].dtype == np.float32
    assert found["w"].tobytes() == values.astype(np.float32).tobytes()


def external() -> onnx.TensorProto:
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[2])
    tensor.external_data.add(key="location", value="weights.bin")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    return tensor


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "no graph"),
        (b"not a model at all", "is no ONNX model"),
        (model_of(external()), "in another file"),
        (model_of(numpy_helper.from_array(np.ones(3, np.int64), "w")), "data type 7"),
        (model_of(onnx.TensorProto(name="w", data_type=1, dims=[2], raw_data=b"\0" * 12)), "3 values"),
        (model_of(onnx.TensorProto(name="w", data_type=1, dims=[-1, -3], raw_data=b"\0" * 12)), "3 values"),
    ],
)
def test_what_cannot_be_read_is_told(content: bytes, told: str) -> None:
    with pytest.raises(CorruptError, match=told):
        parameters_within(content, ["w"])


def test_a_model_that_was_cut_is_refused() -> None:
    content = EXPORTED[0].read_bytes()
    expected = read_by_onnx(content)
    for end in range(0, len(content), 61):
        try:
            found = parameters_within(content[:end], expected)
        except CorruptError:
            continue
        # What follows the graph may be missing: versions of operators, notes.
        assert {name: v.tobytes() for name, v in found.items()} == {
            name: v.tobytes() for name, v in expected.items()
        }
        assert end > 0.9 * len(content)


def test_flipped_bits_are_refused_or_only_change_numbers() -> None:
    content = EXPORTED[0].read_bytes()
    names = read_by_onnx(content)
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(1000):
        damaged = bytearray(content)
        damaged[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
        try:
            parameters_within(bytes(damaged), names)
        except CorruptError:
            refused += 1
    assert refused > 10
