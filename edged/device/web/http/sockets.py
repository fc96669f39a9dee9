"""The sockets of the section `web`, opened before the application runs, and the certificate of the TCP port.

Where none is configured and the network reaches the port, the device makes a certificate for itself.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import ssl
from contextlib import suppress
from pathlib import Path

from edged.config import WebConfig
from edged.errors import ConfigError, UnavailableError
from edged.logs import get_logger
from edged.storage.files.atomic import owner_only, publish_file

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
        check_certificate(path, path)
    except ConfigError as problem:
        log.warning(
            "web_certificate_damaged",
            problem=problem.what,
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


BACKLOG = 128
UNIX_MODE = 0o660  # for the account of the daemon, and its group


class Sockets:
    """The sockets that the configuration names.

    `bound` are the open sockets, each with its path if it is a Unix socket; `certificate` is the files of
    certificate and key for the TCP socket, None without TLS.

    Where none is configured and the network reaches the socket, the device's own is in the directory `state`.

    Raises ConfigError when a certificate cannot be used; UnavailableError or StorageError when none can be
    made.
    """

    def __init__(self, config: WebConfig, state: Path | None = None) -> None:
        self._config = config
        self.certificate = _certificate(config, state)
        if self.certificate is not None:
            check_certificate(*self.certificate)
        self.bound: list[tuple[socket.socket, Path | None]] = []

    def open(self) -> None:
        """Open all sockets: connections wait until the application runs.

        Raises UnavailableError when one of the addresses cannot be listened on; none is open then.
        """
        address, path, where = self._config.address, self._config.unix_socket, ""
        try:
            if address is not None:
                where = f"{address[0]}:{address[1]}"
                self.bound.append((_tcp(*address), None))
            if path is not None:
                where = str(path)
                self.bound.append((_unix(path), path))
        except OSError as problem:
            self.close()
            raise UnavailableError(
                f"cannot listen on {where}: {problem.strerror or problem}",
                where="web",
                remedy="tried again; another program may have the address, or this machine not yet",
            ) from problem

    @property
    def port(self) -> int | None:
        """The TCP port, also if the system chose it; None without a TCP socket."""
        return next((int(one.getsockname()[1]) for one, path in self.bound if path is None), None)

    def close(self) -> None:
        """Close all sockets. Safe to call twice."""
        for bound, path in self.bound:
            if path is not None:
                _remove_socket(path)
            bound.close()
        self.bound = []


def _certificate(config: WebConfig, state: Path | None) -> tuple[Path, Path] | None:
    if config.tls is not None:
        return config.tls.cert_file, config.tls.key_file
    if config.is_local:
        return None
    if state is None:
        raise ConfigError(f"listen {config.listen} can be reached from outside", where="web.tls")
    path = own_certificate(config, state)
    return path, path


def check_certificate(certificate: Path, key: Path) -> None:
    """Raise ConfigError when a certificate or its key cannot be used."""
    try:
        # A pass phrase is asked for on the terminal otherwise, where nobody is.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ValueError) as problem:
        raise ConfigError(
            f"certificate or key cannot be used: {problem}",
            where=str(certificate),
            remedy="the key must belong to the certificate and have no pass phrase",
        ) from problem


def _tcp(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, number, _, address = found[0]
    bound = socket.socket(family, kind, number)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(BACKLOG)
    except OSError:
        bound.close()
        raise
    bound.setblocking(False)
    return bound


def _unix(path: Path) -> socket.socket:
    """Open a Unix socket at `path`, and remove a socket that an earlier process left there."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_socket(path)
        # Or others might open it before its mode is set; the umask is that of all threads.
        os.fchmod(bound.fileno(), 0o600)
        bound.bind(str(path))
        path.chmod(UNIX_MODE)
        bound.listen(BACKLOG)
    except OSError:
        bound.close()
        raise
    bound.setblocking(False)
    return bound


def _remove_socket(path: Path) -> None:
    try:
        if path.is_socket():
            path.unlink()
    except FileNotFoundError:
        return
