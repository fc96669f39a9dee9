"""The protocol as this server speaks it, as an OpenAPI 3.0 description for the device of the tests.

A request that fits it is answered, one that does not is refused: that is what a description of the protocol
for any model cannot say.
"""

from __future__ import annotations

from typing import Any

LARGEST = 3.4028234663852886e38  # of float32

TEXT: dict[str, Any] = {"type": "string"}
ERROR = {"type": "object", "properties": {"error": TEXT}, "required": ["error"]}
TENSOR: dict[str, Any] = {
    "type": "object",
    "properties": {"name": TEXT, "datatype": TEXT, "shape": {"type": "array", "items": {"type": "integer"}}},
    "required": ["name", "datatype", "shape"],
}


def description(model: str, features: int, outputs: list[str]) -> dict[str, Any]:
    """Of a device whose model takes so many features."""
    paths: dict[str, Any] = {
        "/v2/health/live": _get({"type": "object"}),
        "/v2/health/ready": _get({"type": "object"}),
        "/v2": _get(_object(name=TEXT, version=TEXT, extensions=_list(TEXT))),
        "/v2/": _get(_object(name=TEXT, version=TEXT, extensions=_list(TEXT))),
    }
    tensors = {"inputs": _list(TENSOR), "outputs": _list(TENSOR)}
    metadata = _object(name=TEXT, versions=_list(TEXT), platform=TEXT, **tensors)
    for path in (f"/v2/models/{model}", f"/v2/models/{model}/versions/1"):
        paths[path] = _get(metadata)
        paths[f"{path}/ready"] = _get({"type": "object"})
        paths[f"{path}/infer"] = {
            "post": {
                "requestBody": {"required": True, "content": _json(_request(features, outputs))},
                "responses": {"200": _answer(_response()), "400": _answer(ERROR)},
            }
        }
    return {"openapi": "3.0.3", "info": {"title": "edged", "version": "2"}, "paths": paths}


def _request(features: int, outputs: list[str]) -> dict[str, Any]:
    number = {"type": "number", "minimum": -LARGEST, "maximum": LARGEST}
    tensor = _object(
        name={"type": "string", "enum": ["x"]},
        datatype={"type": "string", "enum": ["FP32", "FP64"]},
        shape={"type": "array", "enum": [[1, features]], "items": {"type": "integer"}},
        data={"type": "array", "items": number, "minItems": features, "maxItems": features},
    )
    wanted = _object(name={"type": "string", "enum": outputs})
    request = _object(inputs={"type": "array", "items": tensor, "minItems": 1, "maxItems": 1})
    request["properties"]["outputs"] = {"type": "array", "items": wanted, "maxItems": len(outputs)}
    request["properties"]["id"] = {"type": "string", "maxLength": 256}
    return request


def _response() -> dict[str, Any]:
    output = dict(TENSOR, properties=TENSOR["properties"] | {"data": {"type": "array", "items": {}}})
    response = _object(model_name=TEXT, model_version=TEXT, outputs=_list(output))
    response["properties"]["id"] = TEXT
    return response


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _answer(schema: Any) -> dict[str, Any]:
    return {"description": "answer", "content": _json(schema)}


def _get(schema: Any) -> dict[str, Any]:
    return {"get": {"responses": {"200": _answer(schema)}}}
