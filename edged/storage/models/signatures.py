"""Signed bundles: `bundle.sig` holds the signature of `bundle.json`, which holds the SHA-256 of all else.

What is signed is `edged-bundle-1`, a newline, and the bytes of `bundle.json`. A device that trusts keys
(`model.keys`) takes a bundle only if it is signed by one of them, whole, and nothing else lies in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edged.errors import BundleError, RefusedError, StorageError
from edged.signing import BYTES, Keys, sign
from edged.storage.files.atomic import disk_errors, publish_file
from edged.storage.models.bundles import DESCRIPTION, Bundle
from edged.storage.models.manifest import SIGNATURE

HEADER = b"edged-bundle-1\n"


def sign_bundle(path: Path, key: Path) -> None:
    """Sign a bundle that is whole; an older signature is replaced.

    Raises BundleError or CorruptError when it is no bundle, or not whole; ConfigError when `key` is no
    private key.
    """
    Bundle.open(path).refuse_others()
    publish_file(path / SIGNATURE, sign(HEADER + _manifest(path), key))


def open_bundle(path: Path, keys: Sequence[Path]) -> Bundle:
    """`Bundle.open`; where keys are given, only of a bundle that one of them has signed.

    Raises RefusedError when it is not signed, or not by one of the keys, or anything in it is not as it was
    signed; BundleError or CorruptError as `Bundle.open`, where there are no keys; ConfigError when a key
    cannot be used.
    """
    if not keys:
        return Bundle.open(path)
    trusted = Keys(keys)
    manifest = _manifest(path)
    try:
        with disk_errors("reading", path / SIGNATURE), (path / SIGNATURE).open("rb") as file:
            signature = file.read(BYTES + 1)
    except StorageError:
        raise RefusedError(
            "the bundle is not signed",
            where=str(path),
            remedy="sign it: `edged artifacts sign BUNDLE --key K`",
        ) from None
    if len(signature) != BYTES or trusted.signer(HEADER + manifest, signature) is None:
        raise RefusedError(
            "the bundle's signature does not fit: it is of another key, or bundle.json was changed",
            where=str(path / SIGNATURE),
            remedy="model.keys names the keys that count here",
        )
    try:
        bundle = Bundle.open(path)
        bundle.refuse_others()
    except (BundleError, StorageError) as problem:
        raise RefusedError(
            f"not as it was signed: {problem.what}", where=problem.where, remedy="install the bundle anew"
        ) from problem
    return bundle


def _manifest(path: Path) -> bytes:
    try:
        return (path / DESCRIPTION).read_bytes()
    except OSError:
        raise BundleError("no bundle: bundle.json is missing", where=str(path)) from None
