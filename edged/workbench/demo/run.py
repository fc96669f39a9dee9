"""`edged demo`: the main job without setup.

An embedded broker, a simulated plant (or a recorded stream) published through it, the real daemon and the
real trainer as child processes. First a commissioning phase, after which the model of that moment is kept
as "frozen"; then the plant ages, and both models are compared on every sample.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich.console import Console
from rich.status import Status
from rich.table import Table

from edged.charts.figures import count, percent
from edged.config import MqttConfig, loader
from edged.device.startup.bootstrap import with_context
from edged.domain.judging.outputs import answers
from edged.domain.stream.temporal_context import TemporalContext
from edged.engines.inference import InferenceModel
from edged.errors import EdgedError, TrainingError
from edged.host.child_process import stop_process
from edged.mqtt.client.message import ReceivedMessage
from edged.mqtt.client.session import Session
from edged.mqtt.topics import Topics
from edged.storage.models.registry import Registry
from edged.workbench.demo.broker import EmbeddedBroker, Kind, embedded_broker
from edged.workbench.demo.observer import DemoSummary, Observer, Score
from edged.workbench.demo.plant import RATE, DemoStream, replayed, simulated

LABEL_DELAY = 40
RECENT = 500  # samples whose accuracy is shown while the demo runs
LINE_SECONDS = 5.0  # between two lines of progress without a terminal
# How long steps may take at that rate; at a lower one the machine is a slow one, and gets longer.
START_SECONDS = 60.0
STEP_SECONDS = 180.0
ANSWER_SECONDS = 20.0
STOP_SECONDS = 15.0
COMMISSION_STEPS = 1500


class Screen:
    """Progress of the demo: a line that changes in place on a terminal, a line now and then elsewhere.

    With `to_stderr` stdout stays free for `--json`.
    """

    def __init__(self, *, to_stderr: bool) -> None:
        self.console = Console(stderr=to_stderr, highlight=False, markup=False, soft_wrap=True)
        file = self.console.file
        if isinstance(file, TextIOWrapper) and not self.console.encoding.startswith("utf"):
            file.reconfigure(errors="replace")
        self.status = Status("", console=self.console, spinner="line")
        self._shown = -math.inf

    def progress(self, line: str) -> None:
        """Show how far the demo is."""
        if self.console.is_terminal:
            self.status.update(line)
        elif time.monotonic() - self._shown >= LINE_SECONDS:
            self._shown = time.monotonic()
            self.console.print(line)


class Demo:
    """Broker, daemon, publisher and observer together."""

    def __init__(
        self, world: DemoStream, seconds: int, folder: Path, screen: Screen, rate: float | None = None
    ) -> None:
        self.world, self.seconds, self.folder, self._screen, self._rate = world, seconds, folder, screen, rate
        self._patience = 1.0 if rate is None else max(1.0, RATE / rate)
        unanswered = np.full(len(world), np.nan, np.float32)
        self.observer = Observer(world, Score(unanswered))
        self.frozen = Score(unanswered.copy())
        self._published = 0
        self._started = time.monotonic()

    def run(self, kind: Kind | None) -> DemoSummary:
        """Run the whole demo and summarise it."""
        show = self._screen.console.print
        with ExitStack() as stack:
            broker = stack.enter_context(embedded_broker(kind))
            path = self._configure(broker)
            self.config = loader.load(path)
            session = self._listen(stack, broker)
            for warning in self.world.warnings:
                show(warning)
            show(f"starting the daemon ({broker.name} as broker)")
            self._daemon = stack.enter_context(_daemon(path, self.folder / "daemon.log"))
            stack.enter_context(self._screen.status)
            self._wait(lambda: self.observer.online, START_SECONDS, "the start of the daemon")
            show(f"commissioning: {self.world.commission} labelled samples, one thorough training")
            self._commission(session)
            self._live(session)
            with suppress(EdgedError):  # unanswered samples are in the summary
                self._wait(lambda: self.observer.answered >= len(self.world), ANSWER_SECONDS, "all answers")
        summary = self._summary(broker.name)
        self._show(summary)
        return summary

    def _configure(self, broker: EmbeddedBroker) -> Path:
        values = {
            "device": {"id": "demo"},
            "mqtt": {"host": broker.host, "port": broker.port, "protocol": broker.protocol},
            "stream": {
                "topic": "plant/samples",
                "features": list(self.world.names) or self.world.x.shape[1],
                "task": "classify",
                "classes": list(self.world.classes),
                "id": "id",
                "label": {"topic": "plant/labels", "join": "id"},
            },
            # A minute of writing wears out no flash.
            "training": {"every": None, "new_labels": 150, "max_write_rate": None},
            "storage": {"dir": str(self.folder / "state"), "commit_delay": 0.1},
            "report": {"every": "2s"},
        }
        path = self.folder / "edged.yaml"
        path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
        return path

    def _listen(self, stack: ExitStack, broker: EmbeddedBroker) -> Session:
        def receive(delivery: ReceivedMessage) -> None:
            self.observer.receive(delivery.topic, json.loads(delivery.payload))
            session.ack([delivery])

        settings = MqttConfig(host=broker.host, port=broker.port, protocol=broker.protocol)
        session = Session(settings, client_id="demo-plant", will=None)
        topics = Topics(self.config.topic_root)
        session.subscribe([topics.predictions, topics.events, topics.status], 1, receive)
        session.start()
        stack.callback(session.stop)
        self._train_topic = topics.request("train")
        return session

    def _wait(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until `condition()` holds; EdgedError when time is up, the daemon ends or a training fails."""
        deadline = time.monotonic() + seconds * self._patience
        with self.observer.changed:
            while not condition():
                if self.observer.failure:
                    raise TrainingError(self.observer.failure, where="demo")
                if self._daemon.poll() is not None or time.monotonic() > deadline:
                    raise EdgedError(f"{what} did not happen", where="demo", remedy=self._last_log())
                self.observer.changed.wait(0.1)

    def _last_log(self) -> str:
        lines = (self.folder / "daemon.log").read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "its log is empty"

    # ---- commissioning ---------------------------------------------------------------------

    def _commission(self, session: Session) -> None:
        """Publish the first part with its labels, train once thoroughly, and keep that model."""
        observer = self.observer
        for row in range(self.world.commission):
            self._publish(session, row)
            self._publish_label(session, row)
        self._wait(lambda: observer.answered >= self.world.commission, STEP_SECONDS, "commissioning")
        trained = observer.trainings
        session.publish(self._train_topic, json.dumps({"steps": COMMISSION_STEPS}).encode(), qos=1)
        self._wait(
            lambda: observer.trainings > trained and observer.swaps > 0 and not observer.training,
            STEP_SECONDS,
            "the first training",
        )
        self._freeze()

    def _freeze(self) -> None:
        """Let the champion of this moment answer the whole stream: it is the frozen model."""
        with Registry.open(self.config.storage.dir, readonly=True) as registry:
            version = registry.champion()
            if version is None:
                raise TrainingError("there is no champion after commissioning", where="demo")
            model = InferenceModel(registry.verify(version))
        schema = with_context(self.config).stream.to_schema()
        context = TemporalContext.of(schema)
        keys = ["samples"] * len(self.world)
        x = self.world.x if context is None else context.extend(keys, self.world.x)
        self.frozen.right[:] = answers(schema, model.predict(x))[:, 0] == self.world.y

    # ---- the live part ---------------------------------------------------------------------

    def _live(self, session: Session) -> None:
        start, total = self.world.commission, len(self.world)
        begin = time.monotonic()
        rate = (total - start) / max(5.0, self.seconds - (begin - self._started))
        if self._rate is not None:
            rate = min(rate, self._rate)
        for row in range(start, total):
            due = begin + (row - start) / rate
            while (pause := due - time.monotonic()) > 0:
                time.sleep(min(pause, 0.05))
            self._publish(session, row)
            if row - LABEL_DELAY >= start:
                self._publish_label(session, row - LABEL_DELAY)
            if row % 40 == 0:
                if self._daemon.poll() is not None:
                    raise EdgedError("the daemon ended", where="demo", remedy=self._last_log())
                self._show_progress()

    def _publish(self, session: Session, row: int) -> None:
        values = self.world.x[row].tolist()
        message: dict[str, Any] = {"id": str(row)}
        message |= dict(zip(self.world.names, values, strict=True)) if self.world.names else {"x": values}
        session.publish("plant/samples", json.dumps(message).encode(), qos=1)
        self._published = row + 1

    def _publish_label(self, session: Session, row: int) -> None:
        label = {"id": str(row), "label": self.world.classes[self.world.y[row]]}
        session.publish("plant/labels", json.dumps(label).encode(), qos=1)

    # ---- what is shown ---------------------------------------------------------------------

    def _show_progress(self) -> None:
        observer, elapsed = self.observer, time.monotonic() - self._started
        for event in observer.pop_events():
            self._screen.console.print(f"{elapsed:5.0f} s  {event}")
        end = observer.answered
        start = max(self.world.commission, end - RECENT)
        phase = [name for at, name in self.world.phases if at < self._published][-1]
        self._screen.progress(
            f"{elapsed:5.0f} s  {self._published:,} samples, {self._published - end:,} unanswered | "
            f"adapted {percent(observer.adapted.mean(start, end))}, "
            f"frozen {percent(self.frozen.mean(start, end))} | model {observer.version} | {phase}"
        )

    def _summary(self, broker: str) -> DemoSummary:
        start, total, observer = self.world.commission, len(self.world), self.observer
        return DemoSummary(
            samples=total,
            predictions=observer.answered,
            dropped=total - observer.answered,
            duplicated=observer.twice,
            trainings=observer.trainings,
            swaps=observer.swaps,
            rollbacks=observer.rollbacks,
            frozen={"accuracy": self.frozen.mean(start, total)},
            adapted={"accuracy": observer.adapted.mean(start, total)},
            engine=observer.engine,
            broker=broker,
            seconds=round(time.monotonic() - self._started, 1),
            warnings=tuple(self.world.warnings),
        )

    def _show(self, summary: DemoSummary) -> None:
        """Print the adapted beside the frozen model, and the counts."""
        start, total = self.world.commission, len(self.world)
        quarter = total - max(1, (total - start) // 4)
        columns = ("share of right predictions", "overall", "last quarter")
        table = Table(*columns, box=None, header_style="bold", pad_edge=False)
        for name, score in (("adapted", self.observer.adapted), ("frozen", self.frozen)):
            table.add_row(name, percent(score.mean(start, total)), percent(score.mean(quarter, total)))
        self._screen.console.print(table)
        self._screen.console.print(
            f"{count(summary.samples, 'sample')}, {summary.dropped:,} dropped; "
            f"{count(summary.trainings, 'training run')} on the {summary.engine} engine, "
            f"{count(summary.swaps, 'swap')}, {count(summary.rollbacks, 'rollback')}"
        )


@contextmanager
def _daemon(config: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the real daemon as a child process, with its log in a file."""
    with log.open("wb") as sink:
        command = [sys.executable, "-m", "edged", "run", str(config)]
        process = subprocess.Popen(command, stdout=sink, stderr=sink)
    try:
        yield process
    finally:
        stop_process(process, STOP_SECONDS)


def run_demo(
    *,
    seconds: int,
    data: Path | None,
    seed: int,
    quiet: bool = False,
    broker: Kind | None = None,
    rate: float | None = None,
) -> DemoSummary:
    """Run the demo and return its summary.

    `broker` is the first installed one when absent. `rate` is the maximum number of samples per second; a
    machine that needs a lower one gets longer to answer. Raises UnavailableError when no broker is
    available here.
    """
    world = replayed(data, seconds, rate) if data is not None else simulated(seconds, seed, rate)
    with tempfile.TemporaryDirectory(prefix="edged-demo-") as folder:
        return Demo(world, seconds, Path(folder), Screen(to_stderr=quiet), rate).run(broker)
