"""Weights on the wire: safetensors, compressed with zstd, cut into chunks that fit into MQTT messages.

A file of coded tensors holds `values/<name>` for each, and with int8 also `scale/<name>`. Whole float32
weights are plain safetensors, which any reader understands.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.domain.bundle_contents import FileEntry, entry_of
from edged.domain.training.update_manifest import TransferManifest
from edged.domain.training.weight_coding import Coded, decode, fingerprint
from edged.errors import CorruptError, StorageError

FILE = "weights.safetensors.zst"
ENCODING = "safetensors+zstd"
CODED = "coded+safetensors+zstd"
MAX_BYTES = 1024**3
MAX_UPDATE_BYTES = 64 * 1024**2  # of an update or a fleet's model that arrives, also unpacked
_LEVEL = 3
# By kind, as numpy codes its types.
_KINDS = {"values": ("<f4", "|i1"), "scale": ("<f4",)}


def pack(parameters: Mapping[str, NDArray[np.float32]], metadata: Mapping[str, str] | None = None) -> bytes:
    """Parameters by name and text about them, as one compressed blob."""
    return compress(
        {name: np.asarray(value, np.float32) for name, value in parameters.items()}, metadata or {}
    )


def compress(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> bytes:
    """Arrays of any type as compressed safetensors."""
    import zstandard
    from safetensors.numpy import save

    return zstandard.ZstdCompressor(level=_LEVEL).compress(save(_contiguous(arrays), dict(metadata)))


def _contiguous(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    # ascontiguousarray makes a scalar one-dimensional.
    return {name: np.ascontiguousarray(value).reshape(np.shape(value)) for name, value in arrays.items()}


def unpack(blob: bytes, limit: int = MAX_BYTES) -> tuple[dict[str, NDArray[np.float32]], dict[str, str]]:
    """Parameters and metadata from what `pack` made; refuses more than `limit` bytes unpacked.

    Raises CorruptError when the blob is damaged, too large, or holds anything but float32.
    """
    parameters, metadata = decompress(blob, limit)
    return _all_float32(parameters), metadata


def _all_float32(parameters: dict[str, NDArray[Any]]) -> dict[str, NDArray[np.float32]]:
    wrong = [name for name, value in parameters.items() if value.dtype != "float32"]
    if wrong:
        raise damaged(f"parameter {wrong[0]!r} is not float32")
    return parameters


def decompress(blob: bytes, limit: int) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """What `compress` was given; CorruptError as for `unpack`."""
    return _loaded(_expanded(blob, limit))


def _loaded(raw: bytes) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(raw)
        metadata = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")]).get("__metadata__", {})
    except (SafetensorError, KeyError, ValueError) as problem:
        raise damaged(f"the weights are no safetensors: {problem}") from None
    return arrays, metadata


def to_safetensors(weights: Mapping[str, NDArray[np.float32]]) -> bytes:
    """Return weights as plain safetensors."""
    from safetensors.numpy import save

    raw: bytes = save(_contiguous(weights))
    return raw


def from_safetensors(raw: bytes) -> dict[str, NDArray[np.float32]]:
    """Read weights from plain safetensors; raise CorruptError if they are none, or are not all float32."""
    return _all_float32(_loaded(raw)[0])


def _expanded(blob: bytes, limit: int) -> bytes:
    import zstandard

    try:
        size = zstandard.frame_content_size(blob)
        if size < 0 or size > limit:
            raise damaged(f"the weights claim {size} bytes, at most {limit} are taken")
        return bytes(zstandard.ZstdDecompressor().decompress(blob, max_output_size=size))
    except zstandard.ZstdError as problem:
        raise damaged(f"the weights cannot be decompressed: {problem}") from None


def pack_coded(coded: Mapping[str, Coded]) -> bytes:
    """Coded tensors as one compressed blob; the same tensors give the same bytes."""
    arrays = {f"values/{name}": tensor.values for name, tensor in coded.items()}
    scales = {f"scale/{name}": tensor.scale for name, tensor in coded.items() if tensor.scale is not None}
    return compress({**arrays, **scales}, {})


def unpack_coded(blob: bytes, limit: int = MAX_BYTES) -> dict[str, Coded]:
    """Coded tensors from what `pack_coded` made; refuses more than `limit` bytes, unpacked or decoded.

    Raises CorruptError when the blob is damaged, too large, or holds anything else.
    """
    arrays, _ = decompress(blob, limit)
    found = {
        name.removeprefix("values/"): value for name, value in arrays.items() if name.startswith("values/")
    }
    if sum(4 * value.size for value in found.values()) > limit:
        raise damaged(f"the update decodes to more than {limit} bytes")
    for name, array in arrays.items():
        kind, _, parameter = name.partition("/")
        if parameter not in found or array.dtype.str not in _KINDS.get(kind, ()):
            raise damaged(f"{name!r} of {array.dtype} is no part of an update")
    return {name: Coded(value, arrays.get(f"scale/{name}")) for name, value in found.items()}


def split(blob: bytes, chunk_bytes: int) -> list[bytes]:
    """Cut data into pieces of at most `chunk_bytes` bytes.

    >>> split(b"abcde", 2)
    [b'ab', b'cd', b'e']
    """
    if chunk_bytes < 1:
        raise ValueError("a chunk needs at least one byte")
    return [blob[at : at + chunk_bytes] for at in range(0, len(blob), chunk_bytes)]


def manifest(blob: bytes, chunks: Sequence[bytes]) -> TransferManifest:
    """What a receiver needs to check the chunks of a file."""
    whole = entry_of(blob)
    return TransferManifest(whole.bytes, whole.sha256, tuple(entry_of(chunk) for chunk in chunks))


def damaged(what: str) -> CorruptError:
    """The error for an update that is not what was sent."""
    return CorruptError(what, where="weights", remedy="ask for the update again")


def received(
    manifest: TransferManifest, blob: bytes, limit: int = MAX_BYTES
) -> dict[str, NDArray[np.float32]]:
    """Return the parameters of an update.

    `blob` are its chunks together, with at most `limit` bytes when it is unpacked.
    Raises CorruptError when the update is damaged, or is not the parameters that its manifest names.
    """
    if entry_of(blob) != FileEntry(manifest.bytes, manifest.sha256):
        raise damaged("the chunks together are not what the manifest says")
    if manifest.encoding == ENCODING:
        parameters, _ = unpack(blob, limit)
    elif manifest.encoding == CODED:
        parameters = decode(unpack_coded(blob, limit))
    else:
        raise damaged(f"encoding {manifest.encoding!r} is not known here")
    if manifest.parameters is not None and fingerprint(parameters) != manifest.parameters:
        raise damaged("the update has other parameters than its manifest names")
    return parameters


def fleet_model(path: Path, expected: str, limit: int) -> dict[str, NDArray[np.float32]]:
    """The parameters of a fleet's model, as the parts of it were put together.

    Raises StorageError when it cannot be read; CorruptError when it is damaged, larger than `limit` bytes
    unpacked, or has another fingerprint than `expected`.
    """
    try:
        blob = path.read_bytes()
    except OSError as problem:
        raise StorageError(f"cannot be read: {problem.strerror}", where=str(path)) from problem
    found, _ = unpack(blob, limit)
    if fingerprint(found) != expected:
        raise CorruptError("it is not the model that was announced", where=f"model {expected[:12]}")
    return found
