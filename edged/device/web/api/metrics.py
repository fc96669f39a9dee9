"""The page `/metrics`: current figures, read from the parts of the daemon at each scrape."""

from __future__ import annotations

import asyncio
import platform
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from operator import attrgetter
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from edged import __version__
from edged.device.live_pipeline import LivePipeline
from edged.device.reporting.status import StatusCollector
from edged.device.reports import Report, StreamMetrics
from edged.device.web.api.event_stream import EventStream
from edged.device.web.api.inference import Inference
from edged.device.web.api.prometheus_text import (
    CONTENT_TYPE,
    PREDICTION,
    TRAINING,
    Histogram,
    Kind,
    PrometheusText,
    Sample,
)
from edged.device.web.bridge import ServingBridge
from edged.domain.events import DriftDetected, TrainingFinished
from edged.host.vitals import VitalsReader

# Series that begin with their first event have no increase then: all are here from the beginning, as 0.
OUTCOMES = ("done", "failed", "no_data", "stopped")
SOURCES, LEVELS = ("confidence", "error", "inputs"), ("drift", "warning")

Value = float | Histogram | Iterable[Sample] | None
"""Value of a family without labels, or its samples; None where there is none."""


class Family(NamedTuple):
    """A family of metrics: the names of its labels, or where in `StreamMetrics` its value is."""

    kind: Kind
    about: str
    path: str = ""
    labels: tuple[str, ...] = ()


OF_STREAM = {
    "edged_uptime_seconds": Family("gauge", "Seconds since the daemon started.", "uptime_s"),
    "edged_healthy": Family("gauge", "1 if the daemon works, 0 if a problem prevents it."),
    "edged_paused": Family("gauge", "1 for each part that a command has paused.", labels=("part",)),
    "edged_commands_total": Family("counter", "Commands by outcome.", labels=("outcome",)),
    "edged_samples_total": Family("counter", "Accepted samples.", "ingest.samples"),
    "edged_quarantined_total": Family("counter", "Rejected messages.", "quarantine"),
    "edged_ingest_lag_seconds": Family(
        "gauge", "Time from the newest sample's timestamp to its arrival.", "ingest.lag_s"),
    "edged_ingest_waiting_messages": Family("gauge", "Messages not yet acknowledged.", "ingest.waiting"),
    "edged_ingest_redelivered_total": Family(
        "counter", "Messages recognised as redelivered.", "ingest.redelivered"),
    "edged_ingest_overrun_total": Family(
        "counter", "QoS 0 messages dropped because the queue was full.", "ingest.overrun"),
    "edged_ingest_flooded_total": Family(
        "counter", "Readings dropped because their key exceeded its rate limit.", "ingest.flooded"),
    "edged_ingest_skewed_total": Family("counter", "Impossible event times.", "ingest.skewed"),
    "edged_ingest_failed_commits_total": Family(
        "counter", "Commits that the disk rejected.", "ingest.failed_commits"),
    "edged_stuck_sensors": Family("gauge", "Stuck sensors.", "ingest.stuck"),
    "edged_labels_total": Family("counter", "Labels that matched a sample.", "labels.count"),
    "edged_label_ratio": Family("gauge", "Share of all samples that got a label.", "labels.share"),
    "edged_label_contradictions_total": Family(
        "counter", "Labels that were changed later.", "ingest.contradicted"),
    "edged_label_delay_samples": Family(
        "gauge", "Samples that arrive between a sample and its label.", "labels.delay_samples"),
    "edged_label_requests_total": Family("counter", "Label requests.", "labels.requested"),
    "edged_model_info": Family("gauge", "Current model; always 1.", labels=("version", "source")),
    "edged_model_since_timestamp_seconds": Family("gauge", "Time at which the current model was promoted."),
    "edged_model_pinned": Family("gauge", "1 if the current model is pinned."),
    "edged_promotions_total": Family("counter", "Promoted candidates."),
    "edged_rejections_total": Family("counter", "Rejected candidates."),
    "edged_rollbacks_total": Family("counter", "Rollbacks."),
    "edged_predictions_total": Family("counter", "Predicted rows.", "predictions"),
    "edged_unanswerable_total": Family("counter", "Rows without a prediction."),
    "edged_live_accuracy_ratio": Family("gauge", "Accuracy on the newest labelled predictions."),
    "edged_live_coverage_ratio": Family(
        "gauge", "Share of the newest prediction sets that contain their label.", "live.coverage"),
    "edged_live_error": Family("gauge", "Mean error of the newest labelled predictions."),
    "edged_live_repeated": Family(
        "gauge", "The same figure of repeating the last known value, on the same predictions.",
        "live.repeated"),
    "edged_live_labelled_total": Family("counter", "Predictions that got a label.", "live.labelled"),
    "edged_prediction_duration_seconds": Family(
        "histogram", "Time from the arrival of a row to its prediction."),
    "edged_drift_signals_total": Family(
        "counter", "Drift signals by source and level.", labels=("source", "level")),
    "edged_drift_score_ratio": Family(
        "gauge", "Statistic of the newest drift signal, divided by its threshold."),
    "edged_anomaly_alarms": Family("gauge", "Keys with an active alarm."),
    "edged_training_runs_total": Family(
        "counter", "Training runs since the daemon started.", labels=("outcome",)),
    "edged_training_duration_seconds": Family("histogram", "Duration of successful training runs."),
    "edged_training_last_success_timestamp_seconds": Family("gauge", "End of the newest successful run."),
    "edged_training_running": Family("gauge", "1 while a run is in progress."),
    "edged_training_failures": Family(
        "gauge", "Failed runs since the last successful one.", "training.failures"),
    "edged_training_new_labels": Family("gauge", "Labels that no run has used yet.", "training.new"),
    "edged_buffer_samples": Family("gauge", "Stored samples.", "buffer.rows"),
    "edged_buffer_bytes": Family("gauge", "Size of the sample log.", "buffer.bytes"),
    "edged_buffer_limit_bytes": Family("gauge", "Size limit of the sample log."),
    "edged_buffer_evicted_total": Family("counter", "Evicted samples.", "buffer.evicted"),
    "edged_outbox_pending_messages": Family("gauge", "Messages that wait for the broker.", "outbox.pending"),
    "edged_outbox_bytes": Family("gauge", "Size of the outbox on disk.", "outbox.bytes"),
    "edged_outbox_dropped_total": Family("counter", "Discarded messages.", "outbox.dropped"),
    "edged_inference_requests_total": Family(
        "counter", "Inference requests over HTTP.", labels=("model", "version", "outcome")),
    "edged_inference_duration_seconds": Family(
        "histogram", "Duration of inference requests over HTTP.", labels=("model", "version")),
    "edged_inference_waiting_requests": Family("gauge", "Inference requests in progress."),
    "edged_http_refused_total": Family("counter", "Rejected requests by reason.", labels=("reason",)),
    "edged_http_event_streams": Family("gauge", "Open event streams."),
}  # fmt: skip
OF_DEVICE = {
    "edged_build_info": Family(
        "gauge", "Version of edged and platform; always 1.", labels=("version", "python", "machine")),
    "edged_mqtt_connected": Family("gauge", "1 if the broker is connected."),
    "edged_resident_memory_bytes": Family("gauge", "Resident memory of the daemon."),
    "edged_cpu_seconds_total": Family("counter", "CPU time of the daemon."),
    "edged_flash_written_bytes_total": Family(
        "counter", "Bytes that the daemon and its trainers have written."),
    "edged_temperature_celsius": Family("gauge", "Hottest thermal zone."),
    "edged_load1": Family("gauge", "Load average over one minute."),
    "edged_disk_free_bytes": Family("gauge", "Free disk space at the state directory."),
    "edged_battery_ratio": Family("gauge", "Charge of the battery."),
}  # fmt: skip


class Metrics:
    """Writes the page `/metrics`, and counts between scrapes what no other part counts.

    All its partners are only read; `refused` are the requests that the application rejected, by reason.
    `everybody` returns the metrics of all streams by their names, this one among them.
    """

    def __init__(
        self,
        pipeline: LivePipeline,
        status: StatusCollector,
        *,
        inference: Inference,
        bridge: ServingBridge,
        feed: EventStream,
        refused: Counter[str],
        everybody: Callable[[], Mapping[str, Metrics]],
    ) -> None:
        self._everybody = everybody
        self._pipeline = pipeline
        self._status = status
        self._inference = inference
        self._bridge = bridge
        self._feed = feed
        self._refused = refused
        self._vitals = VitalsReader(pipeline.config.storage.dir)
        self._runs = dict.fromkeys(OUTCOMES, 0)
        self._training = Histogram(TRAINING)
        self._last_success: float | None = None
        self._drifts = dict.fromkeys(product(SOURCES, LEVELS), 0)
        self._predictions = Histogram(PREDICTION)
        pipeline.serving.latencies.count_in(self._predictions.add_many)

    def reported(self, report: Report) -> None:
        """Count the runs and drifts that the daemon reports."""
        event = report.event
        if isinstance(event, TrainingFinished):
            self._runs[event.end.outcome] += 1
            if event.end.outcome == "done" and event.result is not None:
                self._training.add(event.result.seconds)
                self._last_success = report.ts
        elif isinstance(event, DriftDetected):
            self._drifts[event.signal.source, event.signal.level.name.lower()] += 1

    async def scrape(self, _: Request) -> Response:
        """Endpoint `/metrics`, of all streams; reads on another thread, as the disk might be slow."""
        return Response(await asyncio.to_thread(self.page), 200, {"cache-control": "no-store"}, CONTENT_TYPE)

    def page(self) -> str:
        """Write the figures of the device and its streams, with the label `stream` if there are several."""
        page = PrometheusText()
        for name, metrics in sorted(self._everybody().items()):
            page.add(metrics.of_stream(PrometheusText(**({"stream": name} if name else {}))))
        _write(page, OF_DEVICE, self._of_device())
        return page.text()

    def of_stream(self, page: PrometheusText) -> PrometheusText:
        """Add what is the stream's own; return the page."""
        figures = self._status.metrics()
        read: dict[str, Value] = {
            name: attrgetter(family.path)(figures) for name, family in OF_STREAM.items() if family.path
        }
        _write(page, OF_STREAM, read | self._of_loop(figures) | self._of_models(figures) | self._of_http())
        return page

    def _of_loop(self, figures: StreamMetrics) -> dict[str, Value]:
        pipeline, paused, anomaly = self._pipeline, self._status.paused.names, figures.anomaly
        commands = sorted(figures.commands.items())
        return {
            "edged_healthy": figures.problem is None,
            "edged_paused": [({"part": part}, part in paused) for part in ("serving", "training")],
            "edged_commands_total": [({"outcome": name}, count) for name, count in commands],
            "edged_unanswerable_total": pipeline.predictor.unanswerable,
            "edged_prediction_duration_seconds": self._predictions,
            "edged_anomaly_alarms": None if anomaly is None else len(anomaly.standing),
            "edged_buffer_limit_bytes": pipeline.config.storage.max_bytes,
        }

    def _of_models(self, figures: StreamMetrics) -> dict[str, Value]:
        states, models, live = self._status.states(), self._pipeline.models, figures.live
        named = {"version": str(states.model.version), "source": states.model.source}
        last, drifts = self._pipeline.predictor.drift.last, sorted(self._drifts.items())
        runs: Iterable[Sample] = [({"outcome": outcome}, count) for outcome, count in self._runs.items()]
        return {
            "edged_model_info": [(named, 1)],
            "edged_model_since_timestamp_seconds": states.model.since,
            "edged_model_pinned": states.model.pinned,
            "edged_promotions_total": models.promotions,
            "edged_rejections_total": models.rejections,
            "edged_rollbacks_total": models.rollbacks,
            "edged_live_accuracy_ratio": live.mean if live.of_classes else None,
            "edged_live_error": None if live.of_classes else live.mean,
            "edged_drift_signals_total": [({"source": s, "level": level}, n) for (s, level), n in drifts],
            "edged_drift_score_ratio": last.statistic / last.threshold if last and last.threshold else None,
            "edged_training_runs_total": runs,
            "edged_training_duration_seconds": self._training,
            "edged_training_last_success_timestamp_seconds": self._last_success,
            "edged_training_running": figures.training.running is not None,
        }

    def _of_http(self) -> dict[str, Value]:
        inference, loaded = self._inference, self._inference.loaded()
        inference.keep_only(loaded)
        model, refused = {"model": inference.model}, sorted(dict(self._refused).items())
        return {
            "edged_inference_requests_total": [
                ({**model, "version": str(version), "outcome": outcome}, count)
                for (version, outcome), count in sorted(inference.outcomes.items())
            ],
            "edged_inference_duration_seconds": [
                ({**model, "version": str(version)}, histogram)
                for version, histogram in sorted(inference.durations.items())
            ],
            "edged_inference_waiting_requests": self._bridge.waiting,
            "edged_http_refused_total": [({"reason": reason}, count) for reason, count in refused],
            "edged_http_event_streams": self._feed.streams,
        }

    def _of_device(self) -> dict[str, Value]:
        vitals = self._vitals.read()
        charge = vitals.battery_percent
        build = {"version": __version__, "python": platform.python_version(), "machine": platform.machine()}
        return {
            "edged_build_info": [(build, 1)],
            "edged_mqtt_connected": self._status.session.connected,
            "edged_resident_memory_bytes": vitals.rss_bytes,
            "edged_cpu_seconds_total": self._vitals.cpu_seconds(),
            "edged_flash_written_bytes_total": self._status.flash_bytes(),
            "edged_temperature_celsius": vitals.temperature_c,
            "edged_load1": vitals.load1,
            "edged_disk_free_bytes": vitals.disk_free_bytes,
            "edged_battery_ratio": None if charge is None else charge / 100,
        }


def _write(page: PrometheusText, families: Mapping[str, Family], values: Mapping[str, Value]) -> None:
    for name, family in families.items():
        value = values[name]
        samples = value if isinstance(value, Iterable) else [({}, value)]
        page.family(family.kind, name, family.about, samples)
