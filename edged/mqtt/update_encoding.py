"""Updates of weights on the wire: coded tensors as safetensors, and their way back to parameters.

A file holds for each parameter `values/<name>` and with int8 also `scale/<name>`; its metadata name the
shapes. Files of earlier versions may have `gaps/<name>`, where only some elements were sent. Whole float32
weights are the plain safetensors of `edged.mqtt.weight_encoding`, which any reader understands.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edged.domain.training.weight_deltas import Coded, decode, fingerprint
from edged.errors import CorruptError, StorageError
from edged.mqtt import weight_encoding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edged.domain.training.update_manifest import TransferManifest

# As numpy codes its types: their names are made anew each time that one asks for them.
_KINDS = {"values": ("<f4", "<f2", "|i1"), "scale": ("<f4",), "gaps": ("|u1", "<u2", "<u4")}


def pack(coded: Mapping[str, Coded]) -> bytes:
    """Coded tensors as one compressed blob; the same tensors give the same bytes."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, tensor in coded.items():
        parts = {"values": tensor.values, "scale": tensor.scale, "gaps": tensor.gaps}
        arrays |= {f"{kind}/{name}": part for kind, part in parts.items() if part is not None}
    shapes = {name: list(tensor.shape) for name, tensor in sorted(coded.items())}
    return weight_encoding.compress(arrays, {"shapes": json.dumps(shapes)})


def unpack(blob: bytes, limit: int = weight_encoding.MAX_BYTES) -> dict[str, Coded]:
    """Coded tensors from what `pack` made; refuses more than `limit` bytes, unpacked or decoded.

    Raises CorruptError when the blob is damaged, too large, or holds anything else.
    """
    arrays, metadata = weight_encoding.decompress(blob, limit)
    try:
        shapes = {str(name): _shape(sizes) for name, sizes in json.loads(metadata["shapes"]).items()}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise weight_encoding.damaged("the update does not name its shapes") from None
    if sum(4 * math.prod(shape) for shape in shapes.values()) > limit:
        raise weight_encoding.damaged(f"the update decodes to more than {limit} bytes")
    for name, array in arrays.items():
        kind, _, parameter = name.partition("/")
        if parameter not in shapes or array.dtype.str not in _KINDS.get(kind, ()):
            raise weight_encoding.damaged(f"{name!r} of {array.dtype} is no part of an update")
    try:
        return {
            name: Coded(
                arrays[f"values/{name}"], shape, arrays.get(f"scale/{name}"), arrays.get(f"gaps/{name}")
            )
            for name, shape in shapes.items()
        }
    except KeyError as missing:
        raise weight_encoding.damaged(f"{missing} is missing") from None


MASKED = "masked"


def pack_masked(vector: NDArray[np.uint64]) -> bytes:
    """A vector under masks as one blob."""
    return weight_encoding.compress({MASKED: vector.astype("<u8")}, {})


def unpack_masked(blob: bytes, size: int) -> NDArray[np.uint64]:
    """`(size,)` uint64 from what `pack_masked` made; CorruptError when it holds anything else."""
    found = weight_encoding.decompress(blob, 8 * size + 4096)[0].get(MASKED)
    if found is None or found.dtype.str != "<u8" or found.shape != (size,):
        raise weight_encoding.damaged(f"the vector is not {size} whole numbers of 64 bits")
    return found


def _shape(sizes: Any) -> tuple[int, ...]:
    if not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in sizes):
        raise ValueError(sizes)
    return tuple(sizes)


def received(
    manifest: TransferManifest, blob: bytes, limit: int = weight_encoding.MAX_BYTES
) -> dict[str, NDArray[np.float32]]:
    """Return the parameters of an update.

    `blob` is what `weight_encoding.join` returns, with at most `limit` bytes when it is unpacked.
    Raises CorruptError when the update is damaged, or is not the parameters that its manifest names.
    """
    if manifest.encoding == weight_encoding.ENCODING:
        parameters, _ = weight_encoding.unpack(blob, limit)
    elif manifest.encoding == weight_encoding.CODED:
        parameters = decode(unpack(blob, limit))
    else:
        raise weight_encoding.damaged(f"encoding {manifest.encoding!r} is not known here")
    if manifest.parameters is not None and fingerprint(parameters) != manifest.parameters:
        raise weight_encoding.damaged("the update has other parameters than its manifest names")
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
    found, _ = weight_encoding.unpack(blob, limit)
    if fingerprint(found) != expected:
        raise CorruptError("it is not the model that was announced", where=f"model {expected[:12]}")
    return found
