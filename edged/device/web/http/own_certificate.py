"""The certificate that a device makes for itself where none is configured, and the names it is reached by."""

from __future__ import annotations

import hashlib
import re
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from edged.errors import ConfigError, UnavailableError
from edged.logs import get_logger
from edged.storage.files.atomic import owner_only, publish_file

if TYPE_CHECKING:
    from edged.config import WebConfig

FILE = "web-certificate.pem"
log = get_logger("edged.web")

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9-]+)*")


def own_certificate(config: WebConfig, state: Path) -> Path:
    """Return the file with key and certificate in the directory `state`; made where it is missing or damaged.

    Raises UnavailableError without the package cryptography; StorageError when the disk refuses.
    """
    path = state / FILE
    if not _is_usable(path):
        from edged.signing import self_signed_certificate

        try:
            made = self_signed_certificate(names_of(config))
        except UnavailableError as problem:
            raise UnavailableError(
                f"listen {config.listen} can be reached from outside and needs a certificate: {problem.what}",
                where="web",
                remedy=f"pip install 'edged[signing]', or name one in web.tls, or {tunnel(config)}",
            ) from problem
        with owner_only():
            publish_file(path, made)
    return path


def _is_usable(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path, password=lambda: "")
    except (OSError, ValueError) as problem:
        log.warning(
            "web_certificate_damaged",
            problem=str(problem),
            remedy="a new one is made: compare its fingerprint (edged web pair CONFIG) in each browser",
        )
        return False
    return True


def fingerprint(path: Path) -> str:
    """Return the SHA-256 of the first certificate in a file, as browsers show it.

    Raises ConfigError when there is none.
    """
    try:
        text = path.read_text(encoding="ascii")
        begin = text.index("-----BEGIN CERTIFICATE-----")
        end = text.index("-----END CERTIFICATE-----", begin) + len("-----END CERTIFICATE-----")
        digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(text[begin:end])).hexdigest().upper()
    except (OSError, ValueError) as problem:
        raise ConfigError(f"no certificate can be read: {problem}", where=str(path)) from problem
    return ":".join(digest[at : at + 2] for at in range(0, len(digest), 2))


def names_of(config: WebConfig) -> list[str]:
    """Return the names of this device and the addresses that it sends from, the one for people first."""
    host = socket.gethostname().lower().rstrip(".")
    short = host.partition(".")[0]
    address = config.address
    listen = () if address is None or address[0] in ("0.0.0.0", "::") else (address[0].lower(),)  # noqa: S104
    found = [*config.allowed_hosts, *listen, f"{short}.local", host, short, *_addresses()]
    found += ["localhost", "127.0.0.1", "::1"]
    return [name for name in dict.fromkeys(found) if ":" in name or _HOST.fullmatch(name)]


def tunnel(config: WebConfig) -> str:
    """Return how the page is reached over SSH without opening it to the network."""
    port = 8080 if config.address is None else config.address[1]
    return f"ssh -L {port}:127.0.0.1:{port} {socket.gethostname()}"


def _addresses() -> list[str]:
    found: list[str] = []
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        # No packet is sent: the system says which of its addresses it would send from.
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))
            found.append(str(probe.getsockname()[0]))
    return [address.partition("%")[0] for address in found]
