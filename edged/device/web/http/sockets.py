"""The sockets of the section `web`: opened when the daemon starts, before the application runs."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from edged.device.web.http.own_certificate import own_certificate
from edged.errors import ConfigError, UnavailableError

if TYPE_CHECKING:
    from edged.config import WebConfig

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
    import ssl

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
