from __future__ import annotations

import json
from typing import Any

import pytest

from edged.domain.bundle_contents import FileEntry
from edged.domain.training.update_manifest import (
    TransferManifest,
    UpdateDescription,
    UpdateSamples,
)
from edged.errors import CorruptError

SIZES: dict[str, Any] = {
    "bytes": 5,
    "sha256": "a" * 64,
    "chunks": [{"bytes": 3, "sha256": "b" * 64}, {"bytes": 2, "sha256": "c" * 64}],
}
ABOUT: dict[str, Any] = {
    "encoding": "coded+safetensors+zstd",
    "device": "press-7",
    "bundle": "d" * 64,
    "dtype": "int8",
    "parameters": "f" * 64,
    "created": 1.0,
    "data": {"samples": 100, "first_offset": 1, "last_offset": 100},
    "metrics": {"accuracy": 0.9, "holdout": 50},
    "version": 3,
}


def test_a_description_keeps_its_json_to_the_byte() -> None:
    found = UpdateDescription.from_json(ABOUT)
    assert found.data == UpdateSamples(100, 1, 100)
    assert json.dumps(found.to_json()) == json.dumps(ABOUT)


def test_a_receiver_reads_what_it_needs_of_a_manifest() -> None:
    found = TransferManifest.from_json({**ABOUT, **SIZES, "version": "fleet", "created": "yesterday"})
    chunks = (FileEntry(3, "b" * 64), FileEntry(2, "c" * 64))
    assert found == TransferManifest(5, "a" * 64, chunks, ABOUT["encoding"], ABOUT["parameters"])
    assert TransferManifest.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert json.dumps(TransferManifest.from_json(SIZES).to_json()) == json.dumps(SIZES)


@pytest.mark.parametrize(
    "manifest",
    [None, {}, {"chunks": 5}, {"chunks": [{}]}, {"chunks": [], "bytes": "x"}, SIZES | {"sha256": 7}],
)
def test_a_manifest_that_is_none(manifest: object) -> None:
    with pytest.raises(CorruptError, match="manifest is not complete"):
        TransferManifest.from_json(manifest)
