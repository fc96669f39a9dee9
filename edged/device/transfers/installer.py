"""Weights and bundles that have come in whole: made a candidate, brought before the gate, told of once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.device.learning.trainer_client import StoppedRunError
from edged.errors import EdgedError, StorageError
from edged.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from edged.clock import Clock
    from edged.domain.protocols import ServedModel
    from edged.domain.training.training_run import Candidate
    from edged.storage.journal.transfers import Transfer
    from edged.storage.models.registry import Registry

Message = dict[str, Any]

OUTCOMES = "transfers"  # name of the registry's value that remembers how the last transfers ended
REMEMBERED = 32
EVENTS = {"weights": "weights_applied", "model": "model_installed", "bundle": "bundle_installed"}
TRIES = 3  # after an error of the disk

log = get_logger("edged.applying")


class TransferInstaller:
    """Carries a transfer out between two training runs; the same transfer is carried out once.

    Parameters
    ----------
    registry
        Keeps runs, models and outcomes.
    make
        For each kind of transfer what makes a candidate of it: called with the run's number, the transfer
        and the folder that it lies in.
    bring
        Fetches what a transfer names an address for.
    whole
        Where a transfer lies; None where it is not there whole.
    done
        Forgets a transfer.
    consider
        Brings the candidate before the gate: the verdict, and the new champion, if it became one.
    notify
        Told `(event, fields)`.
    """

    def __init__(
        self,
        *,
        registry: Registry,
        make: Mapping[str, Callable[[int, Transfer, Path], Candidate]],
        bring: Callable[[Transfer], None],
        whole: Callable[[Transfer], Path | None],
        done: Callable[[Transfer], None],
        consider: Callable[[Candidate], tuple[object, ServedModel | None]],
        notify: Callable[[str, Message], None],
        clock: Clock,
    ) -> None:
        self._registry = registry
        self._make = make
        self._bring = bring
        self._whole = whole
        self._done = done
        self._consider = consider
        self._notify = notify
        self._clock = clock
        self._tries = 0

    def outcome(self, name: str, sha256: str) -> Message | None:
        """How a transfer has ended; None for one that has not."""
        kept = (self._registry.get_value(OUTCOMES) or {}).get(name)
        if kept is not None and kept["update"] == sha256:
            return dict(kept)
        return self._of_model(name, sha256)

    def apply(self, transfer: Transfer) -> ServedModel | None:
        """Make it a candidate and judge that; what serves now because of it.

        Raises
        ------
        StorageError
            When the disk refuses: call it again.
        """
        if self.outcome(transfer.name, transfer.sha256) is not None:
            self._done(transfer)  # a crash came between the outcome and this
            return None
        try:
            candidate = self._candidate(transfer)
        except StoppedRunError:
            return None  # the next start takes it up
        except StorageError as problem:
            self._tries += 1
            if self._tries < TRIES:
                raise
            self._refused(transfer, problem)
            return None
        except EdgedError as problem:
            self._refused(transfer, problem)
            return None
        if candidate is None:
            return None  # a chunk was torn: its sender is told that it is missing
        _, served = self._consider(candidate)
        told = self._of_model(transfer.name, transfer.sha256) or {
            "transfer": transfer.name,
            "update": transfer.sha256,
            "state": "refused",
            "reasons": ["the candidate could not be verified or stored: see the event candidate_rejected"],
        }
        self._end(transfer, told)
        return served

    def _candidate(self, transfer: Transfer) -> Candidate | None:
        self._bring(transfer)
        folder = self._whole(transfer)
        if folder is None:
            return None
        run = self._registry.begin_run(_kind(transfer), self._clock.now(), {"transfer": transfer.name})
        try:
            candidate = self._make[_kind(transfer)](run, transfer, folder)
        except EdgedError as problem:
            self._registry.end_run(run, self._clock.now(), "failed", {"error": problem.line()})
            raise
        self._registry.end_run(run, self._clock.now(), "done", candidate.told())
        return candidate

    def _of_model(self, name: str, sha256: str) -> Message | None:
        """The outcome as the registry's models tell it: an accepted one has served, or serves."""
        made = [r for r in self._registry.records() if r.data.get("update") == sha256]
        if not made or made[-1].data.get("transfer") != name or made[-1].status == "candidate":
            return None
        model = made[-1]
        return {
            "transfer": name,
            "update": sha256,
            "state": "refused" if model.status == "rejected" else "promoted",
            "version": model.version,
            "share": model.data.get("share"),
            "reasons": list((model.verdict or {}).get("reasons", [])),
        }

    def _refused(self, transfer: Transfer, problem: EdgedError) -> None:
        told = {"transfer": transfer.name, "update": transfer.sha256, "state": "refused"}
        self._end(transfer, {**told, "reasons": [problem.line()]})

    def _end(self, transfer: Transfer, told: Message) -> None:
        """Remembered first, so that the same transfer has no second effect."""
        self._tries = 0
        kept = self._registry.get_value(OUTCOMES) or {}
        kept.pop(transfer.name, None)
        newest = [*kept.items(), (transfer.name, told)][-REMEMBERED:]
        self._registry.set_value(OUTCOMES, dict(newest))
        self._done(transfer)
        log.info(EVENTS[_kind(transfer)], **told)
        self._notify(EVENTS[_kind(transfer)], told)


def _kind(transfer: Transfer) -> str:
    return str(transfer.note.get("kind", "weights"))
