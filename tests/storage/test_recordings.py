from __future__ import annotations

import gzip
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edged.errors import ConfigError
from edged.storage.recordings.reader import read_stream

X = np.arange(6.0).reshape(3, 2)


def npz(path: Path, **columns: Any) -> Path:
    file = path / "stream.npz"
    np.savez(file, **columns)
    return file


def text(path: Path, content: str, name: str = "stream.csv") -> Path:
    file = path / name
    file.write_text(content, encoding="utf-8")
    return file


def refusal(file: Path) -> str:
    """The one line that a person reads when `file` is given."""
    with pytest.raises(ConfigError) as caught:
        read_stream(file)
    line = str(caught.value)
    assert str(file) in line
    assert "\n" not in line
    return line


# ---- npz -----------------------------------------------------------------------------------------


def test_npz_with_everything(tmp_path: Path) -> None:
    file = npz(tmp_path, X=X, y=[0, 1, 0], t=[10, 20, 30], key=["a", "b", "a"], names=["u", "v"], extra=[1])
    stream = read_stream(file)
    assert len(stream) == 3
    assert stream.x.dtype == np.float32
    np.testing.assert_array_equal(stream.x, X)
    assert stream.y is not None
    assert stream.t is not None
    assert stream.y.dtype == stream.t.dtype == np.float64
    assert stream.y.tolist() == [0.0, 1.0, 0.0]
    assert stream.t.tolist() == [10.0, 20.0, 30.0]
    assert stream.key == ["a", "b", "a"]
    assert stream.names == ("u", "v")
    assert stream.classes == ()


def test_npz_with_features_only(tmp_path: Path) -> None:
    stream = read_stream(npz(tmp_path, X=X.astype(np.uint8)))
    assert (stream.y, stream.t, stream.key, stream.names) == (None, None, None, ())


def test_windows_of_channels_become_rows(tmp_path: Path) -> None:
    windows = np.arange(24.0).reshape(2, 3, 4)
    stream = read_stream(npz(tmp_path, X=windows))
    assert stream.x.shape == (2, 12)
    np.testing.assert_array_equal(stream.x, windows.reshape(2, 12))
    assert stream.x.flags.c_contiguous


def test_one_dimension_is_one_feature(tmp_path: Path) -> None:
    assert read_stream(npz(tmp_path, X=np.arange(5))).x.shape == (5, 1)


def test_targets_of_several_values(tmp_path: Path) -> None:
    stream = read_stream(npz(tmp_path, X=X, y=np.ones((3, 2))))
    assert stream.y is not None
    assert stream.y.shape == (3, 2)


def test_a_column_of_targets_is_flat(tmp_path: Path) -> None:
    stream = read_stream(npz(tmp_path, X=X, y=np.ones((3, 1))))
    assert stream.y is not None
    assert stream.y.shape == (3,)


def test_text_labels_of_an_npz_are_classes(tmp_path: Path) -> None:
    stream = read_stream(npz(tmp_path, X=X, y=["worn", "ok", "worn"]))
    assert stream.classes == ("ok", "worn")
    assert stream.y is not None
    assert stream.y.tolist() == [1.0, 0.0, 1.0]


def test_dates_are_unix_seconds(tmp_path: Path) -> None:
    t = np.array(["1970-01-01T00:00:01.5", "1970-01-02", "1970-01-03"], "datetime64[ms]")
    stream = read_stream(npz(tmp_path, X=X, t=t))
    assert stream.t is not None
    assert stream.t.tolist() == [1.5, 86400.0, 172800.0]


def test_nan_and_overflow_are_left_for_the_loop_to_refuse(tmp_path: Path) -> None:
    stream = read_stream(npz(tmp_path, X=[[np.nan], [1e300]]))
    assert np.isnan(stream.x[0, 0])
    assert np.isinf(stream.x[1, 0])


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"y": [1]}, "no array X, only y"),
        ({"X": X, "y": [1, 2]}, "y has 2 rows, X has 3"),
        ({"X": X, "y": 1}, "y is a single value, X has 3"),
        ({"X": X, "t": [1.0]}, "t has 1 rows, X has 3"),
        ({"X": X, "t": X}, "t has the shape (3, 2)"),
        ({"X": X, "key": ["a"]}, "key has 1 rows, X has 3"),
        ({"X": X, "t": [0.0, np.nan, 1.0]}, "t[1]: is not a time"),
        ({"X": X, "t": np.array(["NaT"] * 3, "datetime64[s]")}, "t[0]: is not a time"),
        ({"X": X, "t": ["a", "b", "c"]}, "not times"),
        ({"X": ["a", "b"]}, "not numbers"),
        ({"X": X, "y": [1j, 2j, 3j]}, "complex128"),
        ({"X": X, "y": np.empty((3, 0))}, "of shape (3, 0)"),
        ({"X": 5.0}, "single number"),
        ({"X": np.empty((0, 4))}, "no samples"),
        ({"X": np.empty((4, 0))}, "no features"),
        ({"X": X, "names": ["one"]}, "does not name 2 features"),
    ],
)
def test_npz_refusals(tmp_path: Path, columns: dict[str, Any], said: str) -> None:
    assert said in refusal(npz(tmp_path, **columns))


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")


def test_object_arrays_are_refused_and_never_unpickled(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    assert "cannot be loaded" in refusal(npz(tmp_path, X=np.array([Bomb(str(trap))], object)))
    file = tmp_path / "plain.npz"
    file.write_bytes(pickle.dumps(Bomb(str(trap))))
    assert "is no npz file" in refusal(file)
    assert not trap.exists()


@pytest.mark.parametrize("keep", [3, 100, 400])
def test_a_cut_off_npz_is_refused(tmp_path: Path, keep: int) -> None:
    file = npz(tmp_path, X=np.zeros((30, 2)), y=np.zeros(30))
    file.write_bytes(file.read_bytes()[:keep])
    assert str(file) in refusal(file)


def test_a_damaged_array_is_refused(tmp_path: Path) -> None:
    file = npz(tmp_path, X=np.full((300, 2), 7.0))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    assert "damaged" in refusal(file)


# ---- csv -----------------------------------------------------------------------------------------

CSV = """Time,temp,key,vib,State,LABEL
2026-01-02T03:04:05Z,20.5,a,1,7,ok
2026-01-02 03:04:06,21,b,-2e-1,8,worn

1767323047.5,22,"a,1",3,9,ok
"""


def test_csv_with_everything(tmp_path: Path) -> None:
    stream = read_stream(text(tmp_path, "\ufeff" + CSV))
    assert stream.names == ("temp", "vib", "State")
    np.testing.assert_array_equal(stream.x, np.array([[20.5, 1, 7], [21, -0.2, 8], [22, 3, 9]], np.float32))
    assert stream.x.dtype == np.float32
    assert stream.t is not None
    assert stream.t.tolist() == [1767323045.0, 1767323046.0, 1767323047.5]
    assert stream.key == ["a", "b", "a,1"]
    assert stream.classes == ("ok", "worn")
    assert stream.y is not None
    assert stream.y.tolist() == [0.0, 1.0, 0.0]


def test_gzip_holds_the_same(tmp_path: Path) -> None:
    file = tmp_path / "stream.csv.gz"
    file.write_bytes(gzip.compress(CSV.encode()))
    plain, packed = read_stream(text(tmp_path, CSV)), read_stream(file)
    np.testing.assert_array_equal(plain.x, packed.x)
    assert plain.key == packed.key


def test_the_last_label_column_is_the_label(tmp_path: Path) -> None:
    stream = read_stream(text(tmp_path, "x,y,z,label\n1,2,3,0\n4,5,6,1\n"))
    assert stream.names == ("x", "y", "z")
    assert stream.y is not None
    assert stream.y.tolist() == [0.0, 1.0]
    assert stream.classes == ()


def test_csv_without_label(tmp_path: Path) -> None:
    stream = read_stream(text(tmp_path, "a\n1\n2\n"))
    assert stream.x.tolist() == [[1.0], [2.0]]
    assert stream.y is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is no header"),
        ("y\n1\n", "has no feature column"),
        ("a,b\n", "holds no samples"),
        ("1,2\n3,4\n", "is no header"),
        ("a;b;y\n1;2;0\n", "columns are separated by ';'"),
        ("a\tb\n1\t2\n", "columns are separated by '\\t'"),
        (",a\n0,1\n", "column 1 has no name"),
        ("a,b,a\n1,2,3\n", "names 'a' twice"),
        ("a,b\n1,2\n1,cold\n", "line 3, column b: 'cold' is not a number"),
        ("a,b\n1,2\n\n1\n", "line 4: has 1 values, the header names 2"),
        ("a,y\n1,0\n2,up\n", "line 3, column y: label 'up' is not a number, others are"),
        ("a,t\n1,soon\n", "line 2, column t: 'soon' is not a time"),
        ("a,t\n1,nan\n", "line 2, column t: 'nan' is not a time"),
        ('a,b\n1,"2\n', "line 2"),
    ],
)
def test_csv_refusals(tmp_path: Path, content: str, said: str) -> None:
    assert said in refusal(text(tmp_path, content))


def test_a_csv_that_is_not_text(tmp_path: Path) -> None:
    file = tmp_path / "stream.csv"
    file.write_bytes(b"a,b\n\xff\xfe,1\n")
    assert "UTF-8" in refusal(file)


@pytest.mark.parametrize("damage", ["not gzip", "cut off", "flipped"])
def test_a_bad_gzip(tmp_path: Path, damage: str) -> None:
    packed = bytearray(gzip.compress(("a,b\n" + "1,2\n" * 500).encode()))
    if damage == "not gzip":
        packed = bytearray(b"a,b\n1,2\n")
    elif damage == "cut off":
        del packed[-12:]
    else:
        packed[-6] ^= 0xFF
    file = tmp_path / "stream.csv.gz"
    file.write_bytes(packed)
    assert "damaged or cut off" in refusal(file)


def test_files_that_are_not_there_or_not_streams(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "absent.npz")
    assert "no such file" in refusal(tmp_path / "absent.csv.gz")
    assert "give an .npz" in refusal(tmp_path / "stream.xlsx")
    folder = tmp_path / "folder.csv"
    folder.mkdir()
    assert "cannot be read" in refusal(folder)


@given(
    arrays.arrays(np.float32, st.tuples(st.integers(1, 8), st.integers(1, 4)), elements=st.floats(width=32))
)
def test_numbers_survive_a_csv_exactly(
    tmp_path_factory: pytest.TempPathFactory, x: np.ndarray[Any, Any]
) -> None:
    header = ",".join(f"f{i}" for i in range(x.shape[1]))
    rows = "\n".join(",".join(repr(float(v)) for v in row) for row in x)
    stream = read_stream(text(tmp_path_factory.mktemp("law"), f"{header}\n{rows}\n"))
    np.testing.assert_array_equal(stream.x, x)


def test_a_long_csv_is_read_in_a_second(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = "\n".join(",".join(f"{v:.6f}" for v in row) + ",up" for row in rng.normal(size=(45_000, 8)))
    file = text(tmp_path, "a,b,c,d,e,f,g,h,y\n" + rows)
    started = time.process_time()
    assert len(read_stream(file)) == 45_000
    assert time.process_time() - started < 1.0


def test_empty_cells_of_a_csv_are_readings_and_labels_that_never_came(tmp_path: Path) -> None:
    path = tmp_path / "gaps.csv"
    path.write_text("a,b,y\n1,2,up\n,4,\n5,6,down\n")
    got = read_stream(path)
    assert np.isnan(got.x).tolist() == [[False, False], [True, False], [False, False]]
    assert got.classes == ("down", "up")
    assert got.y is not None
    assert np.isnan(got.y).tolist() == [False, True, False]


def test_only_the_named_columns_of_a_csv_are_read(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    path.write_text("note,b,a,state\nwarm,2,1,ok\n,4,3,worn\n")
    got = read_stream(path, features=("a", "b"), label="state")
    assert got.x.tolist() == [[1, 2], [3, 4]]
    assert got.classes == ("ok", "worn")
    with pytest.raises(ConfigError, match="no column 'c'"):
        read_stream(path, features=("a", "c"))
