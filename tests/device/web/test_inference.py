"""Answers of the inference protocol by a serving loop that runs, without a daemon around it."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from starlette.requests import Request

from edged.device.web.api.inference import Inference
from edged.device.web.bridge import ServingBridge
from edged.device.web.http.bodies import HttpError
from tests.device.serving.test_anomalies import SCHEMA, zeros
from tests.device.serving.test_predictor import make_server, serving

if TYPE_CHECKING:
    from edged.device.serving.predictor import Predictor
    from tests.device.linear import Floats

MODEL = "rig"


def inferred(server: Predictor, x: Floats) -> Any:
    """The answer to rows `x` `(n, 3)`."""
    tensor = {"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.tolist()}
    body = json.dumps({"inputs": [tensor]}).encode()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def ask(inference: Inference) -> Any:
        scope = {"type": "http", "path_params": {"model": MODEL}, "edged.headers": {}}
        return json.loads(bytes((await inference.infer(Request(scope, receive))).body))

    with serving(server) as outlet:
        ingest: Any = None  # nothing is recorded
        bridge = ServingBridge(outlet.loop, ingest, ThreadPoolExecutor(1))
        inference = Inference(model=MODEL, schema=SCHEMA, predictor=server, bridge=bridge)
        return asyncio.run(ask(inference))


def test_an_answer_that_is_not_finite_is_none(tmp_path: Path) -> None:
    server = make_server(zeros(tmp_path, 1), schema=SCHEMA)
    x = np.ones((3, 3), np.float32)
    assert inferred(server, x)["outputs"][0]["data"] == [1.0, 1.0, 1.0]
    x[1] = 3e38  # each value is finite, and so is what the model says; their distance is not
    with pytest.raises(HttpError, match="no finite answer to row 1") as caught:
        inferred(server, x)
    assert caught.value.status == 400
