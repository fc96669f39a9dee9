"""Single parameters of a bundle: looked at, taken out, put in."""

from __future__ import annotations

import math
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from edged.artifacts.forms import BASE
from edged.artifacts.portable import raw_offsets
from edged.engines import training_checkpoint
from edged.engines.base_model import BaseModel
from edged.errors import BundleError, ConfigError
from edged.modelfiles import FLOAT32, INT8
from edged.storage.bundles import Bundle, publish, seal
from edged.storage.files import STAGING, disk_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

Floats = NDArray[np.float32]


def table(path: Path) -> list[dict[str, Any]]:
    """Of each parameter `name`, `shape`, `size`, `trainable`, and `min`, `max`, `mean`, `std` of its values.

    Raises
    ------
    BundleError, CorruptError
        When the bundle cannot be read.
    """
    bundle = Bundle.open(path)
    return [
        {
            "name": name,
            "shape": list(value.shape),
            "size": value.size,
            "trainable": name in bundle.trainable,
            **{what: float(getattr(value, what)()) for what in ("min", "max", "mean", "std")},
        }
        for name, value in _read(bundle).items()
    ]


def get(path: Path, name: str) -> Floats:
    """The initial value of a parameter; ConfigError when there is none of this name."""
    values = _read(Bundle.open(path))
    if name not in values:
        raise _unknown(name, values)
    return values[name]


def put(path: Path, values: Mapping[str, NDArray[Any]]) -> Bundle:
    """Publish the bundle again, with other initial values for these parameters.

    Checkpoint and inference model are changed alike, so every engine begins with them.

    Raises
    ------
    ConfigError
        When a parameter is not known, or has another shape, or a number is not finite.
    BundleError, CorruptError, StorageError
        When the bundle cannot be read or written; the old one stays.
    """
    bundle = Bundle.open(path)
    known = _read(bundle)
    ready = {name: _fitting(name, value, known) for name, value in values.items()}
    staged = Path(tempfile.mkdtemp(prefix=f"{STAGING}{path.name}-", dir=path.resolve().parent))
    try:
        with disk_errors("changing the bundle", path):
            staged.chmod(0o755)
            for name in bundle.files:
                shutil.copyfile(path / name, staged / name)
            _change_forms(replace(bundle, path=staged), known | ready)
            _change(replace(bundle, path=staged), ready)
        seal(replace(bundle, path=staged), bundle.files)
        publish(staged, path)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return Bundle.open(path)


def _read(bundle: Bundle) -> dict[str, Floats]:
    """Every parameter by name, trainable ones first."""
    if bundle.checkpoint.is_file():
        try:
            held = training_checkpoint.load(bundle.checkpoint.read_bytes())
        except (OSError, training_checkpoint.FormatError) as problem:
            raise BundleError(
                f"the checkpoint cannot be read: {problem}", where=str(bundle.path)
            ) from problem
        return {**held.trainable, **held.frozen}
    initializers = onnx.load(str(bundle.path / BASE[FLOAT32])).graph.initializer
    arrays = {str(tensor.name): numpy_helper.to_array(tensor) for tensor in initializers}
    return {name: arrays[name] for name in (*bundle.trainable, *bundle.frozen) if name in arrays}


def _change_forms(bundle: Bundle, values: Mapping[str, Floats]) -> None:
    for form in (FLOAT32, INT8):
        base = BaseModel.of_form(bundle, form)
        if base is not None:
            base.path.write_bytes(base.with_parameters(values))


def _change(bundle: Bundle, values: Mapping[str, Floats]) -> None:
    if bundle.checkpoint.is_file():
        held = training_checkpoint.load(bundle.checkpoint.read_bytes())
        trainable, frozen = (
            {name: values.get(name, value) for name, value in part.items()}
            for part in (held.trainable, held.frozen)
        )
        changed = replace(held, trainable=trainable, frozen=frozen)
        bundle.checkpoint.write_bytes(training_checkpoint.dump(changed))
    plain = bundle.path / BASE[FLOAT32]
    content = bytearray(plain.read_bytes())
    places = dict(raw_offsets(bytes(content)))
    for name, value in values.items():
        if name in places:  # statistics of the target are known to training alone
            content[places[name] : places[name] + 4 * math.prod(value.shape)] = value.astype("<f4").tobytes()
    plain.write_bytes(content)


def _fitting(name: str, value: NDArray[Any], known: Mapping[str, Floats]) -> Floats:
    if name not in known:
        raise _unknown(name, known)
    if value.shape != known[name].shape:
        raise ConfigError(
            f"has shape {list(value.shape)}, the model takes {list(known[name].shape)}", where=name
        )
    made = np.asarray(value, np.float32)
    if not np.isfinite(made).all():
        raise ConfigError("holds a number that is not finite", where=name)
    return made


def _unknown(name: str, known: Mapping[str, Floats]) -> ConfigError:
    return ConfigError("there is no such parameter", where=name, remedy=f"parameters: {', '.join(known)}")
