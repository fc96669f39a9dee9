"""Ed25519 (RFC 8032): key pairs in files, signing, and checking signatures against keys that are trusted.

The one place that knows the package `cryptography`, which an extra brings (`edged[signing]`), and which is
read at the first use: most devices never do.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edged.domain.commands import signatures
from edged.domain.json_fields import JsonObject
from edged.errors import ConfigError, UnavailableError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305


BYTES = 64
_MAKE = "make a pair with `edged keys new -o FILE`"


def new_pair(path: Path) -> Path:
    """Write a private key to `path` (PKCS #8, PEM, mode 0600), its public key beside it; the path of that.

    Raises ConfigError when one of the files is there already, or cannot be written; UnavailableError without
    the package cryptography, as all that signs or checks signatures.
    """
    _require()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    beside = path.with_name(path.name + ".pub")
    for file in (path, beside):
        if file.exists():
            raise ConfigError("is there already", where=str(file), remedy="name another file, or remove it")
    _write(path, private, 0o600)
    _write(beside, public, 0o644)
    return beside


def _write(path: Path, data: bytes, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except OSError as problem:
        raise ConfigError(f"cannot be written: {problem.strerror}", where=str(path)) from problem


def sign(message: bytes, key: Path) -> bytes:
    """The signature of a message, 64 bytes.

    Raises ConfigError when `key` is no private key of Ed25519.
    """
    return _private(key).sign(message)


def sign_command(
    command: str,
    device: str,
    request: JsonObject,
    key: Path,
    *,
    now: float,
    transaction: str,
    root: str = "edged",
) -> bytes:
    """The payload of a signed command: publish exactly these bytes.

    It is good for this command and the device with this id below this root, and for nothing else. `ts`
    (`now`, Unix seconds) and `transaction` are added to the fields of the request where they are absent.
    ConfigError when the file `key` holds no private key of Ed25519.
    """
    fields = {"ts": round(now, 3), "transaction": transaction, **request}
    fields.pop(signatures.FIELD, None)
    # The last field is the empty one, also where a field within another has that name.
    payload = json.dumps({**fields, signatures.FIELD: ""}, separators=(",", ":")).encode()
    return signatures.with_signature(payload, sign(signatures.message(root, device, command, payload), key))


class Keys:
    """The public keys that a device trusts; of a directory the files that end in `.pub`.

    Raises ConfigError when a file holds no public key of Ed25519.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        every = (sorted(file.glob("*.pub")) if file.is_dir() else [file] for file in files)
        self._keys = {file: _public(file) for several in every for file in several}

    def signer(self, message: bytes, signature: bytes) -> Path | None:
        """Whose signature it is; None when it is none of ours, or not of this message."""
        from cryptography.exceptions import InvalidSignature

        for file, key in self._keys.items():
            try:
                key.verify(signature, message)
            except InvalidSignature:
                continue
            return file
        return None


def key_id(file: Path) -> str:
    """Return 16 hexadecimal digits that name a public key; ConfigError when the file holds none."""
    return _id_of(_public(file))


def parse_public(text: str, where: str) -> tuple[str, bytes]:
    """Return the id of a public key and its file's content, from such a content (PEM).

    Raises ConfigError, which names `where`, when it is no public key of Ed25519.
    """
    _require()
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = _public_in(text.encode(), where, "give the text of the file that ends in .pub")
    return _id_of(key), key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _id_of(key: Ed25519PublicKey) -> str:
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:16]


def _require() -> None:
    if find_spec("cryptography") is None:
        raise UnavailableError(
            "the package cryptography is not installed",
            where="signatures",
            remedy='pip install "edged[signing]"',
        )


def _private(path: Path) -> Ed25519PrivateKey:
    content = _read(path)
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = _loaded(lambda: load_pem_private_key(content, None))
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError("is no private key of Ed25519", where=str(path), remedy=_MAKE)
    return key


def _public(path: Path) -> Ed25519PublicKey:
    return _public_in(_read(path), str(path), "name the file that ends in .pub")


def _public_in(content: bytes, where: str, remedy: str) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    key = _loaded(lambda: load_pem_public_key(content))
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError("is no public key of Ed25519", where=where, remedy=remedy)
    return key


def _read(path: Path) -> bytes:
    _require()
    try:
        return path.read_bytes()
    except OSError as problem:
        raise ConfigError(f"cannot be read: {problem.strerror}", where=str(path), remedy=_MAKE) from problem


def _loaded(load: Callable[[], Any]) -> Any:
    """A key in PEM; None when there is none."""
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        return load()
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it has a pass phrase
        return None


# ---- sealing -----------------------------------------------------------------------------------

SEALED = b"edged-sealed-1\n"
_NONCE_BYTES, _PUBLIC_BYTES = 12, 32
_HEAD_BYTES = len(SEALED) + _PUBLIC_BYTES
_SENDERS = 1 << 14  # whose keys are remembered: to agree on one takes far longer than to open a message


class Sealer:
    """Encrypts messages so that only the holder of a private key can read them.

    A fresh X25519 key for all of them, HKDF-SHA256, and ChaCha20-Poly1305 with a random nonce for each.
    `recipient` is what `Unsealer.public` says. Raises ValueError when that is no key.
    """

    def __init__(self, recipient: str) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

        theirs = X25519PublicKey.from_public_bytes(bytes.fromhex(recipient))
        fresh = X25519PrivateKey.generate()
        self._public = fresh.public_key().public_bytes_raw()
        self._cipher = _cipher(fresh.exchange(theirs), self._public + theirs.public_bytes_raw())

    def seal(self, message: bytes, about: bytes) -> bytes:
        """The encrypted message; `about` is authenticated, and must be known for opening it."""
        nonce = os.urandom(_NONCE_BYTES)
        return SEALED + self._public + nonce + self._cipher.encrypt(nonce, message, about)


class Unsealer:
    """Opens what was sealed to the Ed25519 private key in a file: its X25519 key is derived from that.

    Raises ConfigError when the file holds no private key of Ed25519.
    """

    def __init__(self, path: Path) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        seed = _derived(_private(path).private_bytes_raw(), b"edged sealing key")
        self._key = X25519PrivateKey.from_private_bytes(seed)
        self._public = self._key.public_key().public_bytes_raw()
        self._cipher_of = lru_cache(_SENDERS)(self._cipher_for)

    @property
    def public(self) -> str:
        """The public key, in hexadecimal digits."""
        return self._public.hex()

    def open(self, message: bytes, about: bytes) -> bytes:
        """The message that was sealed; itself where it was not. ValueError when it does not open."""
        if not message.startswith(SEALED):
            return message
        from cryptography.exceptions import InvalidTag

        theirs, rest = message[len(SEALED) : _HEAD_BYTES], message[_HEAD_BYTES:]
        try:
            return self._cipher_of(theirs).decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], about)
        except InvalidTag:
            raise ValueError("it was sealed to another key or for another topic, or changed") from None

    def _cipher_for(self, theirs: bytes) -> ChaCha20Poly1305:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        shared = self._key.exchange(X25519PublicKey.from_public_bytes(theirs))
        return _cipher(shared, theirs + self._public)


def _cipher(shared: bytes, keys: bytes) -> ChaCha20Poly1305:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(_derived(shared, b"edged sealed message" + keys))


def _derived(secret: bytes, info: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(secret)


# ---- a certificate of one's own ----------------------------------------------------------------


def self_signed_certificate(names: Iterable[str]) -> bytes:
    """Make a key (ECDSA P-256) and a certificate for it that it signs itself, both as PEM.

    `names` are host names and addresses. The certificate counts from 2024 to 2049: a device whose clock is
    not set yet can make it, too. Raises UnavailableError without the package cryptography.
    """
    _require()
    import datetime as dt
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    alternatives: list[x509.GeneralName] = []
    for name in names:
        try:
            alternatives.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            alternatives.append(x509.DNSName(name))
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "edged")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc))
        .not_valid_after(dt.datetime(2049, 12, 31, tzinfo=dt.timezone.utc))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)
