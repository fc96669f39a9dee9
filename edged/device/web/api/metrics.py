"""The page `/metrics`: current figures, read from the parts of the daemon at each scrape."""

from __future__ import annotations

import asyncio
import platform
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import product

from starlette.requests import Request
from starlette.responses import Response

from edged import __version__
from edged.device.live_pipeline import LivePipeline
from edged.device.reporting.status import StatusCollector
from edged.device.reports import Report
from edged.device.web.api.event_stream import EventStream
from edged.device.web.api.inference import Inference
from edged.device.web.api.prometheus_text import CONTENT_TYPE, PREDICTION, TRAINING, Histogram, PrometheusText
from edged.device.web.bridge import ServingBridge
from edged.domain.events import DriftDetected, TrainingFinished
from edged.host.vitals import VitalsReader
from edged.storage.samples.reader import Counters

# Series that begin with their first event have no increase then: all are here from the beginning, as 0.
OUTCOMES = ("done", "failed", "no_data", "stopped")
SOURCES, LEVELS = ("confidence", "error", "inputs"), ("drift", "warning")


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
        self.of_device(page)
        return page.text()

    def of_device(self, page: PrometheusText) -> None:
        """Add what the streams of a device share."""
        build = {"version": __version__, "python": platform.python_version(), "machine": platform.machine()}
        page.many("gauge", "edged_build_info", "Version of edged and platform; always 1.", [(build, 1)])
        connected = int(self._status.session.connected)
        page.gauge("edged_mqtt_connected", "1 if the broker is connected.", connected)
        self._host(page)

    def of_stream(self, page: PrometheusText) -> PrometheusText:
        """Add what is the stream's own; return the page."""
        counters = self._pipeline.samples.counters()
        self._about(page)
        self._stream(page, counters)
        self._labels(page, counters)
        self._model(page)
        self._drift(page)
        self._learning(page)
        self._keeping(page, counters)
        self._http(page)
        return page

    # ---- one subject each --------------------------------------------------------------------

    def _about(self, page: PrometheusText) -> None:
        page.gauge("edged_uptime_seconds", "Seconds since the daemon started.", self._status.uptime)
        healthy = self._status.problem is None
        page.gauge("edged_healthy", "1 if the daemon works, 0 if a problem prevents it.", int(healthy))
        names = self._status.paused.names
        paused = [({"part": part}, int(part in names)) for part in ("serving", "training")]
        page.many("gauge", "edged_paused", "1 for each part that a command has paused.", paused)
        counts = [({"outcome": name}, count) for name, count in sorted(self._status.running.counts.items())]
        page.many("counter", "edged_commands_total", "Commands by outcome.", counts)

    def _stream(self, page: PrometheusText, counters: Counters) -> None:
        ingest, committer = self._pipeline.ingestor, self._pipeline.committer
        page.counter("edged_samples_total", "Accepted samples.", counters.samples)
        page.counter("edged_quarantined_total", "Rejected messages.", counters.quarantined)
        page.gauge(
            "edged_ingest_lag_seconds",
            "Time from the newest sample's timestamp to its arrival.",
            committer.lag,
        )
        page.gauge("edged_ingest_waiting_messages", "Messages not yet acknowledged.", ingest.waiting)
        page.counter(
            "edged_ingest_redelivered_total", "Messages recognised as redelivered.", committer.redelivered
        )
        page.counter(
            "edged_ingest_overrun_total", "QoS 0 messages dropped because the queue was full.", ingest.overrun
        )
        page.counter(
            "edged_ingest_flooded_total",
            "Readings dropped because their key exceeded its rate limit.",
            ingest.admission.flooded,
        )
        page.counter("edged_ingest_skewed_total", "Impossible event times.", ingest.admission.skewed)
        page.counter(
            "edged_ingest_failed_commits_total", "Commits that the disk rejected.", committer.failed_commits
        )
        page.gauge("edged_stuck_sensors", "Stuck sensors.", ingest.admission.stuck)

    def _labels(self, page: PrometheusText, counters: Counters) -> None:
        predictor = self._pipeline.predictor
        page.counter("edged_labels_total", "Labels that matched a sample.", counters.labels)
        share = counters.labels / counters.samples if counters.samples else None
        page.gauge("edged_label_ratio", "Share of all samples that got a label.", share)
        page.counter(
            "edged_label_contradictions_total", "Labels that were changed later.", counters.contradicted
        )
        page.gauge(
            "edged_label_delay_samples",
            "Samples that arrive between a sample and its label.",
            predictor.label_delay,
        )
        asked = self._pipeline.requester.requested
        page.counter("edged_label_requests_total", "Label requests.", asked)

    def _model(self, page: PrometheusText) -> None:
        predictor, models = self._pipeline.predictor, self._pipeline.models
        version = predictor.champion.version
        record, reign = self._pipeline.registry.get(version), self._pipeline.registry.reign()
        named = {"version": str(version), "source": record.source}
        page.many("gauge", "edged_model_info", "Current model; always 1.", [(named, 1)])
        since = None if reign is None else reign.ts
        page.gauge(
            "edged_model_since_timestamp_seconds", "Time at which the current model was promoted.", since
        )
        page.gauge("edged_model_pinned", "1 if the current model is pinned.", int(record.pinned))
        page.counter("edged_promotions_total", "Promoted candidates.", models.promotions)
        page.counter("edged_rejections_total", "Rejected candidates.", models.rejections)
        page.counter("edged_rollbacks_total", "Rollbacks.", models.rollbacks)
        page.counter("edged_predictions_total", "Predicted rows.", predictor.predictions)
        page.counter("edged_unanswerable_total", "Rows without a prediction.", predictor.unanswerable)
        live = predictor.live_quality()
        accuracy, error = (live.mean, None) if live.of_classes else (None, live.mean)
        page.gauge("edged_live_accuracy_ratio", "Accuracy on the newest labelled predictions.", accuracy)
        about = "Share of the newest prediction sets that contain their label."
        page.gauge("edged_live_coverage_ratio", about, live.coverage)
        page.gauge("edged_live_error", "Mean error of the newest labelled predictions.", error)
        about = "The same figure of repeating the last known value, on the same predictions."
        page.gauge("edged_live_repeated", about, live.repeated)
        page.counter("edged_live_labelled_total", "Predictions that got a label.", live.labelled)
        about = "Time from the arrival of a row to its prediction."
        page.histograms("edged_prediction_duration_seconds", about, [({}, self._predictions)])

    def _drift(self, page: PrometheusText) -> None:
        drift = self._pipeline.predictor.drift
        found = [({"source": s, "level": level}, count) for (s, level), count in sorted(self._drifts.items())]
        page.many("counter", "edged_drift_signals_total", "Drift signals by source and level.", found)
        score = None
        if drift.last is not None and drift.last.threshold:
            score = drift.last.statistic / drift.last.threshold
        page.gauge(
            "edged_drift_score_ratio",
            "Statistic of the newest drift signal, divided by its threshold.",
            score,
        )
        anomalies = self._pipeline.predictor.anomalies
        if anomalies is not None:
            standing = len(anomalies.standing())
            page.gauge("edged_anomaly_alarms", "Keys with an active alarm.", standing)

    def _learning(self, page: PrometheusText) -> None:
        scheduler = self._pipeline.scheduler
        runs = [({"outcome": outcome}, count) for outcome, count in self._runs.items()]
        page.many("counter", "edged_training_runs_total", "Training runs since the daemon started.", runs)
        page.histograms(
            "edged_training_duration_seconds", "Duration of successful training runs.", [({}, self._training)]
        )
        about = "End of the newest successful run."
        page.gauge("edged_training_last_success_timestamp_seconds", about, self._last_success)
        running = int(scheduler.progress is not None)
        page.gauge("edged_training_running", "1 while a run is in progress.", running)
        page.gauge(
            "edged_training_failures",
            "Failed runs since the last successful one.",
            scheduler.backoff.failures,
        )
        new = self._status.new_labelled()
        page.gauge("edged_training_new_labels", "Labels that no run has used yet.", new)

    def _keeping(self, page: PrometheusText, counters: Counters) -> None:
        outbox = self._status.outbound.outbox()
        page.gauge("edged_buffer_samples", "Stored samples.", counters.rows)
        page.gauge("edged_buffer_bytes", "Size of the sample log.", counters.bytes)
        page.gauge(
            "edged_buffer_limit_bytes",
            "Size limit of the sample log.",
            self._pipeline.config.storage.max_bytes,
        )
        page.counter("edged_buffer_evicted_total", "Evicted samples.", counters.evicted)
        page.gauge("edged_outbox_pending_messages", "Messages that wait for the broker.", outbox.pending)
        page.gauge("edged_outbox_bytes", "Size of the outbox on disk.", outbox.bytes)
        page.counter("edged_outbox_dropped_total", "Discarded messages.", outbox.dropped)

    def _http(self, page: PrometheusText) -> None:
        inference, loaded = self._inference, self._inference.loaded()
        inference.keep_only(loaded)
        model = inference.model
        counts = [
            ({"model": model, "version": str(version), "outcome": outcome}, count)
            for (version, outcome), count in sorted(inference.outcomes.items())
        ]
        page.many("counter", "edged_inference_requests_total", "Inference requests over HTTP.", counts)
        times = [
            ({"model": model, "version": str(version)}, histogram)
            for version, histogram in sorted(inference.durations.items())
        ]
        page.histograms(
            "edged_inference_duration_seconds", "Duration of inference requests over HTTP.", times
        )
        page.gauge(
            "edged_inference_waiting_requests", "Inference requests in progress.", self._bridge.waiting
        )
        reasons = [({"reason": reason}, count) for reason, count in sorted(dict(self._refused).items())]
        page.many("counter", "edged_http_refused_total", "Rejected requests by reason.", reasons)
        page.gauge("edged_http_event_streams", "Open event streams.", self._feed.streams)

    def _host(self, page: PrometheusText) -> None:
        vitals = self._vitals.read()
        page.gauge("edged_resident_memory_bytes", "Resident memory of the daemon.", vitals.rss_bytes)
        page.counter("edged_cpu_seconds_total", "CPU time of the daemon.", self._vitals.cpu_seconds())
        page.counter(
            "edged_flash_written_bytes_total",
            "Bytes that the daemon and its trainers have written.",
            self._status.flash_bytes(),
        )
        page.gauge("edged_temperature_celsius", "Hottest thermal zone.", vitals.temperature_c)
        page.gauge("edged_load1", "Load average over one minute.", vitals.load1)
        page.gauge("edged_disk_free_bytes", "Free disk space at the state directory.", vitals.disk_free_bytes)
        charge = vitals.battery_percent
        page.gauge("edged_battery_ratio", "Charge of the battery.", None if charge is None else charge / 100)
