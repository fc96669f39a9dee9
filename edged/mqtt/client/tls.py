"""TLS on the connection to the broker. Imported where it is configured: OpenSSL takes 5 MB."""

from __future__ import annotations

import ssl
from typing import cast

from edged.config import MqttConfig, TlsConfig
from edged.errors import ConfigError
from edged.mqtt.client.packets import PacketSocket


class TlsSocket(ssl.SSLSocket):
    """Closes itself when the handshake fails, which paho leaves to the garbage collector."""

    def do_handshake(self, block: bool = False) -> None:
        """As ever, and closed at once when it fails."""
        try:
            super().do_handshake(block)
        except OSError:
            self.close()
            raise


class TlsPacketSocket(PacketSocket):
    """The wire over TLS or a WebSocket, which read ahead; TLS says more when the broker refuses us."""

    would_block = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

    @property
    def holds_decrypted(self) -> bool:
        """Whether bytes are here for us that a selector cannot see."""
        return cast("ssl.SSLSocket", self._sock).pending() > 0

    def record(self, problem: OSError) -> None:
        """Record an error of TLS, unless it only says that the other side is gone."""
        if isinstance(problem, ssl.SSLError) and not isinstance(problem, ssl.SSLEOFError):
            self.problem = problem


def context(tls: TlsConfig) -> ssl.SSLContext:
    """TLS 1.2 or later, with the certificates that the configuration names.

    Raises ConfigError when they cannot be used.
    """
    try:
        made = ssl.create_default_context(cafile=tls.ca_file)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        made.sslsocket_class = TlsSocket
        if tls.crl_file is not None:
            made.load_verify_locations(tls.crl_file)
            made.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
        if tls.cert_file is not None:
            # Without an answer here a key with a pass phrase would have OpenSSL ask on the terminal.
            made.load_cert_chain(tls.cert_file, tls.key_file, password=lambda: "")
    except OSError as problem:
        raise ConfigError(
            f"cannot use the certificates: {problem}",
            where="mqtt.tls",
            remedy="ca_file, cert_file, key_file and crl_file must be readable PEM files that belong"
            " together, the key without a pass phrase",
        ) from problem
    return made


# How OpenSSL calls the alerts by which a broker refuses us (RFC 8446, section 6.2).
_ALERTS = {
    "CERTIFICATE_EXPIRED": ("our certificate has expired", "renew mqtt.tls.cert_file"),
    "CERTIFICATE_REVOKED": ("our certificate was revoked", "get a new one for mqtt.tls.cert_file"),
    "CERTIFICATE_REQUIRED": ("the broker wants a certificate", "set mqtt.tls.cert_file and key_file"),
    "UNKNOWN_CA": (
        "the broker does not know who signed our certificate",
        "mqtt.tls.cert_file must come from a CA of the broker",
    ),
    "BAD_CERTIFICATE": ("the broker finds our certificate bad", "is mqtt.tls.cert_file valid already?"),
    "PROTOCOL_VERSION": ("the broker speaks no TLS 1.2 or later", "update the broker"),
    "UNSUPPORTED_PROTOCOL": ("the broker speaks no TLS 1.2 or later", "update the broker"),
    "HANDSHAKE_FAILURE": (
        "the broker and we have no common terms",
        "does it want a certificate (mqtt.tls.cert_file), or offer weak ciphers only?",
    ),
    "DH_KEY_TOO_SMALL": ("the broker's key is too weak", "give the broker a stronger one"),
}


def failure(problem: OSError, config: MqttConfig) -> tuple[str, str] | None:
    """Reason and remedy for a connection that TLS kept from coming about; None for other reasons."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return _unverified(problem, config)
    if isinstance(problem, ssl.SSLError):
        name = problem.reason or str(problem)
        known = next((words for alert, words in _ALERTS.items() if alert in name), None)
        return known or (f"TLS failed: {name}", f"does port {config.port} speak TLS?")
    if isinstance(problem, ConnectionResetError):
        return "connection reset", f"does port {config.port} speak TLS?"
    return None


def _unverified(problem: ssl.SSLCertVerificationError, config: MqttConfig) -> tuple[str, str]:
    """Why we do not take the broker's certificate."""
    message = problem.verify_message.rstrip(".")
    remedies = {
        "certificate has expired": "renew the broker's certificate; is this device's clock right?",
        "certificate is not yet valid": "is this device's clock right?",
        "certificate revoked": "the broker's certificate is on the list mqtt.tls.crl_file",
        "CRL has expired": "get a new list for mqtt.tls.crl_file; is this device's clock right?",
        "unable to get certificate CRL": "mqtt.tls.crl_file is not from the CA that signed the certificate",
        "EE certificate key too weak": "give the broker a stronger key",
        "CA certificate key too weak": "the CA needs a stronger key",
    }
    remedy = remedies.get(message, "check mqtt.tls.ca_file")
    if "match" in message:
        remedy = f"the certificate must name {config.host}: check mqtt.host"
    return f"certificate refused: {message}", remedy
