"""Rows of files for streams whose samples are joined: each is a message that brings some of the features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from edged.config import StreamConfig
from edged.config.features import FeatureConfig
from edged.domain.labels.held_labels import HeldLabels, ends, label_of
from edged.domain.stream.joining import Joining
from edged.domain.stream.sample import HoldReading, LabelValue, Observation, Reading
from edged.domain.stream.schema import Schema
from edged.domain.stream.value_words import number_of
from edged.errors import ConfigError, RejectedSampleError
from edged.storage.recordings.rows import ABSENT, LeftOut, Roles, Source, Wanted, find_roles, seconds, text

_REMEMBERED = 1000  # labels


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


class JoinedRows:
    """The readings in rows of a file, in their order.

    `default_key` and `start` (Unix seconds, `spacing` more for each row) are for files without such columns.
    """

    def __init__(
        self,
        stream: StreamConfig,
        labels: LabelCells,
        left_out: LeftOut,
        *,
        default_key: str,
        start: float,
        spacing: float,
    ) -> None:
        self._stream, self._labels, self._left_out = stream, labels, left_out
        self._schema = stream.to_schema()
        self._default_key, self._start, self._spacing = default_key, start, spacing
        self._joining, self._held = Joining(stream.join_rules()), HeldLabels()
        self._hold = stream.near_label is not None and stream.near_label.hold

    def readings(self, source: Source, wanted: Wanted) -> Iterator[Reading]:
        """The samples that the rows of a file make; windows are not cut yet.

        A feature without a column is missing everywhere. Raises ConfigError when none has one, or samples by
        the clock have no times.
        """
        found = [(at, feature, _column(feature, self._stream.measured, source.names))
                 for at, feature in enumerate(self._stream.measured)]  # fmt: skip
        columns = list(dict.fromkeys(column for _, _, column in found if column is not None))
        names = tuple((name,) for name in columns) or ((self._stream.measured[0].name,),)
        roles = find_roles(
            source,
            Wanted(names, _label_column(self._stream, source.names), wanted.key, wanted.time, wanted.id),
        )
        if self._joining.rules.period is not None and "time" not in roles.others:
            raise ConfigError(
                "has no times, which stream.sample by the clock needs",
                remedy="add a column t, time or timestamp",
            )
        places = [(at, columns.index(column), feature.values)
                  for at, feature, column in found if column is not None]  # fmt: skip
        for count, (row, cells) in enumerate(source.rows(roles.columns)):
            self._left_out.total += 1
            if cells is None:
                self._left_out.add("malformed content", row)
                continue
            at = self._start + count * self._spacing
            if (time := roles.position("time")) is not None:
                moment = seconds(cells[time])
                if moment is None:
                    self._left_out.add(f"a cell in column {roles.others['time']} that cannot be read", row)
                    continue
                at = moment
            yield from self._row(row, cells, roles, places, at)

    def _row(
        self, row: int, cells: Sequence[Any], roles: Roles, places: Sequence[tuple[int, int, Any]], at: float
    ) -> list[Reading]:
        def cell(role: str) -> Any:
            place = roles.position(role)
            return ABSENT if place is None else cells[place]

        key = text(cell("key")) or self._default_key
        label = self._label(cell("label"), key, row, at)
        values, bad = [], False
        for feature, place, words in places:
            if cells[place] is not ABSENT:
                try:
                    values.append((feature, number_of(cells[place], words)))
                except RejectedSampleError:
                    bad = True
        if not values:
            if bad or cell("label") is ABSENT:
                self._left_out.add("no value of a feature", row)
            return []
        seen = Observation(key, values, at, label, text(cell("id")) or None)
        return [self._held.labelled(one, at) for one in self._joining.accept(seen, at)]

    def _label(self, cell: Any, key: str, row: int, at: float) -> LabelValue | None:
        """The label of a row; one that holds counts from there on instead."""
        if cell is ABSENT or not self._hold:
            return self._labels.label(cell, row)
        value = cell.strip() if isinstance(cell, str) else cell
        ended = ends(value, self._schema)
        label = None if ended else self._labels.label(value, row)
        if ended or label is not None:
            self._held.hold(HoldReading(key, label, at), at)
        return None


def _column(feature: FeatureConfig, others: Sequence[FeatureConfig], names: Sequence[str]) -> str | None:
    """The column of a feature: its name, its path where no other topic has the same, or its entity."""
    alone = feature.path if all(o.path != feature.path or o.topic == feature.topic for o in others) else None
    candidates = (feature.name, alone, _entity(feature.topic))
    return next((name for name in candidates if name is not None and name in names), None)


def _label_column(stream: StreamConfig, names: Sequence[str]) -> str | None:
    label = stream.near_label
    if label is None:
        return stream.label_path
    candidates = [name for name in (label.path, _entity(label.topic)) if name is not None]
    return next((name for name in candidates if name in names), label.path)


def _entity(topic: str | None) -> str | None:
    """The entity of Home Assistant that a topic of its statestream is of.

    >>> _entity("homeassistant/sensor/room/state")
    'sensor.room'
    """
    levels = (topic or "").split("/")
    return ".".join(levels[-3:-1]) if len(levels) > 2 and levels[-1] == "state" else None
