"""TLS with a real broker: who is let in, who is not, and what the one line about it says."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from edged.config import MqttConfig
from edged.errors import ConfigError
from edged.mqtt.client.connection import credentials
from edged.mqtt.client.session import Session
from tests.certificates import DAY, Authority, weak_key
from tests.mqtt.inbox import PATIENCE

if TYPE_CHECKING:
    from tests.conftest import MakeBroker
    from tests.mqtt.conftest import Connect
    from tests.mqtt.inbox import Log

Settings = dict[str, Any]


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A CA with the broker's certificates, one of them revoked, and the device's, one of them revoked."""
    authority = Authority(tmp_path_factory.mktemp("pki"))
    authority.issue("broker")
    authority.issue("device")
    authority.issue("revoked", revoked=True)
    authority.issue("withdrawn", revoked=True)
    authority.revocations()
    return authority


def serving(pki: Authority, name: str = "broker", *more: str) -> list[str]:
    """Lines of a mosquitto that wants certificates, with its own called `name`."""
    files = pki.folder / f"ca-{name}"
    return [
        "allow_anonymous true",
        f"cafile {pki.file}",
        f"certfile {files}.pem",
        f"keyfile {files}.key",
        *more,
    ]


def asking(pki: Authority, *more: str) -> list[str]:
    """The same, and certificates of devices are required and looked up in the list."""
    crl = pki.folder / "ca.crl"
    return serving(pki, "broker", "require_certificate true", f"crlfile {crl}", *more)


def presenting(pki: Authority, certificate: Path | None, key: Path | None, **more: Any) -> Settings:
    named = {} if certificate is None else {"cert_file": certificate, "key_file": key}
    return {"host": "localhost", "tls": {"ca_file": pki.file, **named, **more}}


def test_with_a_certificate_of_the_ca(pki: Authority, make_broker: MakeBroker, make_session: Connect) -> None:
    broker = make_broker(*asking(pki))
    session = make_session(
        "edge",
        port=broker.port,
        config=presenting(pki, pki.folder / "ca-device.pem", pki.folder / "ca-device.key"),
    )
    assert session.connected


def without(_: Authority) -> tuple[None, None]:
    return None, None


def foreign(pki: Authority) -> tuple[Path, Path]:
    return Authority(pki.folder, "foreign").issue("device")


CLIENTS: dict[str, tuple[Callable[[Authority], tuple[Any, Any]], str]] = {
    "no certificate": (without, "the broker wants a certificate"),
    "expired": (lambda pki: pki.issue("old", ends=-DAY / 2), "our certificate has expired"),
    "not yet valid": (lambda pki: pki.issue("early", begins=DAY / 2), "our certificate bad"),
    "foreign CA": (foreign, "does not know who signed our certificate"),
    "revoked": (lambda pki: (pki.folder / "ca-revoked.pem", pki.folder / "ca-revoked.key"), "was revoked"),
}


@pytest.mark.parametrize("version", ["tlsv1.2", "tlsv1.3"])
@pytest.mark.parametrize("kind", CLIENTS)
def test_a_device_that_the_broker_does_not_take(
    pki: Authority, make_broker: MakeBroker, make_session: Connect, log: Log, kind: str, version: str
) -> None:
    """One line that says why; it goes on trying, and none of it is an error of the program."""
    broker = make_broker(*asking(pki, f"tls_version {version}"))
    make, words = CLIENTS[kind]
    session = make_session("edge", port=broker.port, ready=False, config=presenting(pki, *make(pki)))
    told = log.wait("mqtt_unreachable")
    log.wait("mqtt_unreachable", level="debug")  # it has tried again
    if kind != "no certificate" or version == "tlsv1.3":  # TLS 1.2 only knows a failed handshake then
        assert words in str(told["reason"])
    assert "cert_file" in str(told["remedy"])
    assert len(log.named("mqtt_unreachable", level="warning")) == 1
    assert not log.named("mqtt_failed")
    assert not session.connected
    assert str(told["reason"]) in str(session.problem)


BROKERS: dict[str, tuple[Settings, Settings, str, str]] = {
    # certificate of the broker, our settings, what is said, and what to do
    "expired": ({"ends": -DAY / 2}, {}, "certificate has expired", "clock"),
    "not yet valid": ({"begins": DAY / 2}, {}, "not yet valid", "clock"),
    "another host": ({"hosts": ("other.example",)}, {}, "Hostname mismatch", "mqtt.host"),
    "another address": ({"hosts": ("localhost",)}, {"host": "127.0.0.1"}, "IP address mismatch", "mqtt.host"),
    "weak key": ({"key": 1024}, {}, "key too weak", "stronger key"),
}


@pytest.mark.parametrize("kind", BROKERS)
def test_a_broker_that_we_do_not_take(
    pki: Authority, make_broker: MakeBroker, make_session: Connect, log: Log, kind: str
) -> None:
    certificate, settings, words, remedy = BROKERS[kind]
    if certificate.get("key") == 1024:
        certificate = {"key": weak_key()}
    name = kind.replace(" ", "-")
    pki.issue("broker", file=name, **certificate)
    broker = make_broker(*serving(pki, name, "ciphers DEFAULT@SECLEVEL=0"))
    config = {**presenting(pki, None, None), **settings}
    session = make_session("edge", port=broker.port, ready=False, config=config)
    told = log.wait("mqtt_unreachable")
    assert words in str(told["reason"])
    assert remedy in str(told["remedy"])
    assert not session.connected


def test_a_broker_of_a_foreign_ca(
    pki: Authority, make_broker: MakeBroker, make_session: Connect, log: Log
) -> None:
    other = Authority(pki.folder, "elsewhere")
    other.issue("broker")
    broker = make_broker(*[line.replace("ca-broker", "elsewhere-broker") for line in serving(pki)])
    make_session("edge", port=broker.port, ready=False, config=presenting(pki, None, None))
    told = log.wait("mqtt_unreachable")
    assert "certificate refused: unable to get local issuer certificate" in str(told["reason"])
    assert "mqtt.tls.ca_file" in str(told["remedy"])


def test_a_broker_whose_certificate_was_revoked(
    pki: Authority, make_broker: MakeBroker, make_session: Connect, log: Log
) -> None:
    broker = make_broker(*serving(pki, "withdrawn"))
    config = presenting(pki, None, None, crl_file=pki.folder / "ca.crl")
    make_session("edge", port=broker.port, ready=False, config=config)
    told = log.wait("mqtt_unreachable")
    assert "certificate revoked" in str(told["reason"])
    assert "crl_file" in str(told["remedy"])


def test_a_list_that_is_out_of_date_lets_nobody_in(
    tmp_path: Path, make_broker: MakeBroker, make_session: Connect, log: Log
) -> None:
    pki = Authority(tmp_path)
    pki.issue("broker")
    old = pki.revocations(ends=-DAY)
    broker = make_broker(*serving(pki))
    make_session("edge", port=broker.port, ready=False, config=presenting(pki, None, None, crl_file=old))
    assert "CRL has expired" in str(log.wait("mqtt_unreachable")["reason"])


def test_a_list_and_a_certificate_that_is_not_on_it(
    pki: Authority, make_broker: MakeBroker, make_session: Connect
) -> None:
    broker = make_broker(*serving(pki))
    config = presenting(pki, None, None, crl_file=pki.folder / "ca.crl")
    assert make_session("edge", port=broker.port, config=config).connected


OLD = """openssl_conf = all
[all]
ssl_conf = tls
[tls]
system_default = limits
[limits]
MinProtocol = {0}
MaxProtocol = {0}
CipherString = {1}@SECLEVEL=0
"""


@pytest.mark.parametrize(
    ("version", "ciphers", "words"),
    [
        ("TLSv1.1", "DEFAULT", "no TLS 1.2 or later"),
        ("TLSv1.2", "NULL-SHA256:ECDHE-ECDSA-NULL-SHA", "no common terms"),
    ],
)
def test_a_broker_with_old_or_weak_tls_alone(
    pki: Authority, tmp_path: Path, make_broker: MakeBroker, make_session: Connect, log: Log,
    monkeypatch: pytest.MonkeyPatch, version: str, ciphers: str, words: str,
) -> None:  # fmt: skip
    """Mosquitto itself sets no upper limit: OpenSSL's own configuration does, for the broker alone."""
    limits = tmp_path / "openssl.cnf"
    limits.write_text(OLD.format(version, ciphers))
    with monkeypatch.context() as patched:
        patched.setenv("OPENSSL_CONF", str(limits))
        broker = make_broker(*serving(pki, "broker", f"ciphers {ciphers}:@SECLEVEL=0", "tls_version tlsv1.1"))
    make_session("edge", port=broker.port, ready=False, config=presenting(pki, None, None))
    assert words in str(log.wait("mqtt_unreachable")["reason"])


def test_certificates_that_were_replaced_count_at_the_next_attempt(
    tmp_path: Path, make_broker: MakeBroker, make_session: Connect, log: Log
) -> None:
    """As a renewal does it: the device runs on, with an expired certificate, until the files are new."""
    pki = Authority(tmp_path)
    pki.issue("broker")
    pki.revocations()
    mine = pki.issue("device", ends=-DAY / 2)
    broker = make_broker(*asking(pki))
    session = make_session("edge", port=broker.port, ready=False, config=presenting(pki, *mine))
    assert "expired" in str(log.wait("mqtt_unreachable")["reason"])
    pki.issue("device")
    assert session.wait_ready(PATIENCE)


def test_a_new_ca_counts_too_and_a_broken_file_is_told(
    tmp_path: Path, make_broker: MakeBroker, make_session: Connect, log: Log
) -> None:
    ours, trusted = Authority(tmp_path), tmp_path / "trusted.pem"
    ours.issue("broker")
    shutil.copy(Authority(tmp_path, "old").file, trusted)
    broker = make_broker(*serving(ours))
    config = {"host": "localhost", "tls": {"ca_file": trusted}}
    session = make_session("edge", port=broker.port, ready=False, config=config)
    log.wait("mqtt_unreachable")
    trusted.write_text("half written")
    assert "mqtt.tls: cannot use the certificates" in str(log.wait("mqtt_failed")["reason"])
    shutil.copy(ours.file, trusted)
    assert session.wait_ready(PATIENCE)


def test_a_key_with_a_pass_phrase_is_refused_without_asking(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).issue("device")
    encrypted = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    key.write_bytes(encrypted)
    config = MqttConfig.model_validate({"tls": {"cert_file": certificate, "key_file": key}})
    with pytest.raises(ConfigError, match="without a pass phrase"):
        Session(config, client_id="edge")


# --- plain text ---


@pytest.mark.parametrize(
    "host", ["broker.example", "192.0.2.7", "2001:db8::1", "localhost.example", "10.0.0.1"]
)
def test_plain_text_leaves_this_machine_only_where_that_is_said(host: str) -> None:
    with pytest.raises(ValueError, match="unencrypted"):
        MqttConfig.model_validate({"host": host})
    assert MqttConfig.model_validate({"host": host, "insecure": True}).tls is None
    assert MqttConfig.model_validate({"host": host, "tls": {}}).tls is not None


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "127.8.9.10", "::1", "edge.localhost", "/run/m.sock"]
)
def test_plain_text_on_this_machine_needs_no_word(host: str) -> None:
    assert MqttConfig.model_validate({"host": host}).is_local


def test_a_unix_socket(tmp_path: Path, make_broker: MakeBroker, make_session: Connect, log: Log) -> None:
    place = tmp_path / "broker.sock"
    broker = make_broker("allow_anonymous true", f"listener 0 {place}")
    session = make_session("edge", config={"host": str(place), "port": 1883})
    assert session.connected
    broker.stop()
    told = log.wait("mqtt_unreachable")
    assert str(place) in str(told["remedy"])


# --- names and passwords ---


def test_user_and_password_from_systemds_credentials(
    tmp_path: Path, make_broker: MakeBroker, make_session: Connect, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = tmp_path / "credentials"
    secrets.mkdir()
    (secrets / "mqtt-username").write_text("press-7\n")
    (secrets / "mqtt-password").write_text("horse battery\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(secrets))
    assert credentials(MqttConfig()) == ("press-7", "horse battery")
    assert credentials(MqttConfig(username="else")) == ("else", "horse battery")
    passwords = tmp_path / "passwd"
    passwords.write_text("press-7:horse battery\n")
    subprocess.run(["mosquitto_passwd", "-U", str(passwords)], check=True)
    passwords.chmod(0o644)
    broker = make_broker(f"password_file {passwords}", "allow_anonymous false")
    assert make_session("edge", port=broker.port).connected
    (secrets / "mqtt-password").write_text("wrong horse\n")
    make_session("edge2", port=broker.port, ready=False)
    log.wait("mqtt_refused")
    assert "horse" not in str(log.events)
