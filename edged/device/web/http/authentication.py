"""Permissions over HTTP: scopes, tokens of programs, sessions of browsers, and the limit on wrong tokens."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edged.clock import Clock
from edged.domain.token_bucket import TokenBucket
from edged.errors import ConfigError
from edged.storage.web_access import Pairing

Scope = Literal["read", "infer", "control", "scrape", "ingest"]

SCOPES: tuple[Scope, ...] = ("read", "infer", "control", "scrape", "ingest")

GRANTS: dict[str, frozenset[Scope]] = {
    "read": frozenset(("read",)),
    "infer": frozenset(("infer", "ingest")),
    "control": frozenset(("read", "control")),
    "scrape": frozenset(("scrape",)),
    "ingest": frozenset(("ingest",)),
}
"""What the token of each scope opens."""

PAIRED: dict[str, frozenset[Scope]] = {
    "read": frozenset(("read",)),
    "label": frozenset(("read", "infer")),
    "control": frozenset(("read", "infer", "control")),
}
"""What the code of a paired browser can open."""

WITHOUT_TOKENS: frozenset[Scope] = frozenset(("read", "infer", "scrape", "ingest"))
"""What is open to everybody on this machine, as far as there is no token for it."""

SHORTEST = 32  # characters of a token: at least 128 bits where it is hexadecimal
FAILURES = 5  # wrong tokens at once, and a minute
MOST_ADDRESSES = 1024


@dataclass(frozen=True)
class Pass:
    """Permissions of a request.

    `csrf` is what unsafe requests of a session must carry; `known` says that a token or a session was shown.
    `name` is that of a paired browser.
    """

    scopes: frozenset[Scope]
    csrf: str | None = None
    known: bool = True
    name: str = ""


LOCAL = Pass(WITHOUT_TOKENS | {"control"})
"""Permissions of a request on the Unix socket, whose file mode restricts access."""


class Tokens:
    """The tokens of the configuration; only their hashes are kept.

    Raises ConfigError when a file cannot be read, its token is too short, or two scopes have the same one.
    """

    def __init__(self, files: Mapping[Scope, Path]) -> None:
        self._hashes: dict[str, bytes] = {}
        for scope, path in files.items():
            digest = _hash(_read(path, scope))
            if digest in self._hashes.values():
                raise ConfigError(
                    "another scope has the same token",
                    where=f"web.tokens.{scope}",
                    remedy="make one more",
                )
            self._hashes[scope] = digest

    @property
    def scopes(self) -> frozenset[str]:
        """Scopes that have a token of their own."""
        return frozenset(self._hashes)

    def opened(self, token: str) -> frozenset[Scope]:
        """Return the scopes of a token, none for an unknown token; takes the same time for each."""
        presented = _hash(token)
        found: frozenset[Scope] = frozenset()
        for scope, digest in self._hashes.items():
            if hmac.compare_digest(presented, digest):
                found = GRANTS[scope]
        return found


def _read(path: Path, scope: str) -> str:
    where = f"web.tokens.{scope}"
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{path} cannot be read: {problem}", where=where) from problem
    token = lines[0].strip() if lines else ""
    if len(token) < SHORTEST:
        raise ConfigError(
            f"the token in {path} has {len(token)} characters, {SHORTEST} at least are needed",
            where=where,
            remedy="openssl rand -hex 32 makes one",
        )
    return token


def _hash(token: str) -> bytes:
    # JSON can write half of a surrogate pair, which is no text; as a token it is wrong like any other.
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


class Attempts:
    """Counts wrong tokens by address: `FAILURES` at once, then as many per minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[str, TokenBucket] = {}

    def exhausted(self, address: str) -> bool:
        """Whether there were too many wrong tokens from an address."""
        bucket = self._buckets.get(address)
        return bucket is not None and bucket.allowed(self._clock.monotonic()) < 1

    def failed(self, address: str) -> bool:
        """Record a wrong token; False when there were too many."""
        bucket = self._buckets.pop(address, None) or TokenBucket(FAILURES / 60.0, FAILURES)
        self._buckets[address] = bucket  # the newest are at the end
        if len(self._buckets) > MOST_ADDRESSES:
            del self._buckets[next(iter(self._buckets))]
        return bucket.try_acquire(self._clock.monotonic())


class Access:
    """Grants permissions to requests by their token or session.

    `pairing` has the sessions of browsers, `attempts` counts wrong tokens and codes, `anybody` are the
    permissions of a request without a token or session. With `closed` only tokens and sessions open anything:
    where the network reaches the port. Else what has no token of its own is open, `control` excepted. With
    `signed` labels must be signed elsewhere, so only a token for it opens `ingest`.
    """

    def __init__(
        self,
        tokens: Tokens,
        *,
        closed: bool,
        clock: Clock,
        pairing: Pairing,
        signed: bool = False,
    ) -> None:
        self._tokens, self._signed, self._pairing = tokens, signed, pairing
        self.attempts = Attempts(clock)
        # Who closes recording by inference does not expect another open way to the samples.
        shut = tokens.scopes | ({"ingest"} if signed or "infer" in tokens.scopes else frozenset())
        self.anybody = Pass(frozenset() if closed else WITHOUT_TOKENS - shut, known=False)

    def of_token(self, token: str) -> Pass | None:
        """Return the permissions of a request with a token; None if the token is wrong."""
        opened = self._tokens.opened(token)
        if self._signed and "infer" in opened:
            opened -= {"ingest"}
        return Pass(opened | self.anybody.scopes) if opened else None

    def login(self, code: str) -> tuple[str, Pass] | None:
        """Exchange a pairing code for a session: its cookie value and permissions; None for a wrong code.

        It may wait for the disk. Raises StorageError.
        """
        cookie = self._pairing.redeem(code)
        shown = None if cookie is None else self.of_session(cookie)
        return None if cookie is None or shown is None else (cookie, shown)

    def of_session(self, cookie: str) -> Pass | None:
        """Return the permissions of a session by its cookie value; None without such a session."""
        paired = self._pairing.find(cookie)
        if paired is None:
            return None
        scopes: frozenset[Scope] = frozenset(scope for scope in SCOPES if scope in paired.scopes)
        return Pass(self.anybody.scopes | scopes, _csrf_of(cookie), name=paired.name)

    def logout(self, cookie: str) -> None:
        """End the session with this cookie value. It may wait for the disk; raises StorageError."""
        self._pairing.log_out(cookie)


def _csrf_of(cookie: str) -> str:
    """Return the CSRF token of a paired browser: nothing but the hash of its cookie is stored."""
    return hmac.new(cookie.encode(errors="surrogatepass"), b"csrf", hashlib.sha256).hexdigest()
