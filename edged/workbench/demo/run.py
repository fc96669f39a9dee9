"""`edged demo`: the main job with nothing set up.

A broker of its own, a simulated plant (or a recorded stream) published through it, the real daemon
and the real trainer as child processes. First a commissioning phase, after which the model of that
moment is kept aside as "frozen"; then the plant ages and both are compared on every sample.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from edged.config import MqttConfig, loader
from edged.device.startup.bootstrap import with_context
from edged.domain.judging.outputs import answers
from edged.domain.stream.schema import Schema
from edged.domain.stream.temporal_context import TemporalContext
from edged.engines.inference import InferenceModel
from edged.errors import EdgedError, TrainingError
from edged.host.child_process import stop_process
from edged.mqtt.client.session import Session
from edged.mqtt.topics import Topics
from edged.storage.models.bundles import Bundle
from edged.storage.models.registry import Registry
from edged.workbench.demo.broker import EmbeddedBroker, Kind
from edged.workbench.demo.observer import Observer, Score
from edged.workbench.demo.plant import RATE, DemoStream, replayed, simulated
from edged.workbench.demo.screen import DemoState, Screen
from edged.workbench.demo.summary import DemoSummary, MachinesSummary

if TYPE_CHECKING:
    from edged.mqtt.client.message import ReceivedMessage

LABEL_DELAY = 40
WINDOWS = 40
# How long steps may take at that rate; at a lower one the machine is a slow one, and gets longer.
START_SECONDS = 60.0
STEP_SECONDS = 60.0
ANSWER_SECONDS = 20.0
STOP_SECONDS = 15.0
COMMISSION_STEPS = 1500


class Demo:
    """Broker, daemon, publisher and witness together."""

    def __init__(
        self,
        world: DemoStream,
        seconds: int,
        folder: Path,
        *,
        quiet: bool,
        broker: Kind | None = None,
        bundle: Path | None = None,
        rate: float | None = None,
    ) -> None:
        self.world, self.seconds, self.folder, self._rate = world, seconds, folder, rate
        self._patience = 1.0 if rate is None else max(1.0, RATE / rate)
        self._kind, self._bundle = broker, bundle
        self._screen = Screen(to_stderr=quiet)
        count = len(world)
        self.witness = Observer(world, Score(np.full(count, np.nan, np.float32)))
        self.frozen = Score(np.full(count, np.nan, np.float32))
        self.published = 0
        self.window = max(20, (count - world.commission) // WINDOWS)

    def run(self) -> DemoSummary:
        """Run the whole demo, and sum it up."""
        started = time.monotonic()
        with ExitStack() as stack:
            self._broker = broker = stack.enter_context(EmbeddedBroker(self._kind))
            path = self._configure(broker)
            self.config = loader.load(path)
            session = self._listen(stack, broker)
            for warning in self.world.warnings:
                self._screen.show_line(warning)
            self._screen.show_line(f"starting the daemon ({broker.name} as broker)")
            daemon = stack.enter_context(_daemon(path, self.folder / "daemon.log"))
            self._await_birth(daemon)
            stack.enter_context(self._screen)
            self._screen.show_line(
                f"commissioning: {self.world.commission} labelled samples, one thorough training"
            )
            self._commission(session)
            self._live(session, daemon, started)
            self._await_answers(daemon)
        summary = self._summary(time.monotonic() - started)
        end = self._state(time.monotonic() - started)
        self._screen.finish(replace(end, machines=summary.machines))
        return summary

    def _configure(self, broker: EmbeddedBroker) -> Path:
        stream: dict[str, Any] = {
            "topic": "plant/samples/#",
            "features": list(self.world.names) or self.world.x.shape[1],
            "task": "classify",
            "classes": list(self.world.classes),
            "id": "id",
            "label": "label",
            "label_topic": "plant/labels",
        }
        values = {
            "device": {"id": "demo"},
            "mqtt": {"host": "127.0.0.1", "port": broker.port, "protocol": broker.protocol},
            "stream": stream,
            # A minute to watch: nobody waits for company, and no flash is worn out in it.
            "training": {"every": None, "min_new_samples": 150, "max_write_rate": None},
            "storage": {"dir": str(self.folder / "state"), "commit_delay": 0.1},
            "report": {"every": "2s"},
        }
        if self._bundle is not None:
            values["model"] = {"bundle": str(self._bundle.resolve())}
        path = self.folder / "edged.yaml"
        path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
        return path

    def _listen(self, stack: ExitStack, broker: EmbeddedBroker) -> Session:
        settings = MqttConfig(host="127.0.0.1", port=broker.port, protocol=broker.protocol)
        session = Session(settings, client_id="demo-plant", will=None)
        topics = Topics(self.config.topic_root)
        for topic, handler in (
            (topics.predictions, self.witness.on_prediction),
            (topics.events, self.witness.on_event),
            (topics.status, self.witness.on_status),
            (topics.metrics, self.witness.on_metrics),
        ):
            session.subscribe([topic], 1, _acknowledging(session, handler))
        session.start()
        stack.callback(session.stop)
        self._train_topic = topics.request("train")
        return session

    def _await_birth(self, daemon: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS * self._patience
        while not self.witness.online.wait(0.1):
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise EdgedError("the daemon did not start", where="demo", remedy=self._last_log())

    def _last_log(self) -> str:
        lines = (self.folder / "daemon.log").read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "its log is empty"

    # ---- commissioning ---------------------------------------------------------------------

    def _commission(self, session: Session) -> None:
        """Publish the first part with its labels, train once thoroughly, keep that model aside."""
        for row in range(self.world.commission):
            self._publish(session, row)
            self._publish_label(session, row)
        patience = STEP_SECONDS * self._patience
        self.witness.wait(lambda: self.witness.answered >= self.world.commission, patience, "commissioning")
        trained = self.witness.trainings
        session.publish(self._train_topic, json.dumps({"steps": COMMISSION_STEPS}).encode(), qos=1)
        self.witness.wait(
            lambda: (
                self.witness.trainings > trained and self.witness.swaps and self.witness.training == "idle"
            ),
            patience,
            "the first training",
        )
        self._freeze()

    def _freeze(self) -> None:
        registry = Registry.open(self.config.storage.dir, readonly=True)
        version = registry.champion()
        if version is None:
            raise TrainingError("there is no champion after commissioning", where="demo")
        model = InferenceModel(registry.verify(version))
        registry.close()
        schema = with_context(self.config).stream.to_schema()
        context = TemporalContext.of(schema)
        keys = [self.world.key(row) for row in range(len(self.world))]
        x = self.world.x if context is None else context.extend(keys, self.world.x)
        got = answers(schema, model.predict(x))[:, 0]
        self.frozen.right[:] = got == self.world.y
        self.witness.events.append(f"commissioned: model {version} is kept aside as the frozen one")
        self._swaps_before = len(self.witness.swaps)

    # ---- the live part ---------------------------------------------------------------------

    def _live(self, session: Session, daemon: subprocess.Popen[bytes], started: float) -> None:
        start, count = self.world.commission, len(self.world)
        begin = time.monotonic()
        rate = (count - start) / max(5.0, self.seconds - (begin - started))
        if self._rate is not None:
            rate = min(rate, self._rate)
        for row in range(start, count):
            due = begin + (row - start) / rate
            while (pause := due - time.monotonic()) > 0:
                time.sleep(min(pause, 0.05))
            self._publish(session, row)
            if row - LABEL_DELAY >= start:
                self._publish_label(session, row - LABEL_DELAY)
            if row % 40 == 0:
                if daemon.poll() is not None:
                    raise EdgedError("the daemon ended", where="demo", remedy=self._last_log())
                self._screen.show(self._state(time.monotonic() - started))

    def _publish(self, session: Session, row: int) -> None:
        values = self.world.x[row].tolist()
        message: dict[str, Any] = {"id": str(row)}
        message |= dict(zip(self.world.names, values, strict=True)) if self.world.names else {"x": values}
        session.publish(f"plant/samples/{self.world.key(row)}", json.dumps(message).encode(), qos=1)
        self.published = row + 1

    def _publish_label(self, session: Session, row: int) -> None:
        label = {"id": str(row), "label": self.world.classes[self.world.y[row]]}
        session.publish("plant/labels", json.dumps(label).encode(), qos=1)

    def _await_answers(self, daemon: subprocess.Popen[bytes]) -> None:
        with self.witness.changed:
            self.witness.changed.wait_for(
                lambda: self.witness.answered >= len(self.world) or daemon.poll() is not None,
                ANSWER_SECONDS * self._patience,
            )

    # ---- what is shown ---------------------------------------------------------------------

    def _state(self, elapsed: float) -> DemoState:
        start, witness = self.world.commission, self.witness
        end = max(start, min(self.published, witness.answered) // self.window * self.window)
        phase = [name for at, name in self.world.phases if at <= max(self.published - 1, 0)]
        changes = [
            ((at - start) // self.window, name)
            for at, name in self.world.phases
            if start < at < self.published
        ]
        swaps = [max(0, (at - start) // self.window) for at, _ in witness.swaps[self._swaps_before :]]
        return DemoState(
            elapsed=elapsed,
            seconds=self.seconds,
            samples=self.published,
            predictions=witness.answered,
            dropped=max(0, self.published - witness.answered),
            labels=max(0, self.published - LABEL_DELAY),
            rate=self.published / max(elapsed, 1e-9),
            phase=phase[-1] if phase else "",
            frozen=self.frozen.windows(start, end, self.window),
            adapted=witness.adapted.windows(start, end, self.window),
            swaps=swaps,
            version=witness.swaps[-1][1] if witness.swaps else 0,
            training=witness.training,
            trainings=witness.trainings,
            rollbacks=witness.rollbacks,
            events=list(witness.events)[-6:],
            engine=witness.engine,
            broker=self._broker.name,
            changes=changes,
            windows=(len(self.world) - start) // self.window,
        )

    _swaps_before = 0

    def _summary(self, seconds: float) -> DemoSummary:
        start, count, witness = self.world.commission, len(self.world), self.witness
        return DemoSummary(
            samples=count,
            predictions=witness.answered,
            dropped=count - witness.answered,
            duplicated=witness.twice,
            trainings=witness.trainings,
            swaps=len(witness.swaps),
            rollbacks=witness.rollbacks,
            frozen={"accuracy": self.frozen.mean(start, count)},
            adapted={"accuracy": witness.adapted.mean(start, count)},
            engine=witness.engine,
            broker=self._broker.name,
            seconds=round(seconds, 1),
            warnings=tuple(self.world.warnings),
            machines=self._by_unit(start),
        )

    def _by_unit(self, start: int) -> MachinesSummary | None:
        """Where there are several units: the mean over them, and the one that is answered worst."""
        units = self.world.units
        if units is None:
            return None
        found = []
        for score in (self.frozen, self.witness.adapted):
            right = [np.nanmean(score.right[start:][units[start:] == one]) for one in np.unique(units)]
            found.append({"mean": float(np.nanmean(right)), "worst": float(np.nanmin(right))})
        return MachinesSummary(int(units.max()), found[0], found[1])


def _acknowledging(session: Session, handler: Any) -> Any:
    def handle(delivery: ReceivedMessage) -> None:
        handler(delivery)
        session.ack([delivery])

    return handle


@contextmanager
def _daemon(config: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The real daemon as a child process, its log in a file."""
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
    bundle: Path | None = None,
    rate: float | None = None,
    machines: int = 1,
) -> DemoSummary:
    """Run the demo and return its summary.

    The plant has so many `machines`.

    `broker` is the first one installed when absent; `bundle` the standard network, built at the start. Of
    samples a second no more than `rate` are published, and a machine that needs fewer gets longer to answer.
    Raises UnavailableError when no broker is available here; BundleError when `bundle` does not fit what is
    published.
    """
    world = replayed(data, seconds, rate) if data is not None else simulated(seconds, seed, rate, machines)
    _check_bundle(bundle, world)
    with tempfile.TemporaryDirectory(prefix="edged-demo-") as folder:
        return Demo(world, seconds, Path(folder), quiet=quiet, broker=broker, bundle=bundle, rate=rate).run()


def _check_bundle(bundle: Path | None, world: DemoStream) -> None:
    if bundle is not None:
        schema = Schema(world.names, world.x.shape[1], "classify", world.classes)
        Bundle.open(bundle).check_schema(schema)
