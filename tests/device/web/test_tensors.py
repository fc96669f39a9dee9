"""Requests and answers of the protocol; errors are one line."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edged.device.web.api.tensors import TensorReader, TensorRequest, answer, inputs_of, outputs_of
from edged.device.web.http.bodies import MAX_ROWS, HttpError
from edged.domain.judging.predictions import Predictions
from edged.domain.stream.schema import Schema

SCHEMA = Schema(("a", "b", "c"), 3, "classify", ("ok", "worn"))
READER = TensorReader(SCHEMA)
ROWS = arrays.arrays(
    np.float32,
    st.tuples(st.integers(1, 8), st.just(3)),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)


def read(request: Any, reader: TensorReader = READER) -> TensorRequest:
    """A request, parsed."""
    return reader.read(request if isinstance(request, bytes) else json.dumps(request).encode(), {})


def tensor(x: np.ndarray[Any, Any], **more: Any) -> dict[str, Any]:
    return {"name": "x", "shape": list(x.shape), "datatype": "FP32", **more}


@given(ROWS)
def test_flat_and_nested_data_are_the_same_rows(x: np.ndarray[Any, Any]) -> None:
    for data in (x.ravel().tolist(), x.tolist()):
        asked = read({"inputs": [tensor(x, data=data)]})
        assert asked.x.dtype == np.float32
        assert asked.x.tobytes() == x.tobytes()


@given(ROWS, st.sampled_from([("FP64", "<f8"), ("INT64", "<i8")]))
def test_wider_numbers_become_float32(x: np.ndarray[Any, Any], wide: tuple[str, str]) -> None:
    datatype, form = wide
    given = np.clip(x, -(2.0**62), 2.0**62).astype(form)
    asked = read({"inputs": [tensor(x, data=given.tolist()) | {"datatype": datatype}]})
    assert asked.x.tobytes() == given.astype(np.float32).tobytes()


def test_windows_come_flat_or_as_readings() -> None:
    reader = TensorReader(Schema((), 6, "regress", steps=3))
    x = np.arange(12, dtype=np.float32)
    for shape in ([2, 6], [2, 3, 2]):
        body = {
            "inputs": [{"name": "x", "shape": shape, "datatype": "FP32", "data": x.reshape(shape).tolist()}]
        }
        assert read(body, reader).x.tolist() == x.reshape(2, 6).tolist()
    assert inputs_of(Schema((), 6, "regress", steps=3))[0]["shape"] == [-1, 3, 2]


GOOD = tensor(np.zeros((1, 3)), data=[1, 2, 3])
BYTES = tensor(np.zeros((1, 3)))
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
    "too many rows": {"inputs": [GOOD | {"shape": [MAX_ROWS + 1, 3], "data": [0] * 3 * (MAX_ROWS + 1)}]},
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
    "parameters of text": {"inputs": [GOOD], "parameters": "all"},
    "output of nobody": {"inputs": [GOOD], "outputs": [{"name": "logits"}]},
    "output without a name": {"inputs": [GOOD], "outputs": [{}]},
    "outputs of text": {"inputs": [GOOD], "outputs": "output"},
    "outputs without end": {"inputs": [GOOD], "outputs": [{"name": "output"}] * 9},
    "classification": {
        "inputs": [GOOD],
        "outputs": [{"name": "output", "parameters": {"classification": 3}}],
    },
    "bytes instead of data": {"inputs": [BYTES | {"parameters": {"binary_data_size": 12}}]},
}


@pytest.mark.parametrize("request_", WRONG.values(), ids=list(WRONG))
def test_what_is_wrong_is_400_with_one_line(request_: Any) -> None:
    with pytest.raises(HttpError) as caught:
        read(request_)
    assert caught.value.status == 400
    assert 5 < len(caught.value.line()) < 200
    assert "\n" not in caught.value.line()


def test_binary_tensors_are_refused_with_the_way_out() -> None:
    body = json.dumps({"inputs": [BYTES | {"parameters": {"binary_data_size": 12}}]}).encode()
    headers = {b"inference-header-content-length": str(len(body)).encode()}
    with pytest.raises(HttpError, match="binary_data=False") as caught:
        READER.read(body + b"\0" * 12, headers)
    assert caught.value.status == 400


def made(n: int) -> Predictions:
    output = np.linspace(0, 1, 2 * n, dtype=np.float32).reshape(n, 2)
    answers = output.argmax(axis=1).astype(np.float32)[:, None]
    return Predictions(7, np.zeros(n, np.int64), answers, output, output.max(axis=1))


def test_an_answer_in_json_gives_back_each_float32() -> None:
    predictions = made(3)
    asked = read({"inputs": [GOOD], "id": 'a"b'})
    told = json.loads(json.dumps(answer(asked, predictions, SCHEMA, model="m")))
    assert (told["model_name"], told["model_version"], told["id"]) == ("m", "7", 'a"b')
    outputs = {output["name"]: output for output in told["outputs"]}
    assert list(outputs) == [output["name"] for output in outputs_of(SCHEMA)]
    assert np.array(outputs["output"]["data"], np.float32).tobytes() == predictions.output.tobytes()
    assert outputs["output"]["shape"] == [3, 2]
    assert outputs["label"]["data"] == ["worn"] * 3


def test_an_answer_has_the_outputs_that_were_asked_for() -> None:
    wanted = [{"name": "label"}, {"name": "output", "parameters": {"binary_data": True}}]
    asked = read({"inputs": [GOOD], "outputs": wanted, "parameters": {"binary_data_output": True}})
    outputs = answer(asked, made(2), SCHEMA, "m")["outputs"]
    assert [output["name"] for output in outputs] == ["label", "output"]


def test_other_tasks_have_one_output() -> None:
    assert outputs_of(Schema((), 4, "reconstruct", targets=4))[0]["shape"] == [-1, 1]
    assert outputs_of(Schema((), 4, "regress", targets=2)) == [
        {"name": "output", "datatype": "FP32", "shape": [-1, 2]}
    ]
