"""Steering over MQTT: `request/<command>` in, `response/<command>` out, each with one effect at most.

A command that has an id is noted in the journal before it is carried out, and answered from there when it
comes again: redelivered, sent twice, after a restart or a power cut. What takes long is answered twice: at
once with `accepted`, and at its end.
"""

from __future__ import annotations

import collections
import json
import queue
import threading
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from edged.domain.commands.rules import (
    Answer,
    Freshness,
    Request,
    TokenBucket,
    answer_of,
    arguments,
    digest,
    identity,
    parse,
)
from edged.domain.commands.tasks import Handler, Sender, Task
from edged.domain.messages.encoding import json_ready
from edged.errors import ConfigError, EdgedError, RefusedError, StorageError
from edged.logs import get_logger
from edged.storage.journal.commands import CommandRecord, CommandRetention

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from edged.clock import Clock
    from edged.config import CommandsConfig
    from edged.domain.commands.rules import State
    from edged.storage.journal.journal import Journal

log = get_logger("edged.control")

MAX_WAITING = 100
REFUSALS = 10.0  # answers a second to what exceeds the rate; the others are counted only
COUNTED = (
    "received", "redelivered", "repeated", "limited", "unanswered", "successful", "failed", "refused",
)  # fmt: skip
INTERNAL = "internal error, see the device's log"
ENDED = "the daemon ended while it was carried out"


class CommandDelivery(Sender, Protocol):
    """A command as the session hands it over."""

    topic: str
    payload: bytes
    mid: int
    dup: bool
    retain: bool


class CommandDispatcher:
    """Takes commands one at a time on a thread of its own, and those that take long on another.

    Parameters
    ----------
    commands
        Handlers by name; a plain function is one of kind `now`.
    config
        How many commands may come and how old they may be.
    clock
        Judges their age.
    journal
        Where those with an id are kept.
    answer
        `answer(command, payload, sender)` publishes.
    acknowledge
        Tells the broker that a delivery need not come again.
    authorise
        Called once with name, request and payload of what would be carried out next; RefusedError when it
        may not be. What comes again is answered as before and not asked about again.
    check
        `check(name, fields)` raises ConfigError where a request does not have the right form.
    progress
        `progress(transaction, payload)` publishes how far a long one is.
    """

    def __init__(
        self,
        commands: Mapping[str, Handler | Callable[[Request], Request]],
        *,
        config: CommandsConfig,
        clock: Clock,
        journal: Journal,
        answer: Callable[[str, bytes, Sender], None],
        acknowledge: Callable[[list[Any]], None],
        authorise: Callable[[str, Request, bytes], None] = lambda *_: None,
        check: Callable[[str, Request], None] = lambda *_: None,
        progress: Callable[[str, bytes], None] = lambda *_: None,
    ) -> None:
        self._commands = {
            name: handler if isinstance(handler, Handler) else Handler(handler)
            for name, handler in commands.items()
        }
        self._config = config
        self._clock = clock
        self._journal = journal
        self._answer = answer
        self._acknowledge = acknowledge
        self._authorise = authorise
        self._check = check
        self._progress = progress
        self._freshness = Freshness(config.max_age)
        self._bucket = TokenBucket(config.rate, config.burst)
        self._refusals = TokenBucket(REFUSALS, REFUSALS)
        self._queue: queue.Queue[CommandDelivery | None] = queue.Queue(MAX_WAITING)
        self._errands: queue.SimpleQueue[tuple[Handler, Task] | None] = queue.SimpleQueue()
        self._seen: collections.deque[tuple[int, int]] = collections.deque(maxlen=2 * MAX_WAITING)
        self._tasks: list[Task] = []
        self._ending = False
        self._thread = threading.Thread(target=self._loop, name="control", daemon=True)
        self._errand_thread: threading.Thread | None = None
        self.counts = collections.Counter(dict.fromkeys(COUNTED, 0))

    # ---- life ------------------------------------------------------------------------------

    def start(self) -> None:
        """Go on with what the end of an earlier process cut off, then take commands."""
        for record in self._journal.open_commands():
            self._go_on(record)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End after the present command; of what takes longer the next start tells."""
        self._ending = True
        self._queue.put(None)
        self._thread.join(timeout)
        self._errands.put(None)
        if self._errand_thread is not None:
            for task in self.tasks:
                task.cancelled |= self._commands[task.name].kind == "aside"
            self._errand_thread.join(timeout)

    @property
    def tasks(self) -> list[Task]:
        """Commands that are under way, or wait for that."""
        return list(self._tasks)

    def _go_on(self, record: CommandRecord) -> None:
        handler = self._commands.get(record.name)
        task = self._task(record.name, record.request, record.id, record)
        task.accepted = record.answer is not None
        if handler is None or handler.resume is None:
            task.fail(EdgedError(ENDED, where=record.name, remedy="send it anew, as another transaction"))
            return
        log.info("command_goes_on", command=record.name, id=record.id)
        try:
            handler.resume(arguments(record.name, record.request), task)
        except EdgedError as problem:
            task.fail(problem)

    # ---- the network thread ----------------------------------------------------------------

    def receive(self, delivery: CommandDelivery) -> None:
        """Pass over a command that was carried out before its connection broke; else take it."""
        self.counts["received"] += 1
        seen = (delivery.mid, zlib.crc32(delivery.payload, zlib.crc32(delivery.topic.encode())))
        if delivery.dup and delivery.mid and seen in self._seen:
            self.counts["redelivered"] += 1
            self._acknowledge([delivery])
            return
        self._seen.append(seen)
        if delivery.retain and not delivery.payload:
            self.counts["cleared"] += 1  # somebody takes a retained command back
            self._acknowledge([delivery])
            return
        if self._bucket.take(self._clock.monotonic()):
            self._take(delivery)
        else:
            self._refuse(delivery, f"more than {self._config.rate:g} commands a second")

    def _take(self, delivery: CommandDelivery) -> None:
        """Take a command from the network thread; beyond 100 waiting ones it is refused."""
        try:
            self._queue.put_nowait(delivery)
        except queue.Full:
            self._refuse(delivery, f"{MAX_WAITING} commands are waiting already")

    def _refuse(self, delivery: CommandDelivery, why: str) -> None:
        """What is too much is answered as far as that is not too much itself, and counted."""
        self.counts["limited"] += 1
        if self._refusals.take(self._clock.monotonic()):
            self._conclude(delivery, _echo(delivery.payload), RefusedError(why, remedy="send it later"))
        else:
            self.counts["unanswered"] += 1
            self._acknowledge([delivery])

    # ---- the control thread ----------------------------------------------------------------

    def _loop(self) -> None:
        while (delivery := self._queue.get()) is not None:
            try:
                self._handle(delivery)
            except Exception:
                log.exception("command_failed", topic=delivery.topic)
                self._conclude(delivery, _echo(delivery.payload), EdgedError(INTERNAL))

    def _handle(self, delivery: CommandDelivery) -> None:
        name: str = _name(delivery)
        request: Request = {}
        try:
            request = parse(delivery.payload)
            if delivery.retain:
                raise RefusedError(
                    "retained commands are not carried out",
                    remedy="publish it without the retain flag and clear the retained one",
                )
            handler = self._commands.get(name)
            if handler is None:
                raise ConfigError(f"unknown command; known: {', '.join(sorted(self._commands))}", where=name)
            key = identity(name, request, delivery.correlation) if handler.effect else None
            if key is not None and self._answered_before(name, request, key, delivery):
                return
            self._check(name, arguments(name, request))
            self._freshness.check(name, request, self._clock.now(), self._journal.command_horizon())
            self._authorise(name, request, delivery.payload)
            if key is not None:
                self._record(handler, name, request, key, delivery)
        except EdgedError as problem:
            self._conclude(delivery, request, problem)
            return
        self._carry_out(handler, self._task(name, request, key, delivery))
        self._acknowledge([delivery])

    def _answered_before(self, name: str, request: Request, key: str, delivery: CommandDelivery) -> bool:
        """Answer a command that has come before as it was answered then."""
        known = self._journal.find_command(key)
        if known is None:
            return False
        if known.digest != digest(name, request):
            raise RefusedError(
                "another request came under this transaction", where="transaction", remedy="give each its own"
            )
        self.counts["repeated"] += 1
        log.info("command_repeated", command=name, id=key, state=known.state)
        answer = known.answer or answer_of(known.state, {"state": known.state}, request)
        self._publish(name, answer, delivery)
        self._acknowledge([delivery])
        return True

    def _record(
        self, handler: Handler, name: str, request: Request, key: str, delivery: CommandDelivery
    ) -> None:
        """Before the effect: from here on it is done once, or not at all."""
        now = self._clock.now()
        # Where nothing goes on after a restart, the fields are not needed again, and may be anything.
        kept = request if handler.resume else {k: request[k] for k in ("transaction",) if k in request}
        record = CommandRecord(
            key, name, now, digest(name, request), "accepted", kept,
            response_topic=delivery.response_topic, correlation=delivery.correlation,
        )  # fmt: skip
        self._journal.record_command(record, CommandRetention(self._config.keep, now - self._config.keep_for))

    def _carry_out(self, handler: Handler, task: Task) -> None:
        own = arguments(task.name, task.request)
        if handler.kind == "aside":
            self._accept(task, {})
            self._send_on(handler, task)
            return
        if handler.kind == "later":
            self._attempt(task, partial(handler.carry_out, own, task), partial(self._accept, task))
        else:
            self._attempt(task, partial(handler.carry_out, own), task.done)

    def _attempt(self, task: Task, act: Callable[[], Request], then: Callable[[Request], None]) -> None:
        """Have a handler act; its data goes to `then`, its error ends the task."""
        try:
            data = act()
            _json(data)
        except EdgedError as problem:
            task.fail(problem)
        except Exception:
            log.exception("command_failed", command=task.name)
            task.fail(EdgedError(INTERNAL))
        else:
            then(data)

    # ---- commands that take long -----------------------------------------------------------

    def _task(self, name: str, request: Request, key: str | None, sender: Sender) -> Task:
        task = Task(self, name, request, key, sender)
        self._tasks.append(task)
        return task

    def _accept(self, task: Task, data: Request) -> None:
        """Give the first of two answers, unless the task has ended meanwhile."""
        with task.lock:
            if task.over:
                return
            answer = answer_of("accepted", {"state": "accepted"} | data, task.request)
            self._keep(task, "accepted", answer)
            task.accepted = True
            self._publish(task.name, answer, task.sender)

    def _send_on(self, handler: Handler, task: Task) -> None:
        if self._errand_thread is None:
            self._errand_thread = threading.Thread(target=self._do_errands, name="errands", daemon=True)
            self._errand_thread.start()
        self._errands.put((handler, task))

    def _do_errands(self) -> None:
        while (errand := self._errands.get()) is not None and not self._ending:
            handler, task = errand
            if task.cancelled:
                task.fail(RefusedError("it was cancelled", where=task.name))
                continue
            task.executing()
            own = arguments(task.name, task.request)
            self._attempt(task, partial(handler.carry_out, own, task), task.done)

    def executing(self, task: Task) -> None:
        """A task begins."""
        self._keep(task, "executing", None)
        self.progress(task, {})

    def progress(self, task: Task, fields: Request) -> None:
        """Publish how far a task is, where it has a transaction."""
        named = task.transaction
        if named is None:
            return
        about = {"transaction": named, "command": task.name, "state": "executing", "ts": self._clock.now()}
        self._progress(named if isinstance(named, str) else json.dumps(named), _json(about | fields))

    def finish(self, task: Task, outcome: Request | EdgedError) -> None:
        """The end of a task: kept, and told to whoever can tell it from the first answer."""
        self._tasks.remove(task)
        state, answer = self._outcome(task.name, task.request, outcome)
        self._keep(task, state, answer, ended=self._clock.now())
        # Of a train without a name the result is told as events: nobody could tell two of its answers apart.
        if not task.accepted or task.key is not None or self._commands[task.name].kind == "aside":
            self._publish(task.name, answer, task.sender)

    # ---- answers ---------------------------------------------------------------------------

    def _keep(self, task: Task, state: State, answer: Answer | None, ended: float | None = None) -> None:
        if task.key is None:
            return
        try:
            self._journal.update_command(task.key, state, answer=answer, ended=ended)
        except StorageError as problem:
            # It is not done twice in any case: that it came is known, only its outcome is not.
            log.warning("answer_not_kept", command=task.name, id=task.key, problem=problem.line())

    def _conclude(self, delivery: CommandDelivery, request: Request, problem: EdgedError) -> None:
        """Answer what was not carried out."""
        name = _name(delivery)
        self._publish(name, self._outcome(name, request, problem)[1], delivery)
        self._acknowledge([delivery])

    def _outcome(self, name: str, request: Request, outcome: Request | EdgedError) -> tuple[State, Answer]:
        state: State = "successful"
        if isinstance(outcome, EdgedError):
            state = "refused" if isinstance(outcome, RefusedError) else "failed"
            log.warning("command_refused", command=name, problem=outcome.line())
        self.counts[state] += 1
        return state, answer_of(state, outcome, request)

    def _publish(self, name: str, answer: Answer, sender: Sender) -> None:
        self._answer(name, _json(answer), sender)


def _json(values: Any) -> bytes:
    return json.dumps(json_ready(values), default=float).encode()


def _name(delivery: CommandDelivery) -> str:
    return delivery.topic.rpartition("/request/")[2]


def _echo(payload: bytes) -> Request:
    """What the answer to a request that failed may echo."""
    try:
        return parse(payload)
    except ConfigError:
        return {}
