"""Updates of weights as they leave the device: whole, or as differences that follow on each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edged.domain.lean_dataclasses import dataclass
from edged.domain.training.weight_deltas import Coding, changes, code, decode, fingerprint
from edged.errors import RefusedError
from edged.mqtt import update_encoding, weight_encoding
from edged.storage.models.sent_updates import SentUpdates

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edged.config import Config
    from edged.domain.training.weight_deltas import Coded
    from edged.storage.models.active_bundle import ActiveBundle
    from edged.storage.models.registry import Registry

    Weights = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class WeightUpdate:
    """One update of a model version, ready to be sent; `number` is its number among the stored ones."""

    version: int
    blob: bytes
    chunks: list[bytes]
    manifest: Mapping[str, Any]
    number: int | None = None


@dataclass(frozen=True)
class UpdateRequest:
    """Kind of update that is requested; `base` is `last`, `bundle` or a model version."""

    mode: str
    coding: Coding
    base: str | int


class WeightUpdates:
    """Makes updates from the models of the registry, as section `weights` says.

    `bundles` knows the bundle that the models belong to.
    """

    def __init__(self, config: Config, bundles: ActiveBundle, registry: Registry) -> None:
        self._config = config
        self._bundles = bundles
        self._registry = registry
        self._sent = SentUpdates(config.storage.dir)

    def wish(self, **other: Any) -> UpdateRequest:
        """Return the configured kind of update, changed by the values that are given."""
        config, given = self._config.weights, {k: v for k, v in other.items() if v is not None}
        mode, dtype = given.get("mode", config.mode), given.get("dtype", config.dtype)
        step = config.step if mode == "delta" and dtype == "int8" else 0.0
        return UpdateRequest(mode, Coding(dtype, step), given.get("base", config.base))

    def next(self, version: int) -> WeightUpdate:
        """Make the update for a new champion, and store it durably if others follow on it.

        Raises EdgedError when the model cannot be read, or the disk refuses.
        """
        wish = self.wish()
        if wish.mode == "full" or wish.base != "last":
            return self.requested(version, wish)
        current, before = self._parameters(version), self._sent.newest()
        held = before.held() if before is not None else {}
        base = None
        if before is not None and _alike(held, current):
            base = {"version": before.about["version"], "sha256": fingerprint(held)}
            coded, held = changes(current, held, wish.coding, self._bundles.open().frozen)
        else:
            coded, held = code(current, Coding()), current
        about = self._about(version, wish, base, held)
        sent = self._sent.add({"version": version, **about}, update_encoding.pack(coded), held)
        return self._cut(version, sent.blob, about, sent.number)

    def again(self, after: int) -> WeightUpdate | None:
        """Return the newest stored update if its number is larger than `after`."""
        sent = self._sent.newest()
        if sent is None or sent.number <= after:
            return None
        return self._cut(sent.about["version"], sent.blob, sent.about, sent.number)

    def requested(self, version: int, wish: UpdateRequest) -> WeightUpdate:
        """Make the update of one version as requested; the same request gives the same bytes.

        Raises RefusedError when a difference to what went before is asked for and is no longer kept;
        EdgedError when a model cannot be read.
        """
        if wish.mode == "delta" and wish.base == "last":
            sent = self._sent.of_version(version)
            if sent is None:
                raise RefusedError(
                    "no update of it that follows on another is kept",
                    where=f"version {version}",
                    remedy='ask for "mode": "full", or for another base: "bundle" or a version',
                )
            return self._cut(version, sent.blob, sent.about)
        current = self._parameters(version)
        if wish.mode == "full":
            return self._whole(version, current, wish)
        base = self._base(wish.base)
        if not _alike(base, current):
            raise RefusedError("has other parameters than its base", where=f"version {version}")
        coded, held = changes(current, base, wish.coding, self._bundles.open().frozen)
        named = {"version": wish.base, "sha256": fingerprint(base)}
        return self._cut(version, update_encoding.pack(coded), self._about(version, wish, named, held))

    def _whole(self, version: int, current: Weights, wish: UpdateRequest) -> WeightUpdate:
        dtype = wish.coding.dtype
        if dtype == "float32":
            kept = self._folder(version) / weight_encoding.FILE
            device = {"device": self._config.device.id}
            blob = kept.read_bytes() if kept.exists() else weight_encoding.pack(current, device)
            return self._cut(
                version, blob, self._about(version, wish, None, current, weight_encoding.ENCODING)
            )
        coded: dict[str, Coded] = code(current, Coding(dtype), self._bundles.open().frozen)
        return self._cut(
            version, update_encoding.pack(coded), self._about(version, wish, None, decode(coded))
        )

    def _cut(
        self, version: int, blob: bytes, about: dict[str, Any], number: int | None = None
    ) -> WeightUpdate:
        chunks = weight_encoding.split(blob, self._config.report.chunk)
        more = {key: value for key, value in about.items() if key != "version"}
        return WeightUpdate(
            version, blob, chunks, weight_encoding.manifest(version, blob, chunks, **more), number
        )

    def _about(
        self,
        version: int,
        wish: UpdateRequest,
        base: dict[str, Any] | None,
        held: Weights,
        encoding: str = weight_encoding.CODED,
    ) -> dict[str, Any]:
        record = self._registry.get(version)
        origin = record.data
        return {
            "encoding": encoding,
            "device": self._config.device.id,
            "bundle": self._bundles.open().fingerprint,
            "mode": "full" if base is None else "delta",
            "dtype": wish.coding.dtype if base is not None or wish.mode == "full" else "float32",
            "base": base,
            "parameters": fingerprint(held),
            "created": record.created,
            "data": {
                "samples": origin.samples,
                "first_offset": origin.first_offset,
                "last_offset": origin.last_offset,
            },
            "metrics": record.metrics.reported(),
        }

    def _base(self, base: str | int) -> Weights:
        if base != "bundle":
            return self._parameters(int(base))
        from edged.engines.model_parameters import initial_parameters

        return initial_parameters(self._bundles.open())

    def _parameters(self, version: int) -> Weights:
        from edged.engines.model_parameters import parameters_of  # most devices never send weights

        return parameters_of(
            self._folder(version), self._bundles.open(), lambda blob: weight_encoding.unpack(blob)[0]
        )

    def _folder(self, version: int) -> Path:
        return self._registry.verify(version).parent


def _alike(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(one[name].shape == other[name].shape for name in one)
