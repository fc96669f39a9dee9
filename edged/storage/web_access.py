"""Pairing codes and the browser sessions made of them: one file of both processes."""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import secrets
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from edged.clock import Clock
from edged.domain.training.message import Message
from edged.errors import CorruptError, RefusedError, StorageError
from edged.logs import get_logger
from edged.storage.files.atomic import disk_errors, make_directory, owner_only, publish_file
from edged.storage.files.checksummed_json import read_message, seal

FILE, LOCK = "web-access.json", "web-access.lock"
LETTERS = "23456789ABCDEFGHJKMNPQRSTVWXYZ"  # none that looks like another; 8 of them are 39 bits
LENGTH = 8
CODE_SECONDS = 600.0
MOST_CODES = 5
MOST_WRONG = 10  # wrong codes from anywhere, then all codes are void
SESSION_SECONDS = 180 * 86_400.0
MOST_SESSIONS = 32
LONGEST_NAME = 40

log = get_logger("edged.web")


@dataclass(frozen=True)
class PairingCode:
    """A code that was shown and not used yet: its hash, what it opens, until when (Unix seconds)."""

    digest: str
    scopes: tuple[str, ...]
    name: str
    begun: float
    until: float
    wrong: int = 0


@dataclass(frozen=True)
class PairedSession:
    """A browser that was paired: its number and name, the hash of its cookie, what it may do, until when."""

    number: int
    name: str
    digest: str
    scopes: tuple[str, ...]
    begun: float
    until: float


@dataclass(frozen=True)
class WebAccess(Message):
    """The content of the file; `last` is the number of the newest session there ever was."""

    codes: tuple[PairingCode, ...] = ()
    sessions: tuple[PairedSession, ...] = ()
    last: int = 0

    def at(self, now: float) -> WebAccess:
        """Return it without what has expired, and without codes of the future: the clock was set back."""
        codes = tuple(code for code in self.codes if code.begun <= now < code.until)
        sessions = tuple(session for session in self.sessions if now < session.until)
        return replace(self, codes=codes, sessions=sessions)


class Pairing:
    """Gives out codes, and exchanges each once for a session; usable from any thread and process.

    The file in the directory `state` has hashes alone. A code is void after `CODE_SECONDS`, after its use,
    and with all others once `MOST_WRONG` wrong ones were tried.
    """

    def __init__(self, state: Path, clock: Clock) -> None:
        self._path = state / FILE
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] | None = None
        self._known = WebAccess()

    # ---- the command line --------------------------------------------------------------------

    def new_code(self, scopes: Iterable[str], name: str = "") -> str:
        """Store a new code, and return it as it is shown: `K7QM-4TXR`. Raises StorageError."""
        code = "".join(secrets.choice(LETTERS) for _ in range(LENGTH))
        now = self._clock.now()
        made = PairingCode(_hash(code), tuple(sorted(scopes)), name[:LONGEST_NAME], now, now + CODE_SECONDS)
        with self._changing() as known:
            self._write(replace(known, codes=(*known.codes, made)[-MOST_CODES:]))
        return f"{code[:4]}-{code[4:]}"

    def sessions(self) -> list[PairedSession]:
        """Return the sessions that count now, oldest first.

        Raises StorageError when this user may not read them.
        """
        with disk_errors("reading", self._path), suppress(FileNotFoundError):
            self._path.open("rb").close()
        return list(self._read().at(self._clock.now()).sessions)

    def forget(self, number: int | None = None) -> int:
        """End a session, or with None all of them and all codes; how many sessions ended.

        Raises RefusedError when there is no such session; StorageError when the disk refuses.
        """
        with self._changing() as known:
            kept = tuple(one for one in known.sessions if number is not None and one.number != number)
            gone = len(known.sessions) - len(kept)
            if number is not None and not gone:
                raise RefusedError(f"there is no session {number}", remedy="edged web sessions lists them")
            self._write(replace(known, sessions=kept, codes=() if number is None else known.codes))
        return gone

    # ---- the daemon ----------------------------------------------------------------------------

    def redeem(self, text: str) -> str | None:
        """Exchange what a person typed for a session's cookie value; None if it is no code that counts.

        The session is durable when this returns. Raises StorageError; then the code may be used up.
        """
        code = normalised(text)
        if code is None or not self._read().codes:
            return None
        digest, cookie, now = _hash(code), secrets.token_urlsafe(32), self._clock.now()
        with self._changing() as known:
            found = [one for one in known.codes if hmac.compare_digest(one.digest, digest)]
            if not found:
                self._write(replace(known, codes=tuple(_wrong(known.codes))))
                return None
            number = known.last + 1
            session = PairedSession(
                number, found[0].name or f"browser {number}", _hash(cookie), found[0].scopes,
                now, now + SESSION_SECONDS,
            )  # fmt: skip
            self._write(
                WebAccess(
                    tuple(one for one in known.codes if one is not found[0]),
                    (*known.sessions, session)[-MOST_SESSIONS:],
                    number,
                )
            )
        return cookie

    def find(self, cookie: str) -> PairedSession | None:
        """Return the session with this cookie value; None without one."""
        digest = _hash(cookie)
        found = None
        for session in self._read().at(self._clock.now()).sessions:
            if hmac.compare_digest(session.digest, digest):
                found = session
        return found

    def log_out(self, cookie: str) -> None:
        """End the session with this cookie value, if it is one. Raises StorageError."""
        session = self.find(cookie)
        if session is not None:
            with suppress(RefusedError):  # ended meanwhile
                self.forget(session.number)

    # ---- the file --------------------------------------------------------------------------------

    def _read(self) -> WebAccess:
        """Return what the file has; it is read again when another one is there."""
        with self._lock:
            try:
                status = self._path.stat()
            except OSError:
                self._seen, self._known = None, WebAccess()
                return self._known
            seen = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
            if seen != self._seen:
                self._known = self._load()
                self._seen = seen
            return self._known

    def _load(self) -> WebAccess:
        try:
            return read_message(self._path, WebAccess)
        except CorruptError as problem:
            remedy = "pair browsers again: edged web pair CONFIG"
            log.error("web_access_damaged", problem=problem.line(), remedy=remedy)
            return WebAccess()

    @contextmanager
    def _changing(self) -> Iterator[WebAccess]:
        """What counts now, while no other process changes it."""
        place = self._path.with_name(LOCK)
        with owner_only():
            make_directory(self._path.parent)
        with disk_errors("locking", place):
            descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            _give_to_owner(place)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield (self._load() if self._path.exists() else WebAccess()).at(self._clock.now())
        finally:
            os.close(descriptor)

    def _write(self, known: WebAccess) -> None:
        with owner_only():
            publish_file(self._path, seal(known.to_json()))
        _give_to_owner(self._path)


def normalised(text: str) -> str | None:
    """Return the code that a person meant; None for what is none.

    >>> normalised(" k7qm 4txr "), normalised("hunter2")
    ('K7QM4TXR', None)
    """
    code = "".join(text.upper().replace("-", " ").split())
    return code if len(code) == LENGTH and set(code) <= set(LETTERS) else None


def _wrong(codes: Iterable[PairingCode]) -> Iterator[PairingCode]:
    for code in codes:
        if code.wrong + 1 < MOST_WRONG:
            yield replace(code, wrong=code.wrong + 1)
        else:
            log.warning("pairing_void", reason="too many wrong codes", remedy="edged web pair CONFIG")


def _give_to_owner(path: Path) -> None:
    """Give a file that root has made to the owner of the state directory, whose daemon reads it."""
    if os.geteuid() != 0:
        return
    owner = path.parent.stat()
    try:
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
    except OSError as problem:
        raise StorageError(f"cannot be given to its owner: {problem.strerror}", where=str(path)) from problem


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
