"""What an exported ONNX model says of itself: names of its numbers, its version, where it comes from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from edged import __version__
from edged.domain.bundle_contents import BundleContents
from edged.domain.stream.schema import Schema
from edged.engines.onnx.fields import PREFIX, input_width, with_metadata
from edged.storage.models.records import ModelRecord


@dataclass(frozen=True)
class ModelMetadata:
    """Entries of an exported model: names of a stream or bundle, and its record; None where it has none.

    `features`, `units`, `classes`, `target_units` and `context` are as in the configuration's section stream.
    A model whose rows do not have `width` values was trained without context; None: not looked at.
    """

    features: Sequence[str] = ()
    units: Sequence[str] = ()
    classes: Sequence[str] = ()
    target_units: Sequence[str] = ()
    context: Sequence[float] = ()
    record: ModelRecord | None = None
    width: int | None = None

    @classmethod
    def of_stream(cls, schema: Schema, record: ModelRecord) -> ModelMetadata:
        """Read the names from a configuration."""
        classes = schema.named_classes if schema.open is None else tuple(schema.classes)
        return cls(
            schema.names, schema.units, classes, schema.target_units, schema.context, record, schema.width
        )

    @classmethod
    def of_bundle(cls, bundle: BundleContents, record: ModelRecord | None = None) -> ModelMetadata:
        """Read the names from a bundle."""
        inputs, outputs = bundle.input, bundle.output
        return cls(inputs.names, inputs.units, outputs.names, outputs.units, bundle.context, record)

    @property
    def entries(self) -> dict[str, str]:
        """Return the entries by name; lists as JSON, unknown ones left out."""
        lists = {
            "features": self.features, "units": self.units, "classes": self.classes,
            "target_units": self.target_units, "context": self.context,
        }  # fmt: skip
        names = {name: json.dumps(list(given), ensure_ascii=False) for name, given in lists.items() if given}
        return {
            f"{PREFIX}{name}": value
            for name, value in ({"version": __version__} | names | self._lineage()).items()
        }

    def _lineage(self) -> dict[str, str]:
        record = self.record
        if record is None:
            return {}
        created = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="seconds")
        lineage = {"model_version": record.version, "parent": record.parent, "run": record.run}
        data = {"samples": record.data.samples, "first_offset": record.data.first_offset,
                "last_offset": record.data.last_offset, "bundle": record.data.bundle}  # fmt: skip
        known = {name: value for name, value in (lineage | data).items() if value is not None}
        return {name: str(value) for name, value in known.items()} | {
            "source": record.source,
            "created": created,
        }

    def stamp(self, content: bytes) -> bytes:
        """Return a model with these entries."""
        bare = self.width is not None and input_width(content) != self.width
        return with_metadata(content, (replace(self, context=()) if bare else self).entries)
