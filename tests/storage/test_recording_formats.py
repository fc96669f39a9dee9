"""Every format by the same rules: text labels, times, keys, and what is no number."""

from __future__ import annotations

import gzip
import json
import math
import sqlite3
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edged.errors import ConfigError
from edged.storage.recordings.reader import open_source, read_stream
from edged.storage.recordings.rows import LeftOut, Recording, Wanted, find_roles, row_blocks

START = 1_767_323_045.5
ROWS: list[dict[str, Any]] = [
    {
        "time": START + i,
        "key": "ab"[i % 2],
        "temp": 20.0 + i,
        "vib": None if i == 2 else -i / 4,
        "state": state,
    }
    for i, state in enumerate(["ok", "worn", "ok", "ok"])
]


def csv_file(path: Path) -> Path:
    lines = [",".join("" if cell is None else str(cell) for cell in row.values()) for row in ROWS]
    path.with_suffix(".csv").write_text("\n".join([",".join(ROWS[0]), *lines]))
    return path.with_suffix(".csv")


def json_lines(path: Path) -> Path:
    file = path.with_suffix(".jsonl")
    stamped = [{**row, "time": datetime.fromtimestamp(row["time"], timezone.utc).isoformat()} for row in ROWS]
    file.write_text("\n".join(json.dumps(row) for row in stamped) + "\n\n")
    return file


def line_protocol(path: Path) -> Path:
    file = path.with_suffix(".lp.gz")
    lines = ["# by telegraf"]
    for row in ROWS:
        numbers = "".join(f"{name}={row[name]}," for name in ("temp", "vib") if row[name] is not None)
        lines.append(f'pump,key={row["key"]} {numbers}state="{row["state"]}" {int(row["time"] * 1e9)}')
    file.write_bytes(gzip.compress("\n".join(lines).encode()))
    return file


def parquet(path: Path) -> Path:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = path.with_suffix(".parquet")
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    columns["time"] = [int(at * 1e9) for at in columns["time"]]
    table = arrow.table(columns)
    stamps = table["time"].cast(arrow.timestamp("ns"))
    parquet.write_table(table.set_column(0, "time", stamps), file)
    return file


def numpy_arrays(path: Path) -> Path:
    file = path.with_suffix(".npz")
    np.savez(
        file,
        X=np.array([[row["temp"], math.nan if row["vib"] is None else row["vib"]] for row in ROWS]),
        y=[row["state"] for row in ROWS],
        t=[row["time"] for row in ROWS],
        key=[row["key"] for row in ROWS],
    )
    return file


@pytest.mark.parametrize("write", [csv_file, json_lines, line_protocol, parquet, numpy_arrays])
def test_the_same_rows_are_the_same_stream_in_every_format(write: Any, tmp_path: Path) -> None:
    found = read_stream(write(tmp_path / "rows"))
    np.testing.assert_array_equal(found.x, np.array([[20, 0], [21, -0.25], [22, np.nan], [23, -0.75]], "f"))
    assert found.classes == ("ok", "worn")
    assert (None if found.y is None else found.y.tolist()) == [0, 1, 0, 0]
    assert (None if found.t is None else found.t.tolist()) == [START + i for i in range(4)]
    assert found.key == ["a", "b", "a", "b"]
    assert found.left_out() == "1 of 4 rows are left out: 1 with an empty cell or NaN; the first is row 2"


def written(path: Path, name: str, *lines: str) -> Path:
    (path / name).write_text("\n".join(lines) + "\n")
    return path / name


def test_fields_within_objects_and_arrays_have_paths(tmp_path: Path) -> None:
    file = written(
        tmp_path, "s.jsonl", '{"vib":{"x":1,"rms":[2,3]},"label":"ok","ts":1}', '{"vib":{"x":4,"rms":[5,6]}}'
    )
    assert read_stream(file).names == ("vib.x", "vib.rms.0", "vib.rms.1", "ts")
    found = read_stream(file, features=("vib.rms.1", "vib.x"))
    assert (found.x.tolist(), found.names) == ([[3, 1], [6, 4]], ("vib.rms.1", "vib.x"))
    assert found.y is not None
    assert np.isnan(found.y).tolist() == [False, True]


def test_fields_of_line_protocol_have_the_names_of_telegraf_too(tmp_path: Path) -> None:
    file = written(tmp_path, "s.lp", "cpu,host=a idle=98.5,busy=t 5000000000", "mem used=3i 6000000000")
    for name in ("idle", "fields.idle", "cpu.idle"):
        found = read_stream(file, features=(name,), key="tags.host")
        np.testing.assert_array_equal(found.x, np.array([[98.5], [np.nan]], np.float32))
        assert found.key == ["a", ""]
    assert read_stream(file, features=("busy",)).x[0].tolist() == [1.0]
    with pytest.raises(ConfigError, match=r"there is no column .idel.+did you mean idle"):
        read_stream(file, features=("idel",))


@pytest.mark.parametrize(
    ("name", "lines", "says"),
    [
        ("s.jsonl", ['{"a":1}', "[2]"], "line 2: is not a JSON object"),
        ("s.jsonl", ["a,b", "1,2"], "line 1: no line of it is a JSON object"),
        ("s.jsonl", ['{"a":1}', '{"a":"hot"}'], "line 2, column a: 'hot' is not a number"),
        ("s.lp", ["m v=1", "m v="], "line 2: is not line protocol"),
        ("s.lp", [], "has no feature column"),
        ("s.db", ["no database"], "the database cannot be read"),
        ("s.xlsx", ["?"], "give an .npz, .csv, .parquet"),
    ],
)
def test_a_file_that_is_no_such_file_is_told_with_the_place(
    name: str, lines: list[str], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_stream(written(tmp_path, name, *lines))
    assert says in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / name))


def test_rows_that_cannot_be_read_are_counted_where_that_is_asked_for(tmp_path: Path) -> None:
    file = written(tmp_path, "s.jsonl", '{"a":1,"t":1}', "{", '{"a":"hot","t":2}', '{"a":2,"t":"soon"}')
    counted = LeftOut()
    with open_source(file, "jsonl") as source:
        roles = find_roles(source, Wanted())
        blocks = list(row_blocks(source, roles, counted))
    assert [block.x.tolist() for block in blocks] == [[[1.0]]]
    assert counted.line("line") == (
        "3 of 4 rows are left out: 1 with malformed content, 1 with a cell in column a that cannot be read,"
        " 1 with a cell in column t that cannot be read; the first is line 2"
    )


def test_times_in_milliseconds_are_times(tmp_path: Path) -> None:
    found = read_stream(written(tmp_path, "s.csv", "t,a", f"{START * 1000},1"))
    assert (None if found.t is None else found.t.tolist()) == [START]


# ---- Home Assistant ------------------------------------------------------------------------------

STATES = [
    ("sensor.temp", "20.5", START),
    ("sensor.hum", "unavailable", START + 1),
    ("sensor.temp", "21", START + 2),
]


def recorder(path: Path) -> Path:
    """A database of the recorder."""
    file = path / "home-assistant_v2.db"
    with closing(sqlite3.connect(file)) as db:
        db.execute("CREATE TABLE states_meta (metadata_id INTEGER PRIMARY KEY, entity_id TEXT)")
        db.execute(
            "CREATE TABLE states (state_id INTEGER PRIMARY KEY, entity_id TEXT, state TEXT,"
            " last_updated TEXT, last_updated_ts REAL, metadata_id INTEGER)"
        )
        db.execute("INSERT INTO states_meta VALUES (1, 'sensor.temp'), (2, 'sensor.hum')")
        db.executemany(
            "INSERT INTO states (metadata_id, state, last_updated_ts) VALUES (?, ?, ?)",
            [(1 if entity == "sensor.temp" else 2, state, at) for entity, state, at in STATES],
        )
        db.commit()
    return file


def test_the_recorder_of_home_assistant_is_read_in_the_order_of_time(tmp_path: Path) -> None:
    found: Recording = read_stream(recorder(tmp_path), features=("sensor.temp", "sensor.hum"))
    np.testing.assert_array_equal(
        found.x, np.array([[20.5, np.nan], [np.nan, np.nan], [21, np.nan]], np.float32)
    )
    assert found.t is not None
    np.testing.assert_allclose(found.t, [START, START + 1, START + 2], rtol=0, atol=1e-3)
    assert found.columns == ("sensor.hum", "sensor.temp", "time")
