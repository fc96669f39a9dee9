"""Execution of commands: `request/<command>` in, `response/<command>` out, each with at most one effect.

A command that has an id is recorded in the journal before it is executed. If it arrives again (redelivered,
sent twice, after a restart or a power cut), the journal has its answer. Commands that take long are answered
twice: at once with `accepted`, and when they end.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from edged.clock import Clock
from edged.config import CommandsConfig
from edged.device.commands.answers import (
    CommandAnswers,
    CommandDelivery,
    HttpCommand,
    command_of,
    encoded,
)
from edged.domain.audit_chain import SIGNER
from edged.domain.commands.rules import (
    Answer,
    Freshness,
    Request,
    answer_of,
    arguments,
    digest,
    identity,
    parse,
)
from edged.domain.commands.signatures import Authority, SigningPolicy, TrustedKeys, UsedTransactions
from edged.domain.commands.tasks import Handler, RunningCommands, Task
from edged.domain.messages.requests import READS, REQUESTS
from edged.domain.messages.schema import check
from edged.errors import ConfigError, EdgedError, RefusedError
from edged.logs import get_logger
from edged.storage.journal.journal import CommandRecord, CommandRetention, Journal
from edged.storage.models.trust import Trust

log = get_logger("edged.control")

INTERNAL = "internal error, see the device's log"
ENDED = "the daemon ended while it was carried out"
KEPT, KEPT_SECONDS = 1000, 30 * 86400.0  # commands in the journal, so that none runs twice


class CommandDispatcher:
    """Executes commands on the thread that hands them over, and those that take long on one of its own.

    `handlers` are those of all commands, by name. `config`: how old commands may be. `clock` judges the age
    of commands. `journal` stores commands that have an id, with their answers, the newest `kept` of them.
    `answers` publishes answers and progress. `authority` checks signatures, once for each command, just
    before it is executed; None accepts all commands. `running` lists the commands in progress and counts the
    outcomes.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        config: CommandsConfig,
        clock: Clock,
        journal: Journal,
        answers: CommandAnswers,
        authority: Authority | None,
        running: RunningCommands,
        kept: int = KEPT,
    ) -> None:
        self._kept = kept
        self._handlers = handlers
        self._clock = clock
        self._journal = journal
        self._answers = answers
        self._authority = authority
        self._running = running
        self._freshness = Freshness(config.max_age)
        self._long: queue.SimpleQueue[tuple[Handler, Task] | None] = queue.SimpleQueue()
        self._stopping = False
        self._long_thread: threading.Thread | None = None

    def resume(self) -> None:
        """Resume the commands that an earlier process left open."""
        for record in self._journal.open_commands():
            self._resume(record)

    def _resume(self, record: CommandRecord) -> None:
        handler = self._handlers.get(record.name)
        task = self._answers.begin(record.name, record.request, record.id, record)
        if handler is None or not handler.survives:
            task.fail(EdgedError(ENDED, where=record.name, remedy="send it again, as another transaction"))
            return
        log.info("command_goes_on", command=record.name, id=record.id)
        if handler.resume is None:
            self._execute(handler, task)
            return
        try:
            handler.resume(arguments(record.name, record.request), task)
        except EdgedError as problem:
            task.fail(problem)

    def stop(self, timeout: float = 5.0) -> None:
        """End the commands that take long; those that do not end in time are concluded by the next start."""
        self._stopping = True
        self._long.put(None)
        if self._long_thread is not None:
            for task in self._running.tasks:
                task.cancelled |= task.kind == "aside"
            self._long_thread.join(timeout)

    # ---- one command -----------------------------------------------------------------------

    def execute(self, delivery: CommandDelivery) -> None:
        """Execute a command, or reject it; in both cases it is answered and acknowledged."""
        try:
            self._handle(delivery)
        except Exception:
            log.exception("command_failed", topic=delivery.topic)
            self._answers.reject(delivery, EdgedError(INTERNAL))

    def _handle(self, delivery: CommandDelivery) -> None:
        name = command_of(delivery)
        request: Request = {}
        try:
            request = parse(delivery.payload)
            if delivery.retain:
                raise RefusedError(
                    "retained commands are not carried out",
                    remedy="publish it without the retain flag and clear the retained one",
                )
            handler = self._handlers.get(name)
            if handler is None:
                raise ConfigError(f"unknown command; known: {', '.join(sorted(self._handlers))}", where=name)
            key = None if name in READS else identity(name, request, delivery.correlation)
            if key is not None and self._answered_before(name, request, key, delivery):
                return
            check(REQUESTS.get(name, {}), arguments(name, request))
            self._freshness.check(name, request, self._clock.now(), self._journal.command_horizon())
            signer = None
            if self._authority is not None:
                token = isinstance(delivery, HttpCommand) and delivery.token
                signer = self._authority.authorise(name, request, delivery.payload, token=token)
            request = {
                field: value for field, value in request.items() if field != SIGNER
            }  # it may say anything
            if signer is not None:
                request = {**request, SIGNER: signer}
            if key is not None:
                self._record(handler, name, request, key, delivery)
        except EdgedError as problem:
            self._answers.reject(delivery, problem, request)
            return
        self._execute(handler, self._answers.begin(name, request, key, delivery, handler.kind))
        self._answers.acknowledge(delivery)

    def _answered_before(self, name: str, request: Request, key: str, delivery: CommandDelivery) -> bool:
        """Repeat the answer to a command that is in the journal; False if it is not."""
        known = self._journal.find_command(key)
        if known is None:
            return False
        if known.digest != digest(name, request):
            raise RefusedError(
                "another request came under this transaction", where="transaction", remedy="give each its own"
            )
        self._running.count("repeated")
        log.info("command_repeated", command=name, id=key, state=known.state)
        answer = known.answer or answer_of(known.state, {"state": known.state}, request)
        self._answers.publish(name, answer, delivery)
        self._answers.acknowledge(delivery)
        return True

    def _record(
        self, handler: Handler, name: str, request: Request, key: str, delivery: CommandDelivery
    ) -> None:
        """Record a command before its effect: from here on it is executed once, or not at all."""
        now = self._clock.now()
        # The fields are only needed to resume the command after a restart.
        kept = request if handler.survives else {k: request[k] for k in ("transaction",) if k in request}
        record = CommandRecord(
            key, name, now, digest(name, request), "accepted", kept,
            response_topic=delivery.response_topic, correlation=delivery.correlation,
        )  # fmt: skip
        self._journal.record_command(record, CommandRetention(self._kept, now - KEPT_SECONDS))

    def _execute(self, handler: Handler, task: Task) -> None:
        own = arguments(task.name, task.request)
        if handler.kind == "aside":
            self._answers.accept(task, {})
            self._execute_later(handler, task)
            return
        if handler.kind == "later":
            self._attempt(task, partial(handler.carry_out, own, task), partial(self._answers.accept, task))
        else:
            known = (task,) if handler.kind == "again" else ()
            self._attempt(task, partial(handler.carry_out, own, *known), task.done)

    def _attempt(self, task: Task, act: Callable[[], Answer], then: Callable[[Answer], None]) -> None:
        """Call a handler; its data goes to `then`, its error ends the task."""
        try:
            data = act()
            encoded(data)
        except EdgedError as problem:
            task.fail(problem)
        except Exception:
            log.exception("command_failed", command=task.name)
            task.fail(EdgedError(INTERNAL))
        else:
            then(data)

    # ---- commands that take long -----------------------------------------------------------

    def _execute_later(self, handler: Handler, task: Task) -> None:
        if self._long_thread is None:
            self._long_thread = threading.Thread(target=self._execute_long, name="errands", daemon=True)
            self._long_thread.start()
        self._long.put((handler, task))

    def _execute_long(self) -> None:
        while (waiting := self._long.get()) is not None and not self._stopping:
            handler, task = waiting
            if task.cancelled:
                task.fail(RefusedError("cancelled", where=task.name))
                continue
            task.mark_executing()
            own = arguments(task.name, task.request)
            self._attempt(task, partial(handler.carry_out, own, task), task.done)


def command_authority(
    device: str,
    config: CommandsConfig,
    journal: Journal,
    clock: Clock,
    *,
    root: str = "edged",
    stream: str = "",
    makers: Sequence[Path] = (),
    trust: Trust | None = None,
) -> Authority | None:
    """Return what checks the signatures of commands; None without keys in the configuration.

    `device`: id of this device, `root`: what is before it in topics, `stream`: what is behind it. `config`:
    the trusted keys, and the commands that must be signed. `makers`: `model.keys`, which count for weights
    that come in. `journal` remembers which signed commands were accepted. `clock` judges the age of
    signatures. `trust` knows which keys took the place of others; without it none did. Raises ConfigError
    when a key cannot be used.
    """
    if not (config.keys or makers):
        return None
    from edged.signing import Keys
    from edged.storage.models.trust import CurrentKeys

    def keys(files: Sequence[Path]) -> TrustedKeys | None:
        if not files:
            return None
        return Keys(files) if trust is None else CurrentKeys(trust, files)

    policy = SigningPolicy(
        keys(config.keys),
        keys(makers),
        config.unsigned(),
        config.unsigned(token=True),
    )
    spent = UsedTransactions(journal)
    return Authority(root, f"{device}/{stream}" if stream else device, policy, clock=clock, spent=spent)
