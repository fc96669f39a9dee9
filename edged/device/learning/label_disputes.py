"""Labels that contradict the model as no change of the world does, until somebody decides about them."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from edged.domain.events import LabelsDisputed
from edged.domain.labels.label_watch import Dispute, LabelWatch, Suspicion, explained
from edged.errors import RefusedError

if TYPE_CHECKING:
    from edged.device.events import Events
    from edged.device.serving import HeadTeacher, Predictor
    from edged.storage.models.registry import Registry
    from edged.storage.samples.log import SampleLog

DISPUTES = "label_disputes"  # the registry's value that holds what is set aside


class LabelDisputes:
    """Carries out in the sample log what the watch of `predictor` finds of labels, off the serving thread.

    `registry` keeps disputes over a restart; `events` hears of each. May be called from several threads.
    """

    def __init__(
        self,
        predictor: Predictor,
        teacher: HeadTeacher,
        samples: SampleLog,
        registry: Registry,
        events: Events,
    ) -> None:
        self._watch = watch = predictor.watch
        self._teacher, self._samples, self._registry = teacher, samples, registry
        self._events, self._schema = events, predictor.schema
        self._offsets: list[int] = []
        self._unlearn = False  # whether the head may know some of them
        self._lock = threading.Lock()
        if watch is not None:
            watch.load(registry.get_value(DISPUTES))

    @property
    def problem(self) -> str | None:
        """Which source is in dispute, in one line; None for none."""
        disputes = () if self._watch is None else self._watch.disputes
        if not disputes:
            return None
        more = f", and {len(disputes) - 1} more" if len(disputes) > 1 else ""
        remedy = f"if they are right: edged ctl DEVICE accept labels={disputes[0].source}"
        return f"{self._describe(disputes[0])}{more}; {remedy}"

    def apply(self) -> None:
        """Judge suspicions, and set labels aside that are due.

        Raises StorageError when the disk refuses: call it again, no label is forgotten.
        """
        if self._watch is None:
            return
        with self._lock:
            for suspicion in self._watch.pop_suspicions():
                self._examine(self._watch, suspicion)
            self._offsets += self._watch.pop_aside()
            stored = self._samples.next_offset() if self._offsets else 0
            here = [offset for offset in self._offsets if offset < stored]
            if here:
                self._samples.exclude(here)
                if self._unlearn:
                    self._teacher.forget()
                self._offsets = [offset for offset in self._offsets if offset >= stored]
                self._unlearn = self._unlearn and bool(self._offsets)

    def _examine(self, watch: LabelWatch, suspicion: Suspicion) -> None:
        rows = self._samples.rows(suspicion.offsets)
        measured, against = rows.x[:, : self._schema.measured], suspicion.contradicts(rows.offsets.tolist())
        if explained(measured, against):
            return
        proven = suspicion.proven or self._teacher.confirms(
            suspicion.predicted, rows.x[against], rows.seq, early=suspicion.early
        )
        if suspicion.early and not proven:
            return
        for dispute in watch.confirm(replace(suspicion, proven=proven)):
            self._unlearn = True
            self._events.event(self._event(dispute))
        self._registry.set_value(DISPUTES, watch.dump())
        self._events.problem_changed()

    def forget(self) -> None:
        """Forget what was set aside, as the labels are gone."""
        if self._watch is not None:
            self._watch.load(None)
            self._registry.set_value(DISPUTES, None)

    def release(self, source: str, *, earlier: bool) -> int:
        """Trust a source again; with `earlier` learn from what was set aside, too; how many labels.

        Raises RefusedError when it is not in dispute.
        """
        self.apply()
        with self._lock:
            if self._watch is None or not self._watch.release(source):
                known = [dispute.source for dispute in self._watch.disputes] if self._watch else []
                remedy = f"in dispute: {', '.join(known) or 'none'}"
                raise RefusedError("this source is not in dispute", where=source, remedy=remedy)
            self._registry.set_value(DISPUTES, self._watch.dump())
            back = self._samples.readmit(source) if earlier else 0
            self._teacher.forget()
        self._events.problem_changed()
        return back

    def _event(self, dispute: Dispute) -> LabelsDisputed:
        predicted, said = self._schema.classes[dispute.predicted], self._schema.classes[dispute.said]
        labels = "all" if dispute.whole else "contradicting" if dispute.proven else "none"
        return LabelsDisputed(dispute.source, predicted, said, labels, self._describe(dispute))

    def _describe(self, dispute: Dispute) -> str:
        names = self._schema.classes
        pair = f"{names[dispute.said]} where the model says {names[dispute.predicted]}"
        if dispute.whole:
            return f"all labels of {dispute.source} are set aside ({pair})"
        if dispute.proven:
            return f"labels of {dispute.source} that contradict the model are set aside ({pair})"
        return f"labels of {dispute.source} contradict the model ({pair})"
