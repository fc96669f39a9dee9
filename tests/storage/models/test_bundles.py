"""Bundles as files: what is read back is verified, and nothing foreign is overwritten."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edged.domain.bundle_contents import Tensor
from edged.domain.stream.schema import Schema
from edged.errors import BundleError, CorruptError
from edged.storage.files.checksummed_json import seal as sealed
from edged.storage.files.checksummed_json import unseal
from edged.storage.models.bundles import Bundle, publish, refuse_foreign, seal

CONTENT = {"training_model.onnx": b"\x08\x08", "checkpoint": b"weights" * 1000}


def make(path: Path, **changes: Any) -> Bundle:
    path.mkdir()
    for name, content in CONTENT.items():
        (path / name).write_bytes(content)
    fields: dict[str, Any] = {
        "edged": "1.2.3",
        "loss": "cross_entropy",
        "optimizer": "adamw",
        "input": Tensor("x", ("batch", 4)),
        "output": Tensor("logits", ("batch", 3)),
        "label": Tensor("labels", ("batch",), "int64"),
        "trainable": ("a", "b"),
        "frozen": ("input.mean", "input.scale"),
        "standardise": {"mean": "input.mean", "scale": "input.scale"},
        "seed": 7,
    }
    return seal(Bundle(path=path, **{**fields, **changes}), CONTENT)


def edit(path: Path, **changes: Any) -> None:
    """As someone would who knows the form: the hash of the description itself fits."""
    file = path / "bundle.json"
    values = unseal(file.read_bytes(), file)
    file.write_bytes(sealed({**values, **changes}))


def test_what_was_sealed_is_read_back(tmp_path: Path) -> None:
    sealed = make(tmp_path / "b")
    assert Bundle.open(tmp_path / "b") == sealed
    assert sealed.standardise == {"mean": "input.mean", "scale": "input.scale"}
    assert sealed.checkpoint == tmp_path / "b" / "checkpoint"


def test_equal_content_has_an_equal_fingerprint_wherever_it_lies(tmp_path: Path) -> None:
    first, second = make(tmp_path / "a"), make(tmp_path / "b")
    assert first.fingerprint == second.fingerprint
    (tmp_path / "b" / "checkpoint").write_bytes(b"other")
    assert seal(second, CONTENT).fingerprint != first.fingerprint


def test_one_flipped_bit_is_noticed(tmp_path: Path) -> None:
    make(tmp_path / "b")
    content = bytearray(CONTENT["checkpoint"])
    content[3000] ^= 1
    (tmp_path / "b" / "checkpoint").write_bytes(content)
    with pytest.raises(CorruptError, match=r"checkpoint: .*not what bundle.json says"):
        Bundle.open(tmp_path / "b")
    assert Bundle.open(tmp_path / "b", verify=False).loss == "cross_entropy"


def test_a_truncated_file_is_noticed(tmp_path: Path) -> None:
    make(tmp_path / "b")
    (tmp_path / "b" / "checkpoint").write_bytes(CONTENT["checkpoint"][:-1])
    with pytest.raises(CorruptError):
        Bundle.open(tmp_path / "b")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    make(tmp_path / "b")
    (tmp_path / "b" / "checkpoint").unlink()
    with pytest.raises(BundleError, match=r"b/checkpoint: .*missing.*edged artifacts build"):
        Bundle.open(tmp_path / "b")


def test_a_directory_without_description_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"bundle.json is missing"):
        Bundle.open(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"format": 1', "\x00", "[" * 100_000])
def test_a_damaged_description_is_noticed(tmp_path: Path, text: str) -> None:
    make(tmp_path / "b")
    (tmp_path / "b" / "bundle.json").write_text(text)
    with pytest.raises(CorruptError):
        Bundle.open(tmp_path / "b")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("loss", None),
        ("input", {"name": "x"}),
        ("trainable", "a"),
        ("standardise", {"mean": 1}),
        ("opset", "17"),
        ("files", {"checkpoint": {"sha256": "x"}}),
    ],
)
def test_a_field_of_the_wrong_form_is_named(tmp_path: Path, key: str, value: Any) -> None:
    make(tmp_path / "b")
    edit(tmp_path / "b", **{key: value})
    with pytest.raises(CorruptError, match="missing or wrong"):
        Bundle.open(tmp_path / "b")


def test_another_format_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "b")
    edit(tmp_path / "b", format=2)
    with pytest.raises(BundleError, match="has format 2, this version reads format 1"):
        Bundle.open(tmp_path / "b")


@pytest.mark.parametrize("name", ["../checkpoint", "/etc/passwd", "a/b", "..", ""])
def test_the_file_list_cannot_lead_out_of_the_directory(tmp_path: Path, name: str) -> None:
    make(tmp_path / "b")
    edit(tmp_path / "b", files={name: {"sha256": "0" * 64, "bytes": 0}})
    with pytest.raises(CorruptError, match="not a plain file name"):
        Bundle.open(tmp_path / "b")


def classes(n: int, width: int = 4) -> Schema:
    return Schema((), width, "classify", tuple(map(str, range(n))))


def outputs(n: int) -> Tensor:
    return Tensor("logits", ("batch", n))


@pytest.mark.parametrize(
    ("changes", "schema"),
    [
        ({}, classes(3)),
        ({"loss": "bce_with_logits", "output": outputs(1)}, classes(2)),
        ({"loss": "bce_with_logits", "output": outputs(2)}, classes(2)),
        ({"loss": "bce_with_logits"}, classes(3)),
        ({"loss": "mse"}, Schema((), 4, "regress", targets=3)),
        ({"loss": "l1", "output": outputs(1)}, Schema((), 4, "forecast", targets=1)),
        ({"loss": "mse", "output": outputs(4)}, Schema((), 4, "reconstruct", targets=4)),
        ({"input": Tensor("x", ("batch", 2, 3))}, classes(3, width=6)),
    ],
)
def test_a_fitting_stream_is_accepted(tmp_path: Path, changes: dict[str, Any], schema: Schema) -> None:
    make(tmp_path / "b", **changes).check_schema(schema)


@pytest.mark.parametrize(
    ("changes", "schema", "what"),
    [
        ({}, classes(3, width=5), "takes 4 features, the stream has 5"),
        ({}, classes(2), "has 3 outputs, the stream has 2 classes"),
        ({"loss": "mse"}, classes(3), "task classify needs cross_entropy or bce_with_logits"),
        ({"loss": "bce_with_logits", "output": outputs(1)}, classes(3), "has 1 outputs"),
        ({}, Schema((), 4, "regress", targets=3), "task regress needs mse or l1"),
        ({"loss": "mse"}, Schema((), 4, "regress", targets=1), "the stream has 1 targets"),
    ],
)
def test_a_misfit_is_explained(tmp_path: Path, changes: dict[str, Any], schema: Schema, what: str) -> None:
    with pytest.raises(BundleError, match=what):
        make(tmp_path / "b", **changes).check_schema(schema)


def test_publishing_replaces_an_older_bundle(tmp_path: Path) -> None:
    make(tmp_path / "out")
    make(tmp_path / "staged", loss="bce_with_logits")
    publish(tmp_path / "staged", tmp_path / "out")
    assert Bundle.open(tmp_path / "out").loss == "bce_with_logits"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_publishing_never_replaces_something_else(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    make(tmp_path / "staged")
    with pytest.raises(BundleError, match="no bundle, so it will not be replaced"):
        publish(tmp_path / "staged", tmp_path / "out")
    assert (tmp_path / "out" / "thesis.txt").read_text() == "years of work"


def test_an_empty_directory_may_become_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    make(tmp_path / "staged")
    publish(tmp_path / "staged", tmp_path / "out")
    assert Bundle.open(tmp_path / "out").seed == 7


def test_a_plain_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x")
    with pytest.raises(BundleError):
        refuse_foreign(tmp_path / "out")


def test_reading_a_bundle_needs_no_onnx() -> None:
    code = (
        "import sys, edged.storage.models.bundles;"
        "sys.exit(any(m in sys.modules for m in ('onnx', 'onnxruntime')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
