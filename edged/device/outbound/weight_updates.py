"""Updates of weights as they leave the device: whole, or as differences that follow on each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from edged.domain.training.update_manifest import UpdateBase, UpdateDescription, UpdateSamples
from edged.domain.training.weight_deltas import Coding, changes, code, decode, fingerprint
from edged.errors import RefusedError
from edged.mqtt import update_encoding, weight_encoding
from edged.storage.models.sent_updates import SentUpdates

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edged.config import Config
    from edged.domain.json_fields import JsonObject
    from edged.domain.training.update_manifest import TransferManifest
    from edged.domain.training.weight_deltas import Coded, Dtype
    from edged.storage.models.active_bundle import ActiveBundle
    from edged.storage.models.registry import Registry

    Weights = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class WeightUpdate:
    """One update of a model version, ready to be sent in `chunks`, whose checksums `content` has.

    `number` is its number among the stored ones; None where it is not stored.
    """

    about: UpdateDescription
    content: TransferManifest
    chunks: list[bytes]
    number: int | None = None

    def manifest(self) -> JsonObject:
        """Return the manifest that is published after the chunks."""
        return {**self.about.to_json(), **self.content.to_json()}


@dataclass(frozen=True)
class UpdateRequest:
    """Kind of update that is requested; `base` is `last`, `bundle` or a model version."""

    mode: Literal["full", "delta"]
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
        self._sent = SentUpdates(config.storage.dir, UpdateDescription)

    def wish(
        self,
        mode: Literal["full", "delta"] | None = None,
        dtype: Dtype | None = None,
        base: str | int | None = None,
    ) -> UpdateRequest:
        """Return the configured kind of update, changed by the values that are given."""
        config = self._config.weights
        mode, dtype = mode or config.mode, dtype or config.dtype
        step = config.step if mode == "delta" and dtype == "int8" else 0.0
        return UpdateRequest(mode, Coding(dtype, step), config.base if base is None else base)

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
            base = UpdateBase(before.about.version, fingerprint(held))
            coded, held = changes(current, held, wish.coding, self._bundles.open().frozen)
        else:
            coded, held = code(current, Coding()), current
        about = self._about(version, wish, base, held)
        sent = self._sent.add(about, update_encoding.pack(coded), held)
        return self._cut(about, sent.blob, sent.number)

    def again(self, after: int) -> WeightUpdate | None:
        """Return the newest stored update if its number is larger than `after`."""
        sent = self._sent.newest()
        if sent is None or sent.number <= after:
            return None
        return self._cut(sent.about, sent.blob, sent.number)

    def requested(self, version: int, wish: UpdateRequest) -> WeightUpdate:
        """Make the update of one version as requested; the same request gives the same bytes.

        Raises RefusedError when a difference to what went before is asked for and is no longer kept;
        EdgedError when a model cannot be read.
        """
        if wish.mode == "delta" and wish.base == "last":
            sent = next((sent for sent in self._sent.all() if sent.about.version == version), None)
            if sent is None:
                raise RefusedError(
                    "no update of it that follows on another is kept",
                    where=f"version {version}",
                    remedy='ask for "mode": "full", or for another base: "bundle" or a version',
                )
            return self._cut(sent.about, sent.blob)
        current = self._parameters(version)
        if wish.mode == "full":
            return self._whole(version, current, wish)
        base = self._base(wish.base)
        if not _alike(base, current):
            raise RefusedError("has other parameters than its base", where=f"version {version}")
        coded, held = changes(current, base, wish.coding, self._bundles.open().frozen)
        named = UpdateBase(wish.base, fingerprint(base))
        return self._cut(self._about(version, wish, named, held), update_encoding.pack(coded))

    def _whole(self, version: int, current: Weights, wish: UpdateRequest) -> WeightUpdate:
        dtype = wish.coding.dtype
        if dtype == "float32":
            kept = self._folder(version) / weight_encoding.FILE
            device = {"device": self._config.device.id}
            blob = kept.read_bytes() if kept.exists() else weight_encoding.pack(current, device)
            return self._cut(self._about(version, wish, None, current, weight_encoding.ENCODING), blob)
        coded: dict[str, Coded] = code(current, Coding(dtype), self._bundles.open().frozen)
        return self._cut(self._about(version, wish, None, decode(coded)), update_encoding.pack(coded))

    def _cut(self, about: UpdateDescription, blob: bytes, number: int | None = None) -> WeightUpdate:
        chunks = weight_encoding.split(blob, self._config.report.chunk)
        return WeightUpdate(about, weight_encoding.manifest(blob, chunks), chunks, number)

    def _about(
        self,
        version: int,
        wish: UpdateRequest,
        base: UpdateBase | None,
        held: Weights,
        encoding: str = weight_encoding.CODED,
    ) -> UpdateDescription:
        record = self._registry.get(version)
        origin = record.data
        return UpdateDescription(
            encoding=encoding,
            device=self._config.device.id,
            bundle=self._bundles.open().fingerprint,
            mode="full" if base is None else "delta",
            dtype=wish.coding.dtype if base is not None or wish.mode == "full" else "float32",
            base=base,
            parameters=fingerprint(held),
            created=record.created,
            data=UpdateSamples(origin.samples, origin.first_offset, origin.last_offset),
            metrics=record.metrics.reported(),
            version=version,
        )

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
