"""NVIDIA's client against a device: `python triton.py HOST:PORT MODEL`, where `tritonclient` is installed.

Prints one line of JSON with what was asked; anything that is not as it should be ends it with an error.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, PT017, T201  a program that runs where pytest is not

from __future__ import annotations

import asyncio
import itertools
import json
import sys

import numpy as np
import tritonclient.http as blocking
import tritonclient.http.aio as awaiting
from tritonclient.utils import InferenceServerException

URL, MODEL = sys.argv[1:]
NAMES = ("output", "label", "confidence")
X = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)


def tensor(module, *, binary=False, name="x", shape=X.shape, datatype="FP32", values=X):
    """An input of a request."""
    made = module.InferInput(name, list(shape), datatype)
    made.set_data_from_numpy(values, binary_data=binary)
    return made


def texts(values):
    """Labels, which come as bytes or as text."""
    return [value.decode() if isinstance(value, bytes) else value for value in values.tolist()]


def every_form(client, expected):
    """JSON, compressed or not, with and without a version, also where the answer is wanted in bytes."""
    forms = itertools.product((False, True), (None, "gzip", "deflate"), (None, "gzip"), ("", "1"))
    count = 0
    for out_bytes, packed, unpacked, version in forms:
        result = client.infer(
            MODEL,
            [tensor(blocking)],
            outputs=[blocking.InferRequestedOutput(name, binary_data=out_bytes) for name in NAMES],
            model_version=version,
            request_id="r-1",
            request_compression_algorithm=packed,
            response_compression_algorithm=unpacked,
        )
        output = result.as_numpy("output")
        assert np.array_equal(output, expected), (output, expected)
        assert texts(result.as_numpy("label")) == [("low", "high")[at] for at in output.argmax(axis=1)]
        assert np.array_equal(result.as_numpy("confidence"), output.max(axis=1))
        told = result.get_response()
        assert (told["id"], told["model_name"], told["model_version"]) == ("r-1", MODEL, "1")
        count += 1
    return count


async def awaited(expected):
    """The same client over asyncio."""
    client = awaiting.InferenceServerClient(URL)
    assert await client.is_server_live()
    assert await client.is_server_ready()
    for out_bytes in (False, True):
        result = await client.infer(
            MODEL,
            [tensor(awaiting)],
            outputs=[awaiting.InferRequestedOutput(name, binary_data=out_bytes) for name in NAMES],
        )
        assert np.array_equal(result.as_numpy("output"), expected)
    await client.close()


def refused(client):
    """Errors with their status and a line that says what is wrong."""
    good = [tensor(blocking)]
    wide = np.zeros((1, 3), np.float32)
    cases = {
        "no such model": (404, lambda: client.infer("nobody", good)),
        "no such version": (404, lambda: client.infer(MODEL, good, model_version="99")),
        "no such input": (400, lambda: client.infer(MODEL, [tensor(blocking, name="y")])),
        "too wide": (400, lambda: client.infer(MODEL, [tensor(blocking, shape=(1, 3), values=wide)])),
        "no such output": (
            400, lambda: client.infer(MODEL, good, outputs=[blocking.InferRequestedOutput("logits")])
        ),
        "bytes": (400, lambda: client.infer(MODEL, [tensor(blocking, binary=True)])),
        "NaN": (400, lambda: client.infer(MODEL, [tensor(blocking, values=np.full_like(X, np.nan))])),
        "config": (404, lambda: client.get_model_config(MODEL)),
        "statistics": (404, lambda: client.get_inference_statistics(MODEL)),
        "repository": (404, client.get_model_repository_index),
    }  # fmt: skip
    for name, (status, act) in cases.items():
        try:
            act()
        except InferenceServerException as problem:
            assert problem.status() == str(status), (name, problem.status())
            assert len(problem.message()) > 10, name
        else:
            raise AssertionError(name)
    return len(cases)


def main():
    """Everything."""
    client = blocking.InferenceServerClient(URL)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(MODEL)
    assert client.is_model_ready(MODEL, "1")
    assert client.get_server_metadata()["extensions"] == []
    metadata = client.get_model_metadata(MODEL)
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
    assert [output["name"] for output in metadata["outputs"]] == list(NAMES)
    expected = client.infer(MODEL, [tensor(blocking)]).as_numpy("output")
    counts = {"forms": every_form(client, expected), "refused": refused(client)}
    asyncio.run(awaited(expected))
    print(json.dumps(counts))


main()
