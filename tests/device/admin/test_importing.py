"""`edged import`: recorded data in a device's log, once, with labels, times and keys."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edged.config import loader
from edged.device.admin.importing import import_files
from edged.domain.stream.sample import Batch
from edged.errors import ConfigError, RefusedError
from edged.storage.files.atomic import DirectoryLock
from edged.storage.recordings.samples import FileReader
from tests.commands import COMMAND, edged, write_config
from tests.running_device import wait_until

START = 1.6e9
LEFT_OUT = (
    "3 of 6 rows are left out: 1 with a cell in column b that cannot be read, 1 with an empty cell or NaN,"
    " 1 with a key that does not have 1 to 256 characters; the first is line 4"
)
REFUSED = (
    "1 of 4 labels are left out: 1 with an unknown value (label 'broken' is none of the 2 classes ok, worn);"
    " the first is line 6"
)
STREAM: dict[str, Any] = {
    "topic": "sensors/pump", "features": ["a", "b"], "classes": ["ok", "worn"], "label": "state",
    "key": "machine", "ts": "at", "id": "sample",
}  # fmt: skip


def stored(folder: Path, columns: str = "x, key, ts, y, id") -> list[Any]:
    """Columns of all samples in the order of their offsets, features as a list."""
    with closing(sqlite3.connect(folder / "state" / "samples.db")) as db:
        rows = db.execute(f"SELECT {columns} FROM samples ORDER BY offset").fetchall()  # noqa: S608  the test's own
    return [
        tuple(np.frombuffer(c, "<f4").tolist() if isinstance(c, bytes) else c for c in row) for row in rows
    ]


def numbered(path: Path, rows: int) -> Path:
    """A file in which the first feature is the number of the row."""
    lines = (f"{START + i},m{i % 3},{i},{i / 7:.3f},{'worn' if i % 2 else 'ok'}" for i in range(rows))
    path.write_text("at,machine,a,b,state\n" + "\n".join(lines))
    return path


def each_once(folder: Path, rows: int) -> None:
    """The numbers of the rows are those of the stored samples, in their order."""
    numbers = [int(x[0]) for (x,) in stored(folder, "x")]
    assert numbers == list(range(rows))


def test_rows_become_samples_with_labels_times_keys_and_ids_and_only_once(tmp_path: Path) -> None:
    (tmp_path / "h.csv").write_text(
        "sample,at,machine,a,b,state\ns1,2020-09-13T12:26:40Z,m1,1,2,worn\ns2,1600000001,m2,3,4,\n"
        "s3,1600000002,m1,,6,ok\ns4,1600000003,m1,7,hot,ok\ns5,1600000004,m1,9,10,broken\n"
        "s6,1600000005,,11,12,ok\n"
    )
    config = write_config(tmp_path, STREAM, storage={"dir": str(tmp_path / "state")})
    answer = edged("import", config, tmp_path / "h.csv", "--json")
    assert answer.code == 0, answer
    assert answer.json == {
        "files": [
            {
                "file": str(tmp_path / "h.csv"),
                "samples": 3,
                "before": False,
                "warnings": [LEFT_OUT, REFUSED],
            }
        ],
        "samples": 3,
    }
    assert stored(tmp_path) == [
        ([1, 2, 0, 0, 0, 0, 0, 0], "m1", START, 1, "s1"),
        ([3, 4, 0, 0, 0, 0, 0, 0], "m2", START + 1, None, "s2"),
        ([9, 10, 8, 8, 8, 8, 8, 8], "m1", START + 4, None, "s5"),
    ]
    again = edged("import", config, tmp_path / "h.csv")
    assert (again.code, again.out.strip()) == (0, f"{tmp_path / 'h.csv'}: 3 samples: was imported before")
    assert len(stored(tmp_path)) == 3
    assert edged("status", config, "--json").json["samples"] == 3
    (entry,) = edged("audit", config, "--json").json["log"]
    assert (entry["command"], entry["request"]["name"]) == ("import", "h.csv")
    assert (entry["who"]["via"], entry["result"]) == ("command line", {"samples": 3})
    assert edged("wipe", config, "--samples", "--yes").code == 0
    assert edged("import", config, tmp_path / "h.csv", "--json").json["samples"] == 3, (
        "after a wipe it is new"
    )


def test_an_import_that_was_begun_for_another_stream_is_refused(tmp_path: Path) -> None:
    data = numbered(tmp_path / "h.csv", 9000)
    storage = {"dir": str(tmp_path / "state")}
    loaded = loader.load(write_config(tmp_path, STREAM, storage=storage))

    def cut_off(_file: str, _stored: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_files(loaded, [data], on_progress=cut_off)
    begun = len(stored(tmp_path))
    assert 0 < begun < 9000
    other = loader.load(write_config(tmp_path, {**STREAM, "ts": None}, storage=storage))
    with pytest.raises(RefusedError, match=f"started with another configuration, {begun:,} samples"):
        import_files(other, [data])
    told = import_files(loaded, [data])
    assert told.samples == 9000
    each_once(tmp_path, 9000)


@pytest.mark.parametrize(
    ("stream", "says"),
    [
        ({"features": ["a", "c"]}, "there is no column 'c'"),
        ({"features": 3}, "has 2 columns of features, the stream 3"),
        (
            {"features": ["a", "b"], "window": {"size": 4, "rate": 1.0}},
            "has no times, which stream.window.rate",
        ),
    ],
)
def test_a_file_that_does_not_fit_the_stream_is_refused(
    stream: dict[str, Any], says: str, tmp_path: Path
) -> None:
    (tmp_path / "h.csv").write_text("a,b,y\n1,2,0\n")
    config = write_config(tmp_path, {"classes": 2, **stream}, storage={"dir": str(tmp_path / "state")})
    with pytest.raises(ConfigError, match=says):
        import_files(loader.load(config), [tmp_path / "h.csv"])


def test_windows_and_forecasts_are_those_of_the_daemon(tmp_path: Path) -> None:
    (tmp_path / "h.csv").write_text("a,t\n" + "\n".join(f"{i},{i}" for i in range(8)))
    window: dict[str, Any] = {"features": 1, "classes": 2, "window": {"size": 4, "stride": 2}}
    forecast: dict[str, Any] = {"features": 1, "task": {"forecast": {"horizon": 3}}}
    found = []
    for stream in (window, forecast):
        loaded = loader.load(write_config(tmp_path, stream))
        batch = Batch.joined(list(_batches(loaded.stream, tmp_path / "h.csv")))
        found.append((batch.x.tolist(), batch.ts.tolist(), batch.labels))
    assert found[0] == ([[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7]], [3, 5, 7], [None] * 3)
    assert [label for label in found[1][2] if label is not None] == [3, 4, 5, 6, 7]
    assert [row[0] for row in found[1][0]] == list(range(8))


def _batches(stream: Any, path: Path) -> Iterator[Any]:
    return FileReader(stream, START).batches(path, "csv")


# ---- kill -9 ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kills", "rows"),
    [
        pytest.param(5, 60_000, marks=pytest.mark.timeout(200)),
        pytest.param(50, 600_000, marks=[pytest.mark.faults, pytest.mark.timeout(1200)]),
    ],
)
def test_every_row_is_stored_once_however_often_the_command_is_killed(
    kills: int, rows: int, tmp_path: Path
) -> None:
    data = numbered(tmp_path / "h.csv", rows)
    config = write_config(tmp_path, STREAM, storage={"dir": str(tmp_path / "state")})
    rng = np.random.default_rng(kills)
    for goal in np.sort(rng.integers(0, rows * 4 // 5, kills)):
        command = subprocess.Popen([*COMMAND, "import", str(config), str(data)])
        wait_until(lambda: command.poll() is not None or _count(tmp_path) > goal, 60)  # noqa: B023  waited for
        assert command.poll() is None, "it was killed on the way"
        command.send_signal(signal.SIGKILL)
        command.wait()
    assert _count(tmp_path) < rows
    assert edged("import", config, data, "--json").json["samples"] == rows
    each_once(tmp_path, rows)


def _count(folder: Path) -> int:
    try:
        with closing(sqlite3.connect(f"file:{folder / 'state' / 'samples.db'}?mode=ro", uri=True)) as db:
            return int(db.execute("SELECT samples FROM tally").fetchone()[0])
    except sqlite3.OperationalError:  # there is none yet
        return 0


def test_a_running_daemon_refuses_an_import(tmp_path: Path) -> None:
    data, state = numbered(tmp_path / "h.csv", 10), tmp_path / "state"
    loaded = loader.load(write_config(tmp_path, STREAM, storage={"dir": str(state)}))
    with DirectoryLock(state), pytest.raises(RefusedError, match="stop it first"):
        import_files(loaded, [data])
    assert import_files(loaded, [data]).samples == 10
