"""The Open Inference Protocol v2 (kserve/open-inference-protocol): health, metadata and predictions."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from functools import partial
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from edged import __version__
from edged.device.serving.predictor import Predictor
from edged.device.web.api.prometheus_text import PREDICTION, Histogram
from edged.device.web.api.tensors import (
    Floats,
    TensorReader,
    answer,
    inputs_of,
    outputs_of,
    wrong,
)
from edged.device.web.bridge import ServingBridge
from edged.device.web.http.bodies import HttpError, as_json, read_body
from edged.device.web.http.routes import http_error
from edged.domain.judging.predictions import Predictions
from edged.domain.stream.schema import Schema
from edged.errors import EdgedError, ModelError, RefusedError

PLATFORM = "onnxruntime_onnx"


class Inference:
    """Endpoints of the protocol for the one model of this device.

    `model` is the model's name in URLs. `outcomes` counts requests by version and outcome (`ok`, `rejected`,
    `failed`, `overloaded`), `durations` has the seconds from the request to its answer by version, `ready`
    says whether requests are accepted.
    """

    def __init__(self, *, model: str, schema: Schema, predictor: Predictor, bridge: ServingBridge) -> None:
        self.model = model
        self._schema = schema
        self._predictor = predictor
        self._bridge = bridge
        self._reader = TensorReader(schema)
        self.durations: defaultdict[int, Histogram] = defaultdict(partial(Histogram, PREDICTION))
        self.outcomes: Counter[tuple[int, str]] = Counter()
        self.ready = True

    # ---- health and metadata -----------------------------------------------------------------

    async def live(self, _: Request) -> Response:
        """Answer that the process runs."""
        return as_json({"live": True})

    async def server_ready(self, _: Request) -> Response:
        """Answer whether predictions are made."""
        if not self.ready:
            raise HttpError(503, "the device is stopping", kind="stopping")
        return as_json({"ready": True})

    async def server_metadata(self, _: Request) -> Response:
        """Return name and version of this server."""
        return as_json({"name": "edged", "version": __version__, "extensions": []})

    async def model_ready(self, request: Request) -> Response:
        """Answer whether the model, or the version, is loaded."""
        self._wanted(request)
        return as_json({"name": self.model, "ready": self.ready})

    async def model_metadata(self, request: Request) -> Response:
        """Return inputs and outputs of the model, and its loaded versions, the current one first."""
        self._wanted(request)
        return as_json(
            {
                "name": self.model,
                "versions": [str(version) for version in self.loaded()],
                "platform": PLATFORM,
                "inputs": inputs_of(self._schema),
                "outputs": outputs_of(self._schema),
            }
        )

    def loaded(self) -> list[int]:
        """Return the loaded versions: the current one, and its predecessor if there is one."""
        champion, previous = self._predictor.champion, self._predictor.previous
        return [champion.version] + ([] if previous is None else [previous.version])

    def _wanted(self, request: Request) -> int | None:
        """Return the version that a path names, None for the current one; 404 if it is not here."""
        named = request.path_params
        if named["model"] != self.model:
            raise HttpError(
                404, f"there is no model {named['model'][:60]!r}; this is {self.model!r}", kind="model"
            )
        version: str | None = named.get("version")
        if version is None:
            return None
        loaded = self.loaded()
        if version not in map(str, loaded):
            names = ", ".join(map(str, loaded))
            raise HttpError(404, f"version {version[:20]!r} is not loaded; here are {names}", kind="version")
        return int(version)

    def keep_only(self, versions: list[int]) -> None:
        """Drop the counts of all other versions."""
        for version in set(self.durations) - set(versions):
            del self.durations[version]
        for version, outcome in set(self.outcomes):
            if version not in versions:
                del self.outcomes[version, outcome]

    # ---- predictions -------------------------------------------------------------------------

    async def infer(self, request: Request) -> Response:
        """Predict the rows of a request."""
        began, version = time.monotonic(), self._predictor.champion.version
        try:
            response, version = await self._infer(request)
        except EdgedError as error:
            problem = error if isinstance(error, HttpError) else http_error(error)
            self.outcomes[version, _outcome(problem.status)] += 1
            raise problem from error
        self.outcomes[version, "ok"] += 1
        self.durations[version].add(time.monotonic() - began)
        return response

    async def _infer(self, request: Request) -> tuple[Response, int]:
        version = self._wanted(request)
        headers: dict[bytes, bytes] = request.scope["edged.headers"]
        asked = self._reader.read(await read_body(request.scope, request.receive), headers)
        made = await self._predict(asked.x, version)
        _finite(made.output)
        return as_json(answer(asked, made, self._schema, self.model)), made.version

    async def _predict(self, x: Floats, version: int | None) -> Predictions:
        try:
            return await self._bridge.predict(x, version)
        except RefusedError as problem:
            raise HttpError(404, problem.line(), kind="version") from None
        except ModelError as problem:
            raise HttpError(500, problem.line(), kind="model") from None


def _finite(output: Any) -> None:
    """Raise HttpError for an output that is not finite: JSON has neither NaN nor infinities."""
    finite = np.isfinite(output)
    if not finite.all():
        raise wrong(f"the model has no finite answer to row {int(finite.all(axis=1).argmin())}")


def _outcome(status: int) -> str:
    if status == 503:
        return "overloaded"
    return "rejected" if status < 500 else "failed"
