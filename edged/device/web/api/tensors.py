"""Inference requests and answers of the Open Inference Protocol v2, as JSON.

One input `x` of datatype FP32 and shape `(n, d)`; FP64 and INT64 are converted. Outputs as `outputs_of` lists
them. Parameters that ask for binary tensors in the answer are ignored, as the protocol allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.device.web.http.bodies import MAX_BODY, MAX_ROWS, HttpError
from edged.domain.judging.predictions import Predictions
from edged.domain.stream.schema import Schema
from edged.errors import RejectedSampleError
from edged.mqtt.codecs.parsers import parse
from edged.mqtt.field_access import numbers

INPUT = "x"
DATATYPES = ("FP32", "FP64", "INT64")  # the two wider ones are rounded to float32
MOST_DIMENSIONS = 8
BINARY_HEADER = b"inference-header-content-length"

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class TensorRequest:
    """An inference request: rows `(n, d)` float32, and the names of the outputs that the answer has."""

    x: Floats
    outputs: tuple[str, ...]
    id: str | None = None


def wrong(what: str, remedy: str = "") -> HttpError:
    """Return the 400 error for a request that does not fit the model or the protocol."""
    return HttpError(400, what, kind="request", remedy=remedy)


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
    """Parses inference requests for one stream, of at most `MAX_ROWS` rows."""

    def __init__(self, schema: Schema) -> None:
        self._width = schema.measured
        self._shapes: set[tuple[int, ...]] = {(schema.measured,)}
        if schema.steps > 1:
            self._shapes.add((schema.steps, schema.channels))
        self._outputs = tuple(output["name"] for output in outputs_of(schema))

    def read(self, body: bytes, headers: Mapping[bytes, bytes]) -> TensorRequest:
        """Parse the request in a body.

        Raises HttpError: 400 with one line, for everything that is not as it should be.
        """
        if BINARY_HEADER in headers:
            raise wrong("binary tensors are not supported", "send data as JSON, such as binary_data=False")
        try:
            return self._asked(parse(body, MAX_BODY))
        except RejectedSampleError as problem:
            raise wrong(problem.what) from None

    def _asked(self, request: dict[str, Any]) -> TensorRequest:
        inputs = request.get("inputs")
        if type(inputs) is not list or len(inputs) != 1 or type(inputs[0]) is not dict:
            raise wrong(f"inputs must be a list with one tensor, {INPUT!r}")
        _parameters(request, "the request")
        name = request.get("id")
        if "id" in request and (type(name) is not str or len(name) > 256):
            raise wrong("id must be a text of at most 256 characters")
        return TensorRequest(self._rows(inputs[0]), self._wanted(request.get("outputs", [])), name)

    def _rows(self, tensor: dict[str, Any]) -> Floats:
        if tensor.get("name") != INPUT:
            raise wrong(
                f"the model has one input, {INPUT!r}; the request names {str(tensor.get('name'))[:40]!r}"
            )
        datatype = tensor.get("datatype")
        if type(datatype) is not str or datatype not in DATATYPES:
            accepted = "FP32, or FP64 or INT64, which are converted"
            raise wrong(f"input {INPUT!r} has datatype {accepted}, not {str(datatype)[:20]!r}")
        shape, data = self._shape(tensor.get("shape")), tensor.get("data")
        _parameters(tensor, "the input")
        if type(data) is not list:
            raise wrong("the input has no data, a list of numbers")
        if data and type(data[0]) is list:
            data = _flattened(data, shape)
        need = shape[0] * self._width
        if len(data) != need:
            raise wrong(f"data has {len(data)} numbers, shape {list(shape)} needs {need}")
        whole = datatype == "INT64"
        if whole and not all(type(value) is int and -(2**63) <= value < 2**63 for value in data):
            raise wrong("datatype INT64 is for whole numbers of 64 bits")
        return np.array(numbers(data, None), np.float32).reshape(shape[0], self._width)

    def _shape(self, shape: Any) -> tuple[int, ...]:
        """Check a shape before any memory is allocated for it."""
        wanted = " or ".join(str([-1, *rest]) for rest in sorted(self._shapes))
        if type(shape) is not list or not 2 <= len(shape) <= MOST_DIMENSIONS:
            raise wrong(f"input {INPUT!r} has shape {wanted}, the request gives no such list")
        if any(type(size) is not int for size in shape) or tuple(shape[1:]) not in self._shapes:
            raise wrong(f"input {INPUT!r} has shape {wanted}, not {str(shape)[:60]}")
        if not 1 <= shape[0] <= MAX_ROWS:
            raise wrong(f"a request has 1 to {MAX_ROWS} rows, this one {str(shape[0])[:20]}")
        return tuple(shape)

    def _wanted(self, outputs: Any) -> tuple[str, ...]:
        if outputs == []:
            return self._outputs
        if type(outputs) is not list or len(outputs) > len(self._outputs):
            raise wrong(f"outputs must be a list of some of {', '.join(self._outputs)}")
        return tuple(self._output(output) for output in outputs)

    def _output(self, output: Any) -> str:
        name = output.get("name") if type(output) is dict else None
        if not isinstance(name, str) or name not in self._outputs:
            raise wrong(f"the model has no output {str(name)[:40]!r}; it has {', '.join(self._outputs)}")
        if _parameters(output, f"output {name!r}").get("classification"):
            raise wrong("the classification extension is not here: label and confidence are outputs")
        return name


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


def answer(asked: TensorRequest, made: Predictions, schema: Schema, model: str) -> dict[str, Any]:
    """Return the fields of an answer; `asked` and `made` have `n` rows each."""
    return {
        "model_name": model,
        "model_version": str(made.version),
        **({} if asked.id is None else {"id": asked.id}),
        "outputs": [_output(name, made, schema) for name in asked.outputs],
    }


def _output(name: str, made: Predictions, schema: Schema) -> dict[str, Any]:
    if name == "label":
        labels = [schema.classes[int(at)] for at in made.answers[:, 0].tolist()]
        return {"name": name, "datatype": "BYTES", "shape": [len(labels)], "data": labels}
    values = made.confidence if name == "confidence" and made.confidence is not None else made.output
    return {"name": name, "datatype": "FP32", "shape": list(values.shape), "data": values.ravel().tolist()}
