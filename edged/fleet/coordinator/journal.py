"""Files of a coordinator that survive `kill -9`: the state of its fleet, its models, accepted updates.

fleet.json          the course of rounds, sealed
lineage.json        every round with its numbers, sealed; the newest thousand
models/<hash>/      weights and their manifest, with parent and round
rounds/<n>          updates that count in round n; reports/<n> what devices made of its model
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edged.domain.federated.messages import BaseModelInfo, split
from edged.domain.json_fields import JsonObject, json_ready
from edged.domain.training.message import Message
from edged.domain.training.weight_coding import Weights
from edged.fleet.rules.rounds import FleetState
from edged.fleet.rules.verdict import StageVerdict
from edged.mqtt.weight_encoding import FILE, pack, unpack
from edged.storage.files import atomic
from edged.storage.files.append_log import AppendLog
from edged.storage.files.checksummed_json import read_message, read_sealed, seal

COURSE, LINEAGE, STATUS = "fleet.json", "lineage.json", "status.json"
REMEMBERED = 1000
NAMED = 200  # devices in one list


@dataclass(frozen=True)
class RoundRecord(Message):
    """A round that has ended: its model and the one before, and why it was accepted or not.

    `opened` and `ended` are in Unix seconds; `dissenters` are devices for which the model is worse;
    `approved_by` is the user who approved the rollout.
    """

    round: int
    version: int
    model: str
    parent: str
    opened: float | None
    ended: float
    accepted: bool
    reason: str
    numbers: Mapping[str, float | None] = field(default_factory=dict)
    dissenters: tuple[str, ...] = ()
    approved_by: str = ""

    @classmethod
    def of(
        cls, before: FleetState, after: FleetState, digest: str, now: float, verdict: StageVerdict | None
    ) -> RoundRecord:
        """Record how a round has ended at `now`: the states around it, its model and the last verdict."""
        return cls(
            round=after.number,
            version=after.version,
            model=digest,
            parent=before.standing.hash,
            opened=None if before.round is None else before.round.opened,
            ended=now,
            accepted=verdict is None or verdict.accepted,
            reason="not judged" if verdict is None else verdict.reason,
            numbers={} if verdict is None else verdict.numbers,
            dissenters=() if verdict is None else tuple(verdict.dissenters[:NAMED]),
            approved_by=before.approved_by,
        )

    @property
    def seconds(self) -> float:
        """Seconds from opening to end; 0 if the opening is unknown."""
        return 0.0 if self.opened is None else self.ended - self.opened


class CoordinatorJournal:
    """The directory `path` of one coordinator, which it has for itself.

    Raises StorageError when another process has it, or the disk refuses; CorruptError when the lineage is
    damaged.

    Attributes
    ----------
    lineage
        The newest rounds that have ended, the oldest first.
    """

    def __init__(self, path: Path, *, disk: atomic.Disk = atomic.DISK) -> None:
        self.path, self._disk = path, disk
        atomic.make_directory(path, disk=disk)
        self._lock = atomic.DirectoryLock(path)
        self._lock.acquire()
        for folder in (path, path / "models"):
            atomic.make_directory(folder, disk=disk)
            atomic.sweep(folder, disk=disk)
        self.lineage = read_lineage(path)

    def close(self) -> None:
        """Release the lock on the directory."""
        self._lock.release()

    # Where the fleet is.

    def course(self) -> FleetState | None:
        """Read the state of the fleet; None before the first start."""
        return read_course(self.path)

    def store(self, course: FleetState) -> None:
        """Store the state of the fleet, durably."""
        atomic.publish_file(self.path / COURSE, seal(course.to_json()), disk=self._disk)

    def record(self, entry: RoundRecord) -> None:
        """Add a round to the lineage, once."""
        known = [other for other in self.lineage if other.round != entry.round]
        rounds = [*known, entry][-REMEMBERED:]
        lineage = {"rounds": [json_ready(other.to_json()) for other in rounds]}
        atomic.publish_file(self.path / LINEAGE, seal(lineage), disk=self._disk)
        self.lineage = rounds

    def publish_status(self, status: bytes) -> None:
        """Replace the status that `edged fleet status` reads; it need not survive a power cut."""
        with atomic.disk_errors("writing", self.path / STATUS):
            staging = atomic.staging_path(self.path, STATUS)
            staging.write_bytes(status)
            staging.replace(self.path / STATUS)

    # Models.

    def add(self, weights: Weights, digest: str, source: JsonObject) -> BaseModelInfo:
        """Store a model, durably, under its fingerprint `digest`; the same model again changes nothing.

        `source` goes into its manifest: round, parent, devices, samples, refusals and time.
        """
        final = self.path / "models" / digest
        if not final.exists():
            staging = atomic.staging_path(final.parent, digest[:12])
            with atomic.disk_errors("writing", staging):
                staging.mkdir()
                (staging / FILE).write_bytes(pack(weights))
            atomic.publish_directory(staging, final, extra=source, disk=self._disk)
        return self.base(digest)

    def base(self, digest: str) -> BaseModelInfo:
        """A stored model, as announcements name it."""
        blob = self.blob(digest)
        return BaseModelInfo(digest, len(blob), len(split(blob)))

    def blob(self, digest: str) -> bytes:
        """Read a model in the encoding in which it is sent; CorruptError when it is damaged."""
        return read_blob(self.path, digest)

    def weights(self, digest: str) -> Weights:
        """Read the weights of a model."""
        return unpack(self.blob(digest))

    def models(self) -> list[str]:
        """List the fingerprints of the stored models."""
        return sorted(path.name for path in (self.path / "models").iterdir() if path.is_dir())

    def prune_models(self, used: set[str], keep: int) -> None:
        """Remove the oldest models beyond `keep`, but none that is used."""
        folder = self.path / "models"
        with atomic.disk_errors("reading", folder):
            order = sorted(self.models(), key=lambda digest: (folder / digest).stat().st_mtime_ns)
        for digest in order[: max(0, len(order) - keep)]:
            if digest not in used:
                atomic.remove(folder / digest, disk=self._disk)

    # What devices sent.

    def updates(self, number: int) -> AppendLog:
        """Open the updates that count in a round."""
        return AppendLog(self.path / "rounds" / str(number), disk=self._disk)

    def reports(self, number: int) -> AppendLog:
        """Open the reports of devices on a round's models."""
        return AppendLog(self.path / "reports" / str(number), disk=self._disk)

    def forget(self, before: int) -> None:
        """Remove what came for rounds before this one."""
        for folder in (self.path / "rounds", self.path / "reports"):
            if not folder.is_dir():
                continue
            for path in folder.iterdir():
                if path.name.isdigit() and int(path.name) < before:
                    with atomic.disk_errors("removing", path):
                        self._disk.remove(path)


# Of the coordinator in directory `path`, whether it runs or not.


def read_course(path: Path) -> FleetState | None:
    """Read the state of the fleet; None before the first start."""
    return read_message(path / COURSE, FleetState) if (path / COURSE).exists() else None


def read_lineage(path: Path) -> list[RoundRecord]:
    """Read every round that has ended, the oldest first."""
    rounds = read_sealed(path / LINEAGE)["rounds"] if (path / LINEAGE).exists() else []
    return [RoundRecord.from_json(entry) for entry in rounds]


def read_blob(path: Path, digest: str) -> bytes:
    """Read a stored model in the encoding in which it is sent; CorruptError when it is damaged."""
    folder = path / "models" / digest
    atomic.verify_directory(folder)
    with atomic.disk_errors("reading", folder):
        return (folder / FILE).read_bytes()
