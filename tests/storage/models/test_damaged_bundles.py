"""Bundles that were damaged or tampered with: none is used, whichever way it comes, and a line says why."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from edged.bundles.graph.templates import mlp
from edged.bundles.inspect import verify
from edged.errors import EdgedError, RefusedError
from edged.signing import new_pair
from edged.storage.files.checksummed_json import seal, unseal
from edged.storage.models.bundle_archive import UNPACKED, InstalledBundles, as_folder, pack_bundle, unpacked
from edged.storage.models.bundles import Bundle
from edged.storage.models.signatures import open_bundle, sign_bundle
from tests.building import build
from tests.commands import edged
from tests.damage import any_byte, damaged_copy, damaged_file, description, missing

LIMIT = 4 << 20
SHORT, LONG = 70, 5000


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed bundle, the same as one file, the key, and another key."""
    folder = tmp_path_factory.mktemp("shop")
    for name in ("key", "other"):
        new_pair(folder / name)
    build(mlp(4, 2, [8]), folder / "bundle", loss="cross_entropy", engine="portable")
    sign_bundle(folder / "bundle", folder / "key")
    pack_bundle(folder / "bundle", folder / "one.edged")
    return folder


def refusal(use: object) -> str:
    """The one line that says why not; fails when there is none."""
    assert callable(use)
    with pytest.raises(EdgedError) as problem:
        use()
    line = problem.value.line()
    assert "\n" not in line
    assert len(line) < 500
    return line


def install(file: Path, state: Path, keys: list[Path]) -> Bundle:
    """As the command bundle.install does."""

    def check(bundle: Bundle) -> None:
        open_bundle(bundle.path, keys)

    return InstalledBundles(state).install(file, LIMIT, check, set())


@pytest.mark.parametrize("count", [SHORT, pytest.param(LONG, marks=pytest.mark.faults)])
def test_of_a_signed_directory_nothing_is_used_once_it_was_changed(
    shop: Path, tmp_path: Path, count: int
) -> None:
    rng, keys = random.Random(count), [shop / "key.pub"]
    shutil.copy(shop / "other", tmp_path / "other")
    seen = set()
    for _ in range(count):
        seen.add(damaged_copy(rng, shop / "bundle", tmp_path / "b"))
        refusal(lambda: open_bundle(tmp_path / "b", keys))
        shutil.rmtree(tmp_path / "b")
    assert len(seen) == 8
    open_bundle(shop / "bundle", keys)


@pytest.mark.parametrize("count", [SHORT, pytest.param(LONG, marks=pytest.mark.faults)])
@pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])
def test_a_changed_file_is_refused_or_holds_the_same_bundle(
    shop: Path, tmp_path: Path, count: int, signed: bool
) -> None:
    """What changes nothing are fields of the archive beside its files, such as times and versions."""
    rng, keys = random.Random(count), [shop / "key.pub"] if signed else []
    whole, seen = (shop / "one.edged").read_bytes(), set()
    file, state, same = tmp_path / "x.edged", tmp_path / "state", 0
    for _ in range(count):
        what, content = damaged_file(rng, whole)
        seen.add(what)
        file.write_bytes(content)
        try:
            with as_folder(file) as folder:
                open_bundle(folder, keys)
        except EdgedError:
            refusal(lambda: install(file, state, keys))
            assert list((state / "bundles").iterdir()) == []
        else:
            same += 1
            bundle = install(file, state, keys)
            for path in (shop / "bundle").iterdir():
                assert (bundle.path / path.name).read_bytes() == path.read_bytes()
            shutil.rmtree(bundle.path)
    assert len(seen) == 7
    assert same < count / 2
    file.write_bytes(whole)
    assert install(file, tmp_path / "state", keys).fingerprint == Bundle.open(shop / "bundle").fingerprint


def test_without_a_signature_every_byte_of_every_file_counts_all_the_same(shop: Path, tmp_path: Path) -> None:
    """But for the signature, which nobody looks at there."""
    rng = random.Random(1)
    shutil.copytree(shop / "bundle", tmp_path / "whole")
    (tmp_path / "whole" / "bundle.sig").unlink()
    for change in [any_byte] * 60 + [missing] * 8:
        shutil.copytree(tmp_path / "whole", tmp_path / "b")
        change(rng, tmp_path / "b")
        refusal(lambda: Bundle.open(tmp_path / "b"))
        shutil.rmtree(tmp_path / "b")


@pytest.mark.parametrize("count", [20, pytest.param(1000, marks=pytest.mark.faults)])
def test_a_description_that_contradicts_its_files_is_refused_or_changes_nothing_they_say(
    shop: Path, tmp_path: Path, count: int
) -> None:
    """Without a signature a description may be written anew; what it gets wrong is told in a line."""
    rng, refused, taken = random.Random(count), 0, 0
    for _ in range(count):
        shutil.copytree(shop / "bundle", tmp_path / "b")
        description(rng, tmp_path / "b")
        try:
            verify(tmp_path / "b")
        except EdgedError as problem:
            refused += "\n" not in problem.line()
        else:
            taken += 1
        shutil.rmtree(tmp_path / "b")
    assert refused + taken == count
    assert refused > count / 4


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("remembered", {"nowhere": "output"}),
        ("optimizer", {"name": "x" * 300}),
        ("optimizer", {"weight_decay": "much"}),
        ("frozen", [{"name": "mean", "shape": [4.5]}]),
        ("frozen", [{"name": "mean", "shape": "ab"}]),
        ("groups", [{"name": "state", "shape": [-1], "parameters": []}]),
        ("groups", [{"name": "state", "shape": [10**30], "parameters": []}]),
        ("groups", [{"name": "state", "shape": [2], "parameters": [{"name": "w", "shape": [3]}]}]),
    ],
)
def test_a_step_graph_whose_description_contradicts_itself_is_refused(
    shop: Path, tmp_path: Path, field: str, value: object
) -> None:
    shutil.copytree(shop / "bundle", tmp_path / "b")
    file = tmp_path / "b" / "bundle.json"
    values = unseal(file.read_bytes(), file)
    before = values["portable"].get(field)
    values["portable"][field] = before | value if isinstance(value, dict) and before else value
    file.write_bytes(seal(values))
    assert "the description of the step graph is not whole" in refusal(lambda: verify(tmp_path / "b"))


@pytest.mark.slow
def test_the_command_says_in_one_line_why(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes((shop / "one.edged").read_bytes()[:-1])
    answer = edged("artifacts", "verify", tmp_path / "b", "--key", shop / "key.pub")
    assert answer.code in (1, 3)
    assert answer.problem.startswith("edged: ")


@pytest.mark.slow
def test_a_whole_file_is_unpacked_as_it_was(shop: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert edged("artifacts", "unpack", shop / "one.edged", "-o", out, "--key", shop / "key.pub").code == 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {
        path.name: path.read_bytes() for path in (shop / "bundle").iterdir()
    }
    with pytest.raises(RefusedError, match="another key"):
        unpacked(shop / "one.edged", tmp_path / "x", [shop / "other.pub"])
    assert not list((tmp_path / "x" / UNPACKED).iterdir())
