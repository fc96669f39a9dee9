"""A certificate authority for tests: certificates that are good, and every kind that is not."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes

DAY = dt.timedelta(days=1)


def now() -> dt.datetime:
    return dt.datetime.now(dt.timezone.utc)


def weak_key() -> rsa.RSAPrivateKey:
    """1,024 bits of RSA, which nobody should take any more."""
    return rsa.generate_private_key(65537, 1024)  # noqa: S505  meant to be weak


class Authority:
    """Signs certificates and revokes them; all files lie in `folder`, named after their subject."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self.name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._revoked: list[x509.RevokedCertificate] = []
        builder = self._builder(self._subject, self._key.public_key(), now() - DAY, now() + DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.certificate = builder.sign(self._key, hashes.SHA256())
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def _builder(
        self,
        subject: x509.Name,
        key: CertificatePublicKeyTypes,
        begins: dt.datetime,
        ends: dt.datetime,
    ) -> x509.CertificateBuilder:
        return x509.CertificateBuilder(
            issuer_name=self._subject,
            subject_name=subject,
            public_key=key,
            serial_number=x509.random_serial_number(),
            not_valid_before=begins,
            not_valid_after=ends,
        )

    def issue(
        self,
        name: str,
        *,
        begins: dt.timedelta = -DAY,
        ends: dt.timedelta = DAY,
        hosts: tuple[str, ...] = ("localhost", "127.0.0.1"),
        key: Any = None,
        revoked: bool = False,
        file: str = "",
    ) -> tuple[Path, Path]:
        """A certificate for `name`, valid from now + `begins` to now + `ends`, and its key, as files."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = [_host(host) for host in hosts]
        builder = self._builder(subject, key.public_key(), now() + begins, now() + ends)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        if revoked:
            entry = x509.RevokedCertificateBuilder(certificate.serial_number, now() - DAY)
            self._revoked.append(entry.build())
        stem = self.folder / f"{self.name}-{file or name}"
        where = stem.with_suffix(".pem"), stem.with_suffix(".key")
        where[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        where[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return where

    def revocations(self, *, ends: dt.timedelta = DAY) -> Path:
        """The list of what was revoked so far."""
        builder = x509.CertificateRevocationListBuilder(
            issuer_name=self._subject,
            last_update=now() - 2 * DAY,
            next_update=now() + ends,
            revoked_certificates=self._revoked,
        )
        path = self.folder / f"{self.name}.crl"
        path.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return path


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
