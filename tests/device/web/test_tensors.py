"""Requests and answers of the protocol: JSON and bytes say the same, and errors are one line."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edged.device.web.api.tensors import TensorReader, TensorRequest, answer, inputs_of, outputs_of
from edged.device.web.http.errors import HttpError
from edged.domain.judging.predictions import Predictions
from edged.domain.stream.schema import Schema

SCHEMA = Schema(("a", "b", "c"), 3, "classify", ("ok", "worn"))
READER = TensorReader(SCHEMA, max_rows=8, max_bytes=10_000)
ROWS = arrays.arrays(
    np.float32,
    st.tuples(st.integers(1, 8), st.just(3)),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)


def tensor(x: np.ndarray[Any, Any], **more: Any) -> dict[str, Any]:
    return {"name": "x", "shape": list(x.shape), "datatype": "FP32", **more}


def binary(x: np.ndarray[Any, Any], raw: bytes | None = None) -> tuple[bytes, str]:
    blob = x.astype("<f4").tobytes() if raw is None else raw
    head = json.dumps({"inputs": [tensor(x, parameters={"binary_data_size": len(blob)})]}).encode()
    return head + blob, str(len(head))


@given(ROWS)
def test_flat_nested_and_binary_are_the_same_rows(x: np.ndarray[Any, Any]) -> None:
    flat = json.dumps({"inputs": [tensor(x, data=x.ravel().tolist())]}).encode()
    nested = json.dumps({"inputs": [tensor(x, data=x.tolist())]}).encode()
    for asked in (READER.read(flat, None), READER.read(nested, None), READER.read(*binary(x))):
        assert asked.x.dtype == np.float32
        assert asked.x.tobytes() == x.tobytes()


@given(ROWS, st.sampled_from([("FP64", "<f8"), ("INT64", "<i8")]))
def test_wider_numbers_become_float32(x: np.ndarray[Any, Any], wide: tuple[str, str]) -> None:
    datatype, form = wide
    given = np.clip(x, -(2.0**62), 2.0**62).astype(form)
    body = json.dumps({"inputs": [tensor(x, data=given.tolist()) | {"datatype": datatype}]}).encode()
    raw, size = binary(x, given.tobytes())
    named = raw.replace(b'"FP32"', f'"{datatype}"'.encode(), 1)
    for asked in (
        READER.read(body, None),
        READER.read(named, str(int(size) + len(datatype) - 4)),
    ):
        assert asked.x.tobytes() == given.astype(np.float32).tobytes()


def test_bytes_of_float64_beyond_float32_are_refused() -> None:
    raw, size = binary(np.zeros((1, 3)), np.array([1.0, 1e300, 0.0]).tobytes())
    with pytest.raises(HttpError, match="number 1 of row 0 is no finite float32 number"):
        READER.read(raw.replace(b'"FP32"', b'"FP64"', 1), size)


def test_windows_come_flat_or_as_readings() -> None:
    reader = TensorReader(Schema((), 6, "regress", steps=3), 4, 10_000)
    x = np.arange(12, dtype=np.float32)
    for shape in ([2, 6], [2, 3, 2]):
        body = {
            "inputs": [{"name": "x", "shape": shape, "datatype": "FP32", "data": x.reshape(shape).tolist()}]
        }
        assert reader.read(json.dumps(body).encode(), None).x.tolist() == x.reshape(2, 6).tolist()
    assert inputs_of(Schema((), 6, "regress", steps=3))[0]["shape"] == [-1, 3, 2]


GOOD = tensor(np.zeros((1, 3)), data=[1, 2, 3])
WRONG: dict[str, Any] = {
    "not JSON": b"{",
    "a list": b"[]",
    "NaN": b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"FP32","data":[1,2,NaN]}]}',
    "deep": b'{"inputs":' + b"[" * 5000,
    "no inputs": {},
    "inputs of nothing": {"inputs": []},
    "two inputs": {"inputs": [GOOD, GOOD]},
    "another name": {"inputs": [GOOD | {"name": "y"}]},
    "another type": {"inputs": [GOOD | {"datatype": "FP16"}]},
    "a type of a list": {"inputs": [GOOD | {"datatype": ["FP32"]}]},
    "fractions as INT64": {"inputs": [GOOD | {"datatype": "INT64", "data": [1, 2.5, 3]}]},
    "more than 64 bits": {"inputs": [GOOD | {"datatype": "INT64", "data": [1, 2**63, 3]}]},
    "FP64 beyond float32": {"inputs": [GOOD | {"datatype": "FP64", "data": [1, 2, 4e38]}]},
    "no shape": {"inputs": [{k: v for k, v in GOOD.items() if k != "shape"}]},
    "wide shape": {"inputs": [GOOD | {"shape": [1, 4]}]},
    "shape of text": {"inputs": [GOOD | {"shape": ["1", 3]}]},
    "shape of truth": {"inputs": [GOOD | {"shape": [True, 3]}]},
    "no rows": {"inputs": [GOOD | {"shape": [0, 3], "data": []}]},
    "negative rows": {"inputs": [GOOD | {"shape": [-1, 3]}]},
    "billions of rows": {"inputs": [GOOD | {"shape": [10**12, 3]}]},
    "too many rows": {"inputs": [GOOD | {"shape": [9, 3], "data": [0] * 27}]},
    "too few numbers": {"inputs": [GOOD | {"data": [1, 2]}]},
    "a text": {"inputs": [GOOD | {"data": [1, "2", 3]}]},
    "truth": {"inputs": [GOOD | {"data": [1, True, 3]}]},
    "null": {"inputs": [GOOD | {"data": None}]},
    "beyond float32": {"inputs": [GOOD | {"data": [1, 2, 4e38]}]},
    "a huge integer": {"inputs": [GOOD | {"data": [1, 2, 10**400]}]},
    "uneven rows": {"inputs": [GOOD | {"shape": [2, 3], "data": [[1, 2], [3, 4, 5, 6]]}]},
    "a row in numbers": {"inputs": [GOOD | {"data": [1, [2], 3]}]},
    "id of a number": {"inputs": [GOOD], "id": 7},
    "id of nothing": {"inputs": [GOOD], "id": None},
    "outputs of nothing": {"inputs": [GOOD], "outputs": None},
    "long id": {"inputs": [GOOD], "id": "x" * 257},
    "parameters of text": {"inputs": [GOOD], "parameters": "record"},
    "output of nobody": {"inputs": [GOOD], "outputs": [{"name": "logits"}]},
    "output without a name": {"inputs": [GOOD], "outputs": [{}]},
    "outputs of text": {"inputs": [GOOD], "outputs": "output"},
    "outputs without end": {"inputs": [GOOD], "outputs": [{"name": "output"}] * 9},
    "classification": {
        "inputs": [GOOD],
        "outputs": [{"name": "output", "parameters": {"classification": 3}}],
    },
    "binary by text": {"inputs": [GOOD], "parameters": {"binary_data_output": "yes"}},
    "bytes that are not there": {"inputs": [GOOD | {"parameters": {"binary_data_size": 12}}]},
}


@pytest.mark.parametrize("request_", WRONG.values(), ids=list(WRONG))
def test_what_is_wrong_is_400_with_one_line(request_: Any) -> None:
    body = request_ if isinstance(request_, bytes) else json.dumps(request_).encode()
    with pytest.raises(HttpError) as caught:
        READER.read(body, None)
    assert caught.value.status == 400
    assert 5 < len(caught.value.line()) < 200
    assert "\n" not in caught.value.line()


def test_bytes_must_be_what_the_shape_says_and_finite() -> None:
    x = np.zeros((2, 3), np.float32)
    body, length = binary(x)
    wrong = [
        (body[:-1], length), (body + b"x", length), (body, "9" * 11), (body, "-1"), (body, "٣"), (body, ""),
        binary(x, b"\0" * 20), (body, None),
    ]  # fmt: skip
    for raw, size in wrong:
        with pytest.raises(HttpError):
            READER.read(raw, size)
    x[1, 2] = np.inf
    with pytest.raises(HttpError, match="number 2 of row 1"):
        READER.read(*binary(x))
    unclaimed = json.dumps({"inputs": [GOOD]}).encode()
    with pytest.raises(HttpError, match="no input claims"):
        READER.read(unclaimed + b"abcd", str(len(unclaimed)))


def made(n: int) -> Predictions:
    output = np.linspace(0, 1, 2 * n, dtype=np.float32).reshape(n, 2)
    answers = output.argmax(axis=1).astype(np.float32)[:, None]
    return Predictions(7, np.zeros(n, np.int64), answers, output, output.max(axis=1))


def test_an_answer_in_json_gives_back_each_float32() -> None:
    predictions = made(3)
    asked = READER.read(json.dumps({"inputs": [GOOD], "id": 'a"b'}).encode(), None)
    body, size = answer(asked, predictions, SCHEMA, model="m", version="7")
    assert size is None
    told = json.loads(body)
    assert (told["model_name"], told["model_version"], told["id"]) == ("m", "7", 'a"b')
    outputs = {output["name"]: output for output in told["outputs"]}
    assert list(outputs) == [output["name"] for output in outputs_of(SCHEMA)]
    assert np.array(outputs["output"]["data"], np.float32).tobytes() == predictions.output.tobytes()
    assert outputs["output"]["shape"] == [3, 2]
    assert outputs["label"]["data"] == ["worn"] * 3


def test_an_answer_in_bytes_says_how_long_each_part_is() -> None:
    asked = TensorRequest(
        np.zeros((2, 3), np.float32), (("label", True), ("confidence", False), ("output", True))
    )
    body, size = answer(asked, made(2), SCHEMA, model="m", version="7", ids=["1-1", "1-2"])
    assert size is not None
    outputs = json.loads(body[:size])["outputs"]
    raw = body[size:]
    first = outputs[0]["parameters"]["binary_data_size"]
    assert raw[:first] == (struct.pack("<I", 4) + b"worn") * 2
    assert np.frombuffer(raw[first:], "<f4").tobytes() == made(2).output.tobytes()
    assert len(raw) == first + outputs[2]["parameters"]["binary_data_size"]
    assert outputs[3] == {"name": "sample_id", "datatype": "BYTES", "shape": [2], "data": ["1-1", "1-2"]}


def test_all_outputs_may_be_asked_for_in_bytes() -> None:
    asked = READER.read(
        json.dumps({"inputs": [GOOD], "parameters": {"binary_data_output": True}}).encode(), None
    )
    assert asked.outputs == (("output", True), ("label", True), ("confidence", True))


def test_other_tasks_have_one_output() -> None:
    assert outputs_of(Schema((), 4, "reconstruct", targets=4))[0]["shape"] == [-1, 1]
    assert outputs_of(Schema((), 4, "regress", targets=2)) == [
        {"name": "output", "datatype": "FP32", "shape": [-1, 2]}
    ]
