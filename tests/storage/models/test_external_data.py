"""Tensors outside of a model file: all are found without ONNX, and only those of the bundle are taken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from edged.bundles.graph.templates import mlp
from edged.domain import protobuf
from edged.errors import BundleError
from edged.storage.models.bundles import Bundle, seal
from edged.storage.models.external_data import external_places
from tests.building import build

WHOLE: bytes = mlp(4, 2, [8]).SerializeToString()


def elsewhere(place: str) -> TensorProto:
    tensor = numpy_helper.from_array(np.zeros(4, np.float32), name="w")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("offset", "0"), ("location", place), ("length", "16")):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return tensor


def graph_of(*nodes: onnx.NodeProto, **parts: object) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), "g", [], [], **parts)


def constant(place: str) -> onnx.NodeProto:
    return helper.make_node("Constant", [], ["c"], value=elsewhere(place))


def sparse(place: str) -> onnx.SparseTensorProto:
    indices = numpy_helper.from_array(np.arange(4), name="i")
    return helper.make_sparse_tensor(elsewhere(place), indices, [9])


def placed() -> onnx.ModelProto:
    """A tensor at each place where a model can hold one, each in a file of its own."""
    inner = graph_of(constant("branch"), initializer=[elsewhere("inner")])
    branch = helper.make_node("If", ["b"], ["d"], then_branch=inner, else_branch=graph_of())
    listed = helper.make_node(
        "Odd", [], ["e"], tensors=[elsewhere("listed")], graphs=[graph_of(constant("deep"))]
    )
    sparsely = helper.make_node("Constant", [], ["f"], sparse_value=sparse("sparse_value"))
    graph = graph_of(
        branch, listed, sparsely, initializer=[elsewhere("../up"), elsewhere("/abs")],
        sparse_initializer=[sparse("sparse")],
    )  # fmt: skip
    model = helper.make_model(graph)
    model.functions.append(
        helper.make_function("d", "f", [], ["c"], [constant("function")], [helper.make_opsetid("", 17)])
    )
    training = model.training_info.add()
    training.initialization.CopyFrom(graph_of(initializer=[elsewhere("start")]))
    training.algorithm.CopyFrom(graph_of(constant("algorithm")))
    return model


def test_every_place_of_a_tensor_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(placed().SerializeToString())
    assert sorted(external_places(tmp_path / "m.onnx")) == [
        "../up", "/abs", "algorithm", "branch", "deep", "function", "inner", "listed", "sparse",
        "sparse_value", "start",
    ]  # fmt: skip


def test_a_place_that_comes_twice_or_among_unknown_fields_is_found(tmp_path: Path) -> None:
    """Messages that are said in parts are one message; groups and unknown fields are passed over."""
    group = b"\xc3\x3e\x08\x01\x12\x01x\xc4\x3e"  # field 1000 as a group with two fields in it
    unknown = b"\xc2\x3e\x02hi" + b"\xc5\x3e" + bytes(4) + b"\xc1\x3e" + bytes(8) + b"\xc0\x3e\x05"
    twice = placed().SerializeToString() + group + unknown + placed().SerializeToString()
    (tmp_path / "m.onnx").write_bytes(twice)
    assert list(external_places(tmp_path / "m.onnx")).count("../up") == 2


@settings(max_examples=200)
@given(st.binary(max_size=200) | st.tuples(st.integers(0, len(WHOLE)), st.binary(max_size=9)))
def test_what_is_no_model_is_refused_or_searched_to_its_end(
    tmp_path_factory: pytest.TempPathFactory, what: bytes | tuple[int, bytes]
) -> None:
    file = tmp_path_factory.getbasetemp() / "garbage.onnx"
    file.write_bytes(what if isinstance(what, bytes) else WHOLE[: what[0]] + what[1] + WHOLE[what[0] :])
    try:
        assert all(isinstance(place, str) for place in external_places(file))
    except ValueError as problem:
        assert str(problem)  # noqa: PT017  either is right


def behind(key: bytes) -> bytes:
    """A model with an initializer elsewhere, in a graph of which the key is written so."""
    graph: bytes = graph_of(initializer=[elsewhere("../secret")]).SerializeToString()
    return WHOLE + key + protobuf.message(7, len(graph))[1:] + graph


LONG_KEYS = {
    "bits above 32": b"\xba\x80\x80\x80\x10",
    "six bytes": b"\xba\x80\x80\x80\x80\x00",
    "ten bytes": b"\xba" + b"\x80" * 8 + b"\x01",
    "no number": b"\x02",
}


@pytest.mark.parametrize("key", LONG_KEYS.values(), ids=LONG_KEYS.keys())
def test_a_key_that_parsers_read_differently_is_refused(tmp_path: Path, key: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(behind(key))
    with pytest.raises(ValueError, match="a field has no number"):
        list(external_places(tmp_path / "m.onnx"))
    bundle = build(mlp(4, 2, [8]), tmp_path / "b", loss="cross_entropy", engine="portable")
    (bundle.path / "inference_model.onnx").write_bytes(behind(key))
    seal(bundle, bundle.files)
    with pytest.raises(BundleError, match=r"no ONNX model: a field has no number"):
        Bundle.open(bundle.path)


@pytest.mark.parametrize("key", [b"\x3a", b"\xba\x00", b"\xba\x80\x80\x80\x00"])
def test_a_key_may_be_written_in_five_bytes(tmp_path: Path, key: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(behind(key))
    assert list(external_places(tmp_path / "m.onnx")) == ["../secret"]


@pytest.mark.parametrize("place", ["../secret", "/etc/hostname", "beside.bin", "a/../../secret", ""])
def test_a_bundle_whose_model_reads_another_file_is_refused(tmp_path: Path, place: str) -> None:
    """The description may fit: whoever changes a model can compute its hash, too."""
    bundle = build(mlp(4, 2, [8]), tmp_path / "b", loss="cross_entropy", engine="portable")
    (tmp_path / "secret").write_bytes(bytes(64))
    (bundle.path / "beside.bin").write_bytes(bytes(64))
    (bundle.path / "inference_model.onnx").write_bytes(
        helper.make_model(graph_of(constant(place))).SerializeToString()
    )
    seal(bundle, bundle.files)
    with pytest.raises(BundleError, match=r"outside of the bundle|not part of the bundle"):
        Bundle.open(bundle.path)
    seal(bundle, (*bundle.files, "beside.bin"))
    if place == "beside.bin":
        Bundle.open(bundle.path)
        return
    with pytest.raises(BundleError, match="a tensor lies outside of the bundle"):
        Bundle.open(bundle.path)
