"""Labels in cells of files, as messages have them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from edged.domain.labels.label_words import label_of
from edged.errors import RejectedSampleError
from edged.storage.recordings.rows import LeftOut, text

if TYPE_CHECKING:
    from edged.domain.stream.sample import LabelValue
    from edged.domain.stream.schema import Schema

_REMEMBERED = 1000


class LabelCells:
    """Reads labels; those that the stream does not know are counted in `refused`, their samples have none."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._known: dict[tuple[type, str], LabelValue] = {}
        self.refused = LeftOut()

    def label(self, cell: Any, row: int) -> LabelValue | None:
        """A name of a class, or a number, also one that is written as text; None for an empty cell."""
        stripped = text(cell)
        if self._schema.task in ("reconstruct", "forecast") or not stripped or stripped.lower() == "nan":
            return None
        self.refused.total += 1
        try:
            return self._known[type(cell), stripped]
        except KeyError:
            label = self._parsed(stripped if isinstance(cell, str) else cell, row)
            if label is not None and len(self._known) < _REMEMBERED:
                self._known[type(cell), stripped] = label
            return label

    def _parsed(self, value: Any, row: int) -> LabelValue | None:
        try:
            return label_of(value, self._schema)
        except RejectedSampleError as problem:
            if isinstance(value, str):
                with suppress(ValueError, RejectedSampleError):
                    return self._schema.parse_label(float(value))  # such as 1.0 for class 1
            self.refused.add(f"an unknown value ({problem.what})", row)
            return None
