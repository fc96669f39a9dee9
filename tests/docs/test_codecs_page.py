"""The example messages of docs/codecs.md are what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import yaml

from edged.config import StreamConfig
from edged.domain.stream.sample import Reading
from edged.mqtt.codecs import sample_codec
from tests.formats import NODE, TOPIC, TS

PAGE = (Path(__file__).parents[2] / "docs" / "codecs.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
PLACES = {"sparkplug": [NODE.format("DBIRTH") + "/vib", NODE.format("DDATA") + "/vib"]}


def examples() -> list[tuple[StreamConfig, list[bytes]]]:
    """Each stream of the page with its messages."""
    found: list[tuple[StreamConfig, list[bytes]]] = []
    for kind, text in BLOCKS:
        if kind == "sh":
            continue
        if kind == "yaml":
            found.append((StreamConfig(**yaml.safe_load(text)["stream"]), []))
        else:
            found[-1][1].append(bytes.fromhex(text) if kind == "hex" else text.encode())
    return found


def test_there_is_an_example_of_every_codec() -> None:
    codecs = get_args(StreamConfig.model_fields["codec"].annotation)
    assert {stream.codec for stream, _ in examples()} == set(codecs)


@pytest.mark.parametrize(("stream", "messages"), examples(), ids=[stream.codec for stream, _ in examples()])
def test_an_example_is_read_as_the_page_says(stream: StreamConfig, messages: list[bytes]) -> None:
    codec = sample_codec(stream)
    places = PLACES.get(stream.codec, [TOPIC] * len(messages))
    decoded = [codec.decode(place, message) for place, message in zip(places, messages, strict=True)]
    readings = [r for found in decoded for r in ([found] if isinstance(found, Reading) else found)]
    assert readings
    for reading in readings:
        if stream.codec in ("float32", "float16", "int16"):
            expected = [2050, 25, -50] if stream.codec == "int16" else [20.5, 0.25, -0.5]
            assert (reading.key, np.asarray(reading.values).tolist()) == ("press-7", expected)
        else:
            assert reading == Reading("m1", [20.5, 0.25, -0.5], TS, 1.0, "a-1")
