from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from edged.domain.training.update_manifest import TransferManifest
from edged.errors import CorruptError
from edged.mqtt import weight_encoding

PARAMETERS = {
    "a.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "a.bias": np.array([1.5, -0.0, 3e38], np.float32),
    "scale": np.array(2.0, np.float32),
    "empty": np.empty((0, 3), np.float32),
}


def manifest_of(blob: bytes, chunks: list[bytes]) -> TransferManifest:
    return replace(weight_encoding.manifest(blob, chunks), encoding=weight_encoding.ENCODING)


def test_what_was_packed_comes_back_bit_by_bit() -> None:
    parameters = weight_encoding.unpack(weight_encoding.pack(PARAMETERS))
    assert parameters.keys() == PARAMETERS.keys()
    for name, value in PARAMETERS.items():
        assert parameters[name].shape == value.shape
        assert parameters[name].tobytes() == value.tobytes()


def test_views_that_are_not_contiguous_are_packed_in_their_logical_order() -> None:
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3).T
    parameters = weight_encoding.unpack(weight_encoding.pack({"m": matrix}))
    assert np.array_equal(parameters["m"], matrix)


@given(st.binary(max_size=300), st.integers(1, 50))
def test_split_and_join(blob: bytes, size: int) -> None:
    chunks = weight_encoding.split(blob, size)
    assert all(0 < len(chunk) <= size for chunk in chunks)
    manifest = TransferManifest.from_json(json.loads(json.dumps(manifest_of(blob, chunks).to_json())))
    assert b"".join(chunks) == blob
    assert (manifest.bytes, len(manifest.chunks)) == (len(blob), len(chunks))


def test_the_manifest_says_the_sizes() -> None:
    blob = b"x" * 250
    manifest = weight_encoding.manifest(blob, weight_encoding.split(blob, 100))
    assert manifest.bytes == 250
    assert [chunk.bytes for chunk in manifest.chunks] == [100, 100, 50]


def test_a_chunk_needs_bytes() -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        weight_encoding.split(b"abc", 0)


def test_damage_in_any_place_is_noticed() -> None:
    blob = weight_encoding.pack(PARAMETERS)
    manifest = manifest_of(blob, weight_encoding.split(blob, 64))
    assert weight_encoding.received(manifest, blob).keys() == PARAMETERS.keys()
    for place in range(0, len(blob), 16):
        with pytest.raises(CorruptError, match="together"):
            weight_encoding.received(manifest, blob[:place] + bytes([blob[place] ^ 1]) + blob[place + 1 :])
    with pytest.raises(CorruptError, match="together"):
        weight_encoding.received(manifest, blob[:-1])
    with pytest.raises(CorruptError, match="together"):
        weight_encoding.received(replace(manifest, sha256="0" * 64), blob)


def test_an_unknown_encoding() -> None:
    with pytest.raises(CorruptError, match="encoding 'pickle' is not known"):
        weight_encoding.received(replace(manifest_of(b"", []), encoding="pickle"), b"")
    with pytest.raises(CorruptError, match="encoding None is not known"):
        weight_encoding.received(weight_encoding.manifest(b"", []), b"")


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_with_a_clear_error(blob: bytes) -> None:
    with pytest.raises(CorruptError):
        weight_encoding.unpack(blob)
    with pytest.raises(CorruptError):
        weight_encoding.unpack(zstandard.ZstdCompressor().compress(blob))


def test_a_blob_that_would_grow_beyond_the_limit_is_not_unpacked() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(50_000_000))
    assert len(bomb) < 10_000
    with pytest.raises(CorruptError, match="at most"):
        weight_encoding.unpack(bomb, limit=1_000_000)


def test_other_types_than_float32_are_refused() -> None:
    blob = zstandard.ZstdCompressor().compress(save({"n": np.arange(3)}))
    with pytest.raises(CorruptError, match="float32"):
        weight_encoding.unpack(blob)


def test_the_module_brings_no_packages_into_the_daemon() -> None:
    code = "import sys, edged.mqtt.weight_encoding; print({'safetensors', 'zstandard'} & sys.modules.keys())"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"
