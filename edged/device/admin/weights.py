"""Conversion of received weight updates into files that other programs read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edged.domain.bundle_contents import entry_of
from edged.domain.training.update_manifest import TransferManifest
from edged.engines.model_parameters import BaseModel
from edged.errors import ConfigError, RefusedError, StorageError
from edged.mqtt import weight_encoding
from edged.storage.models.bundles import Bundle

Weights = dict[str, NDArray[np.float32]]


MANIFESTS = ("manifest", "manifest.json")


def unpacked(source: Path) -> Weights:
    """Return the parameters of an update.

    `source`: a directory with `manifest` and the chunks `0`, `1`, …, each as it was published; or a file with
    weights, such as a model has beside it. Raises StorageError when something is missing or damaged.
    """
    if source.is_file():
        return _file(source)
    manifest = _manifest(source)
    chunks = [_read(source / str(number)) for number in range(len(manifest.chunks))]
    for number, (chunk, expected) in enumerate(zip(chunks, manifest.chunks, strict=True)):
        if entry_of(chunk) != expected:
            raise weight_encoding.damaged(f"chunk {number} is not what the manifest says")
    return weight_encoding.received(manifest, b"".join(chunks))


def write(parameters: Weights, out: Path, bundle: Path | None) -> int:
    """Write parameters as `.safetensors`, or as the `.onnx` inference model of a bundle; return the size.

    Raises ConfigError when a model is wanted and no bundle is named, or the name has another ending;
    RefusedError when the parameters are not those of the bundle's network.
    """
    if out.suffix == ".safetensors":
        from safetensors.numpy import save

        content = bytes(save(parameters))
    elif out.suffix == ".onnx" and bundle is not None:
        content = _model(parameters, Bundle.open(bundle))
    else:
        raise ConfigError(
            "is neither .safetensors nor, with --bundle, .onnx", where=str(out), remedy="name another file"
        )
    try:
        return out.write_bytes(content)
    except OSError as problem:
        raise StorageError(f"cannot be written: {problem.strerror}", where=str(out)) from problem


def _model(parameters: Weights, bundle: Bundle) -> bytes:
    base = BaseModel(bundle)
    own = {name: value.shape for name, value in base.parameters().items()}
    if {name: value.shape for name, value in parameters.items()} != own:
        raise RefusedError("the weights are not those of this bundle's network", where=str(bundle.path))
    return bytes(base.with_parameters(parameters))


def _file(path: Path) -> Weights:
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            return dict(load(_read(path)))
        except SafetensorError as problem:
            raise StorageError(f"not a safetensors file: {problem}", where=str(path)) from None
    return weight_encoding.unpack(_read(path))


def _manifest(folder: Path) -> TransferManifest:
    found = [folder / name for name in MANIFESTS if (folder / name).is_file()]
    if not found:
        raise StorageError(
            "the directory has no manifest", where=str(folder), remedy="save all published messages"
        )
    try:
        manifest = json.loads(_read(found[0]))
    except ValueError:
        manifest = None
    if not isinstance(manifest, dict):
        raise StorageError("is not a JSON object", where=str(found[0]))
    return TransferManifest.from_json(manifest)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise StorageError(f"cannot be read: {problem.strerror}", where=str(path)) from problem
