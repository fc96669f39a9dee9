"""Inference requests and answers of the Open Inference Protocol v2: JSON, then tensors as raw bytes.

One input `x` of datatype FP32 and shape `(n, d)`; FP64 and INT64 are converted. Outputs as `outputs_of` lists
them. With the binary tensor extension a request or an answer is JSON followed by the tensors' bytes in
little-endian order; the header `Inference-Header-Content-Length` has the length of the JSON. Elements of
BYTES have their length before them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edged.device.web.http.errors import HttpError
from edged.errors import RejectedSampleError
from edged.mqtt.codecs.json import parse
from edged.mqtt.field_access import numbers

if TYPE_CHECKING:
    from edged.domain.judging.predictions import Predictions
    from edged.domain.stream.schema import Schema

INPUT = "x"
DTYPES = {"FP32": "<f4", "FP64": "<f8", "INT64": "<i8"}  # the two wider ones are rounded to float32
MOST_DIMENSIONS = 8
BINARY_HEADER = "inference-header-content-length"

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class TensorRequest:
    """An inference request: rows `(n, d)` float32, and the requested form of the answer.

    `outputs` are names with whether each is wanted as bytes.
    """

    x: Floats
    outputs: tuple[tuple[str, bool], ...]
    id: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)


def wrong(what: str) -> HttpError:
    """Return the 400 error for a request that does not fit the model or the protocol."""
    return HttpError(400, what, kind="request")


# ---- what the model takes and gives ----------------------------------------------------------


def inputs_of(schema: Schema) -> list[Mapping[str, Any]]:
    """Return the metadata of the one input; -1 stands for any number of rows."""
    shape = [-1, schema.measured] if schema.steps == 1 else [-1, schema.steps, schema.channels]
    return [{"name": INPUT, "datatype": "FP32", "shape": shape}]


def outputs_of(schema: Schema) -> list[Mapping[str, Any]]:
    """Return metadata of the outputs: probabilities with label and confidence, values, or anomaly score."""
    width = 1 if schema.labels_itself else schema.outputs
    outputs: list[Mapping[str, Any]] = [{"name": "output", "datatype": "FP32", "shape": [-1, width]}]
    if schema.classes:
        outputs.append({"name": "label", "datatype": "BYTES", "shape": [-1]})
        outputs.append({"name": "confidence", "datatype": "FP32", "shape": [-1]})
    return outputs


# ---- requests --------------------------------------------------------------------------------


class TensorReader:
    """Parses inference requests for one stream, of at most `max_rows` rows and `max_bytes` bytes of JSON."""

    def __init__(self, schema: Schema, max_rows: int, max_bytes: int) -> None:
        self._width = schema.measured
        self._shapes: set[tuple[int, ...]] = {(schema.measured,)}
        if schema.steps > 1:
            self._shapes.add((schema.steps, schema.channels))
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._outputs = tuple(output["name"] for output in outputs_of(schema))
        self._all = tuple((name, False) for name in self._outputs)

    def read(self, body: bytes, json_bytes: str | None) -> TensorRequest:
        """Parse the request in a body; `json_bytes` is the header with the length of its JSON.

        Raises HttpError: 400 with one line, for everything that is not as it should be.
        """
        size = _header_length(json_bytes, len(body))
        try:
            request = parse(body[:size], self._max_bytes)
            return self._asked(request, memoryview(body)[size:])
        except RejectedSampleError as problem:
            raise wrong(problem.what) from None

    def _asked(self, request: dict[str, Any], raw: memoryview) -> TensorRequest:
        inputs = request.get("inputs")
        if type(inputs) is not list or len(inputs) != 1 or type(inputs[0]) is not dict:
            raise wrong(f"inputs must be a list with one tensor, {INPUT!r}")
        parameters = _parameters(request, "the request")
        name = request.get("id")
        if "id" in request and (type(name) is not str or len(name) > 256):
            raise wrong("id must be a text of at most 256 characters")
        outputs = self._wanted(request.get("outputs", []), parameters.get("binary_data_output", False))
        return TensorRequest(self._rows(inputs[0], raw), outputs, name, parameters)

    def _rows(self, tensor: dict[str, Any], raw: memoryview) -> Floats:
        if tensor.get("name") != INPUT:
            raise wrong(
                f"the model has one input, {INPUT!r}; the request names {str(tensor.get('name'))[:40]!r}"
            )
        datatype = tensor.get("datatype")
        if type(datatype) is not str or datatype not in DTYPES:
            accepted = "FP32, or FP64 or INT64, which are converted"
            raise wrong(f"input {INPUT!r} has datatype {accepted}, not {str(datatype)[:20]!r}")
        shape = self._shape(tensor.get("shape"))
        size = _parameters(tensor, "the input").get("binary_data_size")
        if size is not None:
            return self._from_bytes(tensor, raw, size, shape[0], np.dtype(DTYPES[datatype]))
        if len(raw):
            raise wrong(f"{len(raw)} bytes follow the JSON that no input claims with binary_data_size")
        return self._from_json(tensor.get("data"), shape, whole=datatype == "INT64")

    def _shape(self, shape: Any) -> tuple[int, ...]:
        """Check a shape before any memory is allocated for it."""
        wanted = " or ".join(str([-1, *rest]) for rest in sorted(self._shapes))
        if type(shape) is not list or not 2 <= len(shape) <= MOST_DIMENSIONS:
            raise wrong(f"input {INPUT!r} has shape {wanted}, the request gives no such list")
        if any(type(size) is not int for size in shape) or tuple(shape[1:]) not in self._shapes:
            raise wrong(f"input {INPUT!r} has shape {wanted}, not {str(shape)[:60]}")
        if not 1 <= shape[0] <= self._max_rows:
            raise wrong(f"a request has 1 to {self._max_rows} rows, this one {str(shape[0])[:20]}")
        return tuple(shape)

    def _from_bytes(
        self, tensor: dict[str, Any], raw: memoryview, size: Any, rows: int, dtype: np.dtype[Any]
    ) -> Floats:
        need = dtype.itemsize * rows * self._width
        if "data" in tensor:
            raise wrong("the input has both data and binary_data_size: send one of them")
        if type(size) is not int or size != need or len(raw) != need:
            sizes = f"binary_data_size says {str(size)[:20]}, {len(raw)} follow the JSON"
            raise wrong(f"{rows} rows are {need} bytes; {sizes}")
        with np.errstate(over="ignore"):  # what float32 does not hold becomes infinite, and is refused
            x = np.frombuffer(raw, dtype).astype(np.float32).reshape(rows, self._width)
        if not np.isfinite(x).all():
            row, at = np.argwhere(~np.isfinite(x))[0]
            raise wrong(f"number {at} of row {row} is no finite float32 number")
        return x

    def _from_json(self, data: Any, shape: tuple[int, ...], *, whole: bool) -> Floats:
        if type(data) is not list:
            raise wrong("the input has neither data, a list of numbers, nor binary_data_size")
        if data and type(data[0]) is list:
            data = _flattened(data, shape)
        need = shape[0] * self._width
        if len(data) != need:
            raise wrong(f"data has {len(data)} numbers, shape {list(shape)} needs {need}")
        if whole and not all(type(value) is int and -(2**63) <= value < 2**63 for value in data):
            raise wrong("datatype INT64 is for whole numbers of 64 bits")
        return np.array(numbers(data, None), np.float32).reshape(shape[0], self._width)

    def _wanted(self, outputs: Any, binary: Any) -> tuple[tuple[str, bool], ...]:
        if type(binary) is not bool:
            raise wrong("binary_data_output must be true or false")
        if outputs == []:
            return tuple((name, True) for name in self._outputs) if binary else self._all
        if type(outputs) is not list or len(outputs) > len(self._outputs):
            raise wrong(f"outputs must be a list of some of {', '.join(self._outputs)}")
        return tuple(self._output(output, binary) for output in outputs)

    def _output(self, output: Any, binary: bool) -> tuple[str, bool]:
        name = output.get("name") if type(output) is dict else None
        if not isinstance(name, str) or name not in self._outputs:
            raise wrong(f"the model has no output {str(name)[:40]!r}; it has {', '.join(self._outputs)}")
        parameters = _parameters(output, f"output {name!r}")
        if parameters.get("classification"):
            raise wrong("the classification extension is not here: label and confidence are outputs")
        as_bytes = parameters.get("binary_data", binary)
        if type(as_bytes) is not bool:
            raise wrong("binary_data must be true or false")
        return name, as_bytes


def _header_length(given: str | None, size: int) -> int:
    if given is None:
        return size
    if not (given.isascii() and given.isdecimal() and len(given) < 12 and int(given) <= size):
        raise wrong(f"the header {BINARY_HEADER} says {given[:20]!r}, the body has {size} bytes")
    return int(given)


def _parameters(where: dict[str, Any], what: str) -> dict[str, Any]:
    found = where.get("parameters", {})
    if type(found) is not dict:
        raise wrong(f"parameters of {what} must be an object")
    return found


def _flattened(data: list[Any], shape: tuple[int, ...]) -> list[Any]:
    """Flatten nested rows to one list; their sizes must match the shape."""
    level = data
    for inner in shape[1:]:
        if any(type(row) is not list or len(row) != inner for row in level):
            raise wrong(f"data is nested otherwise than shape {list(shape)} says")
        level = [value for row in level for value in row]
    return level


# ---- answers ---------------------------------------------------------------------------------


def answer(
    asked: TensorRequest,
    made: Predictions,
    schema: Schema,
    *,
    model: str,
    version: str,
    ids: list[str] | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> tuple[bytes, int | None]:
    """Encode an answer: its body, and the length of its JSON if tensors follow as bytes.

    `asked` and `made` have `n` rows each. With `ids`, the samples that the rows became, the answer has a
    further output `sample_id`.
    """
    parts: list[str] = []
    blobs: list[bytes] = []
    wanted = asked.outputs if ids is None else (*asked.outputs, ("sample_id", False))
    for name, as_bytes in wanted:
        datatype, shape, values = _values(name, made, schema, ids)
        head = f'{{"name":"{name}","datatype":"{datatype}","shape":{shape}'
        if as_bytes:
            blobs.append(_bytes_of(values))
            parts.append(f'{head},"parameters":{{"binary_data_size":{len(blobs[-1])}}}}}')
        else:
            parts.append(f'{head},"data":{_json_of(values)}}}')
    name = f'"id":{json.dumps(asked.id)},' if asked.id is not None else ""
    more = f'"parameters":{json.dumps(parameters)},' if parameters else ""
    text = f'{{"model_name":"{model}","model_version":"{version}",{name}{more}"outputs":[{",".join(parts)}]}}'
    head_bytes = text.encode()
    return (head_bytes, None) if not blobs else (b"".join([head_bytes, *blobs]), len(head_bytes))


def _values(
    name: str, made: Predictions, schema: Schema, ids: list[str] | None
) -> tuple[str, list[int], Floats | list[str]]:
    rows = len(made.output)
    if name == "sample_id":
        return "BYTES", [rows], ids or []
    if name == "label":
        return "BYTES", [rows], [schema.classes[int(at)] for at in made.answers[:, 0].tolist()]
    if name == "confidence" and made.confidence is not None:
        return "FP32", [rows], made.confidence
    return "FP32", [rows, made.output.shape[1]], made.output


def _bytes_of(values: Floats | list[str]) -> bytes:
    if isinstance(values, list):
        texts = [value.encode() for value in values]
        return b"".join([struct.pack("<I", len(text)) + text for text in texts])
    return np.ascontiguousarray(values, "<f4").tobytes()


def _json_of(values: Floats | list[str]) -> str:
    if isinstance(values, list):
        return json.dumps(values)
    # Nine digits give back each float32 as it was.
    return "[" + ",".join(["%.9g" % value for value in values.reshape(-1).tolist()]) + "]"
