"""Manifests of what leaves a device or arrives in chunks: of updates of weights, of models and bundles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from typing_extensions import Self

from edged.domain.bundle_contents import FileEntry
from edged.domain.json_fields import Count, Digest
from edged.domain.training.message import Message, SparseMessage
from edged.errors import CorruptError, TrainingError


@dataclass(frozen=True)
class UpdateSamples(Message):
    """Samples that a model has newly learned from: how many, and their first and last offset."""

    samples: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None


@dataclass(frozen=True)
class UpdateDescription(Message):
    """What the manifest of an update says besides sizes and checksums: its coding, and its model."""

    encoding: str  # one of those of `edged.mqtt.weight_encoding`
    device: str  # id of the sender
    bundle: str  # fingerprint
    dtype: str
    parameters: str  # fingerprint of what a receiver has after it
    created: float  # Unix seconds
    data: UpdateSamples
    metrics: Mapping[str, object]  # the model's figures by name
    version: int


@dataclass(frozen=True)
class TransferManifest(SparseMessage):
    """What a receiver reads of a manifest: size in bytes and SHA-256 of a file and of each of its chunks.

    The others are as in `UpdateDescription`, None where the manifest does not say them.
    """

    bytes: Count
    sha256: Digest
    chunks: tuple[FileEntry, ...]
    encoding: str | None = None
    parameters: str | None = None

    @classmethod
    def from_json(cls, values: object) -> Self:
        """Read a manifest; raise CorruptError when sizes or checksums are missing.

        What it says of weights is checked when they are decoded.
        """
        try:
            return super().from_json(values)
        except TrainingError as problem:
            what = f"the manifest is not complete: {problem.line()}"
            raise CorruptError(what, where="weights", remedy="ask for the update again") from None
