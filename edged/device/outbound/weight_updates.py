"""Updates of weights as they leave the device: the whole weights of one model version."""

from __future__ import annotations

from dataclasses import dataclass

from edged.config import Config
from edged.domain.json_fields import JsonObject
from edged.domain.training.update_manifest import TransferManifest, UpdateDescription, UpdateSamples
from edged.domain.training.weight_coding import Dtype, Weights, code, decode, fingerprint
from edged.mqtt import weight_encoding
from edged.storage.models.bundle_archive import ActiveBundle
from edged.storage.models.registry import Registry


@dataclass(frozen=True)
class WeightUpdate:
    """One update of a model version, ready to be sent in `chunks`, whose checksums `content` has."""

    about: UpdateDescription
    content: TransferManifest
    chunks: list[bytes]

    def manifest(self) -> JsonObject:
        """Return the manifest that is published after the chunks."""
        return {**self.about.to_json(), **self.content.to_json()}


class WeightUpdates:
    """Makes updates from the models of the registry.

    `bundles` knows the bundle that the models belong to.
    """

    def __init__(self, config: Config, bundles: ActiveBundle, registry: Registry) -> None:
        self._config = config
        self._bundles = bundles
        self._registry = registry

    def update(self, version: int, dtype: Dtype | None = None) -> WeightUpdate:
        """Make the update of a model version in this number format, `weights.dtype` by default.

        The same request gives the same bytes. Raises EdgedError when the model cannot be read.
        """
        from edged.engines.model_parameters import parameters_of  # most devices never send weights

        dtype = dtype or self._config.weights.dtype
        folder, bundle = self._registry.verify(version).parent, self._bundles.open()
        weights = parameters_of(folder, bundle, weight_encoding.unpack)
        if dtype == "float32":
            stored, encoding = folder / weight_encoding.FILE, weight_encoding.ENCODING
            blob = stored.read_bytes() if stored.exists() else weight_encoding.pack(weights)
        else:
            coded, encoding = code(weights, dtype, bundle.frozen), weight_encoding.CODED
            blob, weights = weight_encoding.pack_coded(coded), decode(coded)
        chunks = weight_encoding.split(blob, self._config.weights.constants.chunk)
        about = self._describe(version, encoding, dtype, bundle.fingerprint, weights)
        return WeightUpdate(about, weight_encoding.manifest(blob, chunks), chunks)

    def _describe(
        self, version: int, encoding: str, dtype: Dtype, bundle: str, weights: Weights
    ) -> UpdateDescription:
        record = self._registry.get(version)
        origin = record.data
        return UpdateDescription(
            encoding=encoding,
            device=self._config.device.id,
            bundle=bundle,
            dtype=dtype,
            parameters=fingerprint(weights),
            created=record.created,
            data=UpdateSamples(origin.samples, origin.first_offset, origin.last_offset),
            metrics=record.metrics.reported(),
            version=version,
        )
