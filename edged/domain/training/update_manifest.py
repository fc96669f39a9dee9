"""Manifests of what leaves a device or arrives in chunks: of updates of weights, of models and bundles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edged.domain.bundle_contents import FileEntry
from edged.domain.json_fields import JsonFields
from edged.domain.training.message import Message, SparseMessage
from edged.errors import CorruptError

if TYPE_CHECKING:
    from typing_extensions import Self


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

    bytes: int
    sha256: str
    chunks: tuple[FileEntry, ...]
    encoding: str | None = None
    parameters: str | None = None

    @classmethod
    def read(cls, fields: JsonFields) -> Self:
        """Read a manifest from outside; what it says of weights is checked when they are decoded."""

        def text(key: str) -> str:
            return str(fields.values[key])

        return cls(
            fields.count("bytes"),
            fields.digest("sha256"),
            tuple(FileEntry(chunk.count("bytes"), chunk.digest("sha256")) for chunk in fields.each("chunks")),
            fields.optional("encoding", text),
            fields.optional("parameters", text),
        )

    @classmethod
    def from_json(cls, values: object) -> Self:
        """Read a manifest; raises CorruptError when sizes or checksums are missing."""
        return cls.read(JsonFields(values, "manifest", _incomplete))


def _incomplete(_: str, what: str, where: str) -> CorruptError:
    what = f"the manifest is not complete: {where}: {what}"
    return CorruptError(what, where="weights", remedy="ask for the update again")
