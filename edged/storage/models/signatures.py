"""Signed bundles: `bundle.sig` holds the signature of `bundle.json`, which holds the SHA-256 of all else.

What is signed is `edged-bundle-1`, a newline, and the bytes of `bundle.json`, which also has the version, a
number that rises, and may say when the bundle expires. A device that trusts keys
(`model.keys`) takes a bundle only if it is signed by one of them, whole, and nothing else lies in it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from edged.domain.commands.rules import CLOCK_SET
from edged.errors import BundleError, ConfigError, RefusedError, StorageError
from edged.signing import BYTES, Keys, sign
from edged.storage.files.atomic import disk_errors, publish_file
from edged.storage.files.checksummed_json import seal
from edged.storage.models.bundles import DESCRIPTION, SIGNATURE, Bundle

HEADER = b"edged-bundle-1\n"


def sign_bundle(path: Path, key: Path, version: int | None = None, expires: float | None = None) -> int:
    """Sign a bundle that is whole; an older signature is replaced. Return its version.

    `version`: the present time in Unix seconds when absent. `expires`: Unix seconds, rounded down.

    Raises BundleError or CorruptError when it is no bundle, or not whole; ConfigError when `key` is no
    private key.
    """
    bundle = Bundle.open(path)
    bundle.refuse_others()
    version = int(time.time()) if version is None else version
    until = None if expires is None else int(expires)
    described = replace(bundle, version=version, expires=until)
    publish_file(path / DESCRIPTION, seal(described.to_json()))
    publish_file(path / SIGNATURE, sign(HEADER + _manifest(path), key))
    return version


def refuse_other_signature(path: Path, key: Path) -> None:
    """Raise ConfigError where a bundle has a signature that is not that of the private key `key`."""
    file = path / SIGNATURE
    if not file.exists():
        return
    with disk_errors("reading", file):
        present = file.read_bytes()
    if present != sign(HEADER + _manifest(path), key):  # Ed25519 has one signature for a key and a message
        raise ConfigError(
            "exists already, made with another key or for another bundle.json",
            where=str(file),
            remedy="add --force to replace it",
        )


def open_bundle(path: Path, keys: Sequence[Path]) -> Bundle:
    """`Bundle.open`; where keys are given, only of a bundle that one of them has signed.

    Raises RefusedError when it is not signed, or not by one of the keys, or anything in it is not as it was
    signed; BundleError or CorruptError as `Bundle.open`, where there are no keys; ConfigError when a key
    cannot be used.
    """
    return open_signed(path, keys)[0] if keys else Bundle.open(path)


def open_signed(path: Path, keys: Sequence[Path]) -> tuple[Bundle, Path]:
    """Open a signed bundle, and return the key that signed it, too; raises what `open_bundle` does."""
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
    signer = trusted.signer(HEADER + manifest, signature) if len(signature) == BYTES else None
    if signer is None:
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
            f"not as it was signed: {problem.what}", where=problem.where, remedy="install the bundle again"
        ) from problem
    return bundle, signer


def refuse_stale(bundle: Bundle, least: int, now: float) -> None:
    """Refuse a signed bundle that is older than one that was taken, or has expired.

    `least`: the highest version that was taken; a bundle without a version has 0. `now`: Unix seconds by the
    device's clock. Raises RefusedError, also for a bundle that expires while the clock is not set.
    """
    where, version = str(bundle.path), bundle.version or 0
    if version < least:
        raise RefusedError(
            f"the bundle has version {version}, and this device has taken version {least}",
            where=where,
            remedy="sign it again; to go back see docs/security.md, allow_downgrade",
        )
    if bundle.expires is None:
        return
    if now < CLOCK_SET:
        raise RefusedError(
            "the bundle expires, and this device's clock is not set", where=where, remedy="set the clock"
        )
    if now >= bundle.expires:
        expired = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(bundle.expires))
        raise RefusedError(f"the bundle expired on {expired}", where=where, remedy="sign it again")


def _manifest(path: Path) -> bytes:
    try:
        return (path / DESCRIPTION).read_bytes()
    except OSError:
        raise BundleError("no bundle: bundle.json is missing", where=str(path)) from None
