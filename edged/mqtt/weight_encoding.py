"""Weights on the wire: safetensors, compressed with zstd, cut into chunks that fit into MQTT messages.

A file of coded tensors holds `values/<name>` for each, and with int8 also `scale/<name>`. Whole float32
weights are plain safetensors, which any reader understands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.domain.arrays import Floats
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


def pack(parameters: Mapping[str, Floats]) -> bytes:
    """Compress parameters by name."""
    return compress({name: np.asarray(value, np.float32) for name, value in parameters.items()})


def compress(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Arrays of any type as compressed safetensors."""
    import zstandard

    return zstandard.ZstdCompressor(level=_LEVEL).compress(to_safetensors(arrays))


def unpack(blob: bytes, limit: int = MAX_BYTES) -> dict[str, Floats]:
    """Parameters from what `pack` made; refuses more than `limit` bytes unpacked.

    Raises CorruptError when the blob is damaged, too large, or holds anything but float32.
    """
    return from_safetensors(_expanded(blob, limit))


def to_safetensors(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return arrays as plain safetensors."""
    from safetensors.numpy import save

    # ascontiguousarray makes a scalar one-dimensional.
    whole = {name: np.ascontiguousarray(value).reshape(np.shape(value)) for name, value in arrays.items()}
    raw: bytes = save(whole)
    return raw


def from_safetensors(raw: bytes) -> dict[str, Floats]:
    """Read weights from plain safetensors; raise CorruptError if they are none, or are not all float32."""
    parameters = _loaded(raw)
    wrong = [name for name, value in parameters.items() if value.dtype != "float32"]
    if wrong:
        raise damaged(f"parameter {wrong[0]!r} is not float32")
    return parameters


def _loaded(raw: bytes) -> dict[str, NDArray[Any]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return dict(load(raw))
    except (SafetensorError, KeyError, ValueError) as problem:
        raise damaged(f"the weights are no safetensors: {problem}") from None


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
    return compress({**arrays, **scales})


def unpack_coded(blob: bytes, limit: int = MAX_BYTES) -> dict[str, Coded]:
    """Coded tensors from what `pack_coded` made; refuses more than `limit` bytes, unpacked or decoded.

    Raises CorruptError when the blob is damaged, too large, or holds anything else.
    """
    arrays = _loaded(_expanded(blob, limit))
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


def received(manifest: TransferManifest, blob: bytes, limit: int = MAX_BYTES) -> dict[str, Floats]:
    """Return the parameters of an update.

    `blob` are its chunks together, with at most `limit` bytes when it is unpacked.
    Raises CorruptError when the update is damaged, or is not the parameters that its manifest names.
    """
    if entry_of(blob) != FileEntry(manifest.bytes, manifest.sha256):
        raise damaged("the chunks together are not what the manifest says")
    if manifest.encoding == ENCODING:
        parameters = unpack(blob, limit)
    elif manifest.encoding == CODED:
        parameters = decode(unpack_coded(blob, limit))
    else:
        raise damaged(f"encoding {manifest.encoding!r} is not known here")
    if manifest.parameters is not None and fingerprint(parameters) != manifest.parameters:
        raise damaged("the update has other parameters than its manifest names")
    return parameters


def fleet_model(path: Path, expected: str) -> dict[str, Floats]:
    """The parameters of a fleet's model, as the parts of it were put together.

    Raises StorageError when it cannot be read; CorruptError when it is damaged, larger than an update may be
    unpacked, or has another fingerprint than `expected`.
    """
    try:
        blob = path.read_bytes()
    except OSError as problem:
        raise StorageError(f"cannot be read: {problem.strerror}", where=str(path)) from problem
    found = unpack(blob, MAX_UPDATE_BYTES)
    if fingerprint(found) != expected:
        raise CorruptError("it is not the model that was announced", where=f"model {expected[:12]}")
    return found
