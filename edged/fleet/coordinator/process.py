"""`edged fleet run`: the coordinator as a process, with metrics for Prometheus on the loopback interface."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from pathlib import Path

from edged import __version__, logs
from edged.device.web.api.prometheus_text import CONTENT_TYPE, PrometheusText
from edged.fleet.config import load
from edged.fleet.coordinator.coordinator import Coordinator
from edged.fleet.coordinator.status import CoordinatorStatus
from edged.fleet.local_server import Answer, LocalServer, loopback
from edged.fleet.rules.rounds import Phase

PHASES: tuple[Phase, ...] = ("waiting", "open", "trial", "approval", "done")
MOST_REASONS = 20
GAUGES = (
    ("edged_fleet_round", "round", "Number of the round that is under way or was the last."),
    ("edged_fleet_model_version", "version", "Models that have become the fleet's."),
    ("edged_fleet_devices", "devices", "Devices that have told their state."),
    ("edged_fleet_devices_ready", "ready", "Devices that would train in a round now."),
    ("edged_fleet_updates", "updates", "Updates that count in the open round."),
    ("edged_fleet_updates_wanted", "wanted", "Updates that a round wants."),
    ("edged_fleet_mqtt_connected", "connected", "1 while the broker is connected."),
    ("edged_fleet_paused", "paused", "1 while no round is opened."),
)
ROLLOUT = (
    ("edged_fleet_rollout_stage", "stage", "Stage of the rollout, from 1; 0 without one."),
    ("edged_fleet_rollout_named", "named", "Devices that were given the model so far."),
    ("edged_fleet_rollout_reports", "reports", "Devices that have reported on it."),
)


def run(path: Path) -> None:
    """Coordinate as the configuration at `path` says, until the last round, SIGTERM or SIGINT."""
    config = load(path)
    logs.configure(config.log.level)
    coordinator = Coordinator(config)
    listen = config.metrics.listen
    metrics = None if listen is None else MetricsServer(loopback(listen), coordinator)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: coordinator.stop())
    try:
        coordinator.run()
    finally:
        if metrics is not None:
            metrics.close()


def page(coordinator: Coordinator) -> str:
    """Return the text that Prometheus reads."""
    text = PrometheusText()
    text.many("gauge", "edged_fleet_build_info", "The version; 1.", [({"version": __version__}, 1)])
    status = coordinator.latest_status
    if status is not None:
        _add(text, status)
    return text.text()


def _add(text: PrometheusText, status: CoordinatorStatus) -> None:
    labels = {"fleet": status.fleet}
    for name, key, about in GAUGES:
        text.many("gauge", name, about, [(labels, int(getattr(status, key)))])
    phases = [({**labels, "phase": phase}, int(status.phase == phase)) for phase in PHASES]
    text.many("gauge", "edged_fleet_phase", "1 for the phase of the round, 0 for the others.", phases)
    reasons = [
        ({**labels, "reason": reason}, count)
        for reason, count in Counter(status.why_not.values()).most_common(MOST_REASONS)
    ]
    text.many("gauge", "edged_fleet_devices_not_ready", "Devices that take no part, by the reason.", reasons)
    for name, key, about in ROLLOUT:
        text.many("gauge", name, about, [(labels, int(getattr(status.rollout, key, None) or 0))])
    worse = 0 if status.rollout is None else len(status.rollout.worse)
    text.many(
        "gauge", "edged_fleet_rollout_worse", "Devices for which the model is worse.", [(labels, worse)]
    )
    ended = [
        ({**labels, "outcome": outcome}, status.totals.rounds.get(outcome, 0))
        for outcome in ("accepted", "rejected")
    ]
    text.many("counter", "edged_fleet_rounds_total", "Rounds that ended since the start.", ended)
    refused = [({**labels, "reason": r}, count) for r, count in sorted(status.totals.refused.items())]
    text.many("counter", "edged_fleet_refused_total", "Messages refused since the start, by reason.", refused)


class MetricsServer:
    """Answers `GET /metrics` at `listen` (address and port) in a thread, until `close`.

    Raises UnavailableError when the address is taken.
    """

    def __init__(self, listen: tuple[str, int], coordinator: Coordinator) -> None:
        def answer(path: str) -> Answer:
            if path != "/metrics":
                return 404, "text/plain; charset=utf-8", b"not found: see /metrics\n"
            return 200, CONTENT_TYPE, page(coordinator).encode()

        self._server = LocalServer(listen, answer, {"Cache-Control": "no-store"}, "metrics.listen")
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering requests, and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
