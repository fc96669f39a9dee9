# ruff: noqa: INP001  a program, not a package
"""Writes docs/openapi.json from the routes of a device; `--check` only says whether it is up to date.

Paths, methods, scopes, commands and their fields come from the code; the other bodies are described here, and
a path without a description is an error. Run from anywhere: `python docs/make_openapi.py`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from generated import write_or_check

from edged import __version__
from edged.device.web.api.commands import ANYBODY_WHO_INFERS, COMMANDS, Commands
from edged.device.web.api.event_stream import EventStream
from edged.device.web.api.inference import Inference
from edged.device.web.api.ingest import IngestEndpoints
from edged.device.web.api.label_reviews import LabelEndpoints
from edged.device.web.api.metrics import Metrics
from edged.device.web.api.timeline import TimelineEndpoints
from edged.device.web.page.page import Page
from edged.device.web.service import MODEL, VERSION, Endpoints, routes
from edged.domain.messages.requests import whole
from edged.domain.messages.sent import answer_to

PAGE = Path(__file__).with_name("openapi.json")
TEXT: dict[str, Any] = {"type": "string"}
NUMBER, WHOLE, ANY = {"type": "number"}, {"type": "integer"}, dict[str, Any]()
JSON, PLAIN, LINES, EVENTS, HTML = (
    "application/json", "text/plain", "application/x-ndjson", "text/event-stream", "text/html",
)  # fmt: skip


def obj(required: str = "", **properties: Any) -> dict[str, Any]:
    """The schema of an object; without `required` all its fields are."""
    names = required.split() if required else list(properties)
    return {"type": "object", "properties": properties, "required": names}


def listed(items: Any) -> dict[str, Any]:
    """The schema of a list."""
    return {"type": "array", "items": items}


def query(name: str, schema: Any, description: str) -> dict[str, Any]:
    """A parameter behind the path's question mark."""
    return {"name": name, "in": "query", "schema": schema, "description": description}


INPUT = obj(
    "name shape datatype",
    name=TEXT,
    shape=listed(WHOLE),
    datatype=TEXT,
    data=listed(ANY),
    parameters={"type": "object"},
)
OUTPUT = obj("name", name=TEXT, parameters={"type": "object"})
INFER = obj("inputs", id=TEXT, parameters={"type": "object"}, inputs=listed(INPUT), outputs=listed(OUTPUT))
ANSWER = obj(
    "model_name model_version outputs", model_name=TEXT, model_version=TEXT, id=TEXT,
    outputs=listed(INPUT), parameters={"type": "object"},
)  # fmt: skip
TENSOR = obj(name=TEXT, datatype=TEXT, shape=listed(WHOLE))
METADATA = obj(name=TEXT, versions=listed(TEXT), platform=TEXT, inputs=listed(TENSOR), outputs=listed(TENSOR))
SERVER = obj(name=TEXT, version=TEXT, extensions=listed(TEXT))
READY = obj(name=TEXT, ready={"type": "boolean"})
SESSION = obj(scopes=listed(TEXT), csrf={"type": ["string", "null"]})
STRETCH = [
    query("key", TEXT, "key of the samples; the one with the newest sample when absent"),
    query("from", TEXT, "start: Unix seconds, milliseconds or ISO 8601"),
    query("to", TEXT, "end, included"),
]
RECORDS = {
    "content": {JSON: {"schema": ANY}, LINES: {"schema": TEXT}, PLAIN: {"schema": TEXT}},
    "required": True,
}
TOPIC = [
    query("topic", TEXT, "topic that the records count as; stream.topic or stream.label.topic when absent")
]


def json_body(schema: Any) -> dict[str, Any]:
    """A required body in JSON."""
    return {"content": {JSON: {"schema": schema}}, "required": True}


# By path: parameters, body of the request, media type and schema of the answer, its status.
DESCRIBED: dict[str, dict[str, Any]] = {
    f"{MODEL}/infer": {"requestBody": json_body(INFER), "answer": (JSON, ANSWER)},
    f"{VERSION}/infer": {"requestBody": json_body(INFER), "answer": (JSON, ANSWER)},
    MODEL: {"answer": (JSON, METADATA)},
    VERSION: {"answer": (JSON, METADATA)},
    f"{MODEL}/ready": {"answer": (JSON, READY)},
    f"{VERSION}/ready": {"answer": (JSON, READY)},
    "/v2/health/live": {"answer": (JSON, obj(live={"type": "boolean"}))},
    "/v2/health/ready": {"answer": (JSON, obj(ready={"type": "boolean"}))},
    "/v2": {"answer": (JSON, SERVER)},
    "/v2/": {"answer": (JSON, SERVER)},
    "/v1/samples": {
        "parameters": TOPIC,
        "requestBody": RECORDS,
        "answer": (JSON, obj(accepted=WHOLE, passed_over=WHOLE)),
    },
    "/v1/labels": {
        "parameters": TOPIC,
        "requestBody": RECORDS,
        "answer": (JSON, obj("accepted", accepted=WHOLE, unmatched=WHOLE)),
    },
    "/metrics": {"answer": (PLAIN, TEXT)},
    "/": {"answer": (HTML, TEXT)},
    "/api/page": {
        "parameters": [query("only", TEXT, "names of sections, separated by commas; all when absent")],
        "answer": (JSON, {"type": "object", "additionalProperties": True}),
    },
    "/api/report": {"answer": (HTML, TEXT)},
    "/api/timeline": {
        "parameters": [
            *STRETCH,
            query("feature", listed(TEXT), "names of features, once for each, at most 8"),
            query("width", WHOLE | {"minimum": 1, "maximum": 2000}, "columns of the picture"),
        ],
        "answer": (JSON, {"type": "object"}),
    },
    "/api/timeline/count": {
        "parameters": STRETCH,
        "answer": (JSON, obj(key={"type": ["string", "null"]}, samples=WHOLE)),
    },
    "/static/{name}": {"answer": ("*/*", TEXT)},
    "/api/login": {"requestBody": json_body(obj(code=TEXT)), "answer": (JSON, SESSION)},
    "/api/logout": {"requestBody": json_body(ANY), "status": "204"},
    "/api/labels/suspects": {
        "parameters": [
            query("limit", WHOLE | {"minimum": 1, "maximum": 300}, "number of labels"),
            query("key", TEXT, "samples of this key only"),
        ],
        "answer": (
            JSON,
            obj(reviewed={"type": ["number", "null"]}, labels=WHOLE, suspects=listed({"type": "object"})),
        ),
    },
    "/api/labels/map": {
        "answer": (
            JSON,
            obj(
                reviewed={"type": ["number", "null"]},
                classes=listed(TEXT),
                known=listed(TEXT),
                points={"type": "object"},
            ),
        )
    },
    "/api/labels/samples/{offset}": {"answer": (JSON, {"type": "object"})},
    "/api/status": {"answer": (JSON, {"type": "object"})},
    "/api/events": {
        "parameters": [
            query("topics", TEXT, "topics, separated by commas; all when absent"),
            query("since", TEXT, "0: the last 200 events first"),
        ],
        "answer": (EVENTS, TEXT),
    },
}


def operation(route: Any, described: dict[str, Any]) -> dict[str, Any]:
    """The description of a route: its endpoint's first sentence, parameters, bodies and scopes."""
    names = re.findall(r"{(\w+)}", route.path)
    parameters = [{"name": name, "in": "path", "required": True, "schema": TEXT} for name in names]
    parameters += described.get("parameters", [])
    answer = {"description": "success"}
    if "answer" in described:
        media, schema = described["answer"]
        answer |= {"content": {media: {"schema": schema}}}  # type: ignore[dict-item]
    told: dict[str, Any] = {
        "summary": summary(route.app.endpoint),
        "responses": {
            described.get("status", "200"): answer,
            "default": {"$ref": "#/components/responses/Error"},
        },
    }
    if parameters:
        told["parameters"] = parameters
    if "requestBody" in described:
        told["requestBody"] = described["requestBody"]
    if route.app.rights:
        told["security"] = [*({"token": [scope]} for scope in route.app.rights), {}]
    return told


STATE = {JSON: {"schema": obj("status state", status=TEXT, state=TEXT, error=TEXT)}}


def summary(endpoint: Any) -> str:
    """The first sentence of an endpoint's docstring, in one line."""
    return str((endpoint.__doc__ or "").strip().splitlines()[0].rstrip("."))


def command(name: str) -> dict[str, Any]:
    """The description of a command: what it takes and answers is what it does over MQTT."""
    request = whole(name)
    scopes = ("control", "infer") if name in ANYBODY_WHO_INFERS else ("control",)
    return {
        "summary": str(request.get("description", name)),
        "requestBody": json_body(request),
        "responses": {
            "200": {"description": "done", "content": {JSON: {"schema": answer_to(name)}}},
            "202": {"description": "accepted; it goes on, and /api/events has its end", "content": STATE},
            "409": {"description": "refused", "content": STATE},
            "default": {"$ref": "#/components/responses/Error"},
        },
        "security": [{"token": [scope]} for scope in scopes],
    }


def document() -> dict[str, Any]:
    """The whole description, in OpenAPI 3.1. Endpoints are taken from their classes: nothing runs."""
    parts: dict[str, Any] = {
        "access": None,
        "inference": Inference,
        "metrics": Metrics,
        "commands": Commands,
        "ingest": IngestEndpoints,
        "reviews": LabelEndpoints,
        "feed": EventStream,
        "page": Page,
        "timeline": TimelineEndpoints,
    }
    paths: dict[str, Any] = {}
    for route in routes(Endpoints(**parts)):
        guarded: Any = route.app
        if route.path == "/api/commands/{name}":
            paths |= {f"/api/commands/{name}": {"post": command(name)} for name in COMMANDS}
        else:
            paths[route.path] = {guarded.method.lower(): operation(route, DESCRIBED[route.path])}
    error = {
        "description": "error",
        "content": {JSON: {"schema": obj("error", error=TEXT, rejected=listed(TEXT))}},
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "edged",
            "version": __version__,
            "description": "HTTP of a device (section web). On the loopback interface only commands need a"
            " token, unless one is configured.",
        },
        "servers": [{"url": "http://127.0.0.1:8080"}],
        "paths": paths,
        "components": {
            "responses": {"Error": error},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, json.dumps(document(), indent=1, ensure_ascii=False) + "\n", __file__))
