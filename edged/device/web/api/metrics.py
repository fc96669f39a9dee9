"""The page `/metrics`: current figures, read from the parts of the daemon at each scrape."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from edged import __version__
from edged.device.web.api.prometheus_text import CONTENT_TYPE, PREDICTION, TRAINING, Histogram, PrometheusText
from edged.host.vitals import VitalsReader

if TYPE_CHECKING:
    from collections import Counter

    from starlette.requests import Request

    from edged.device.live_pipeline import LivePipeline
    from edged.device.reporting.status import StatusCollector
    from edged.device.web.api.event_stream import EventStream
    from edged.device.web.api.inference import Inference
    from edged.device.web.bridge import ServingBridge
    from edged.storage.samples.log import Counters

# Series that begin with their first event have no increase then: all are here from the beginning, as 0.
OUTCOMES = ("done", "failed", "no_data", "stopped")
SOURCES, LEVELS = ("confidence", "error", "inputs"), ("drift", "warning")


class Metrics:
    """Writes the page `/metrics`, and counts between scrapes what no other part counts.

    All its partners are only read; `refused` are the requests that the application rejected, by reason.
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
    ) -> None:
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
        pipeline.serving.latencies.count_in(self._predictions)

    def reported(self, topic: str, values: Mapping[str, Any]) -> None:
        """Count the runs and drifts that the daemon reports."""
        if topic != "events":
            return
        if values["event"] == "training_finished":
            self._runs[values["outcome"]] += 1
            if values["outcome"] == "done":
                self._training.add(values["seconds"])
                self._last_success = values["ts"]
        elif values["event"] == "drift_detected":
            self._drifts[values["source"], values["level"]] += 1

    async def scrape(self, _: Request) -> Response:
        """Endpoint `/metrics`; reads on another thread, as the disk might be slow."""
        return Response(await asyncio.to_thread(self.page), 200, {"cache-control": "no-store"}, CONTENT_TYPE)

    def page(self) -> str:
        """Write all figures as Prometheus text."""
        page = self.of_stream(PrometheusText())
        self.of_device(page)
        return page.text()

    def of_device(self, page: PrometheusText) -> None:
        """Add what the streams of a device share."""
        build = {"version": __version__, "python": platform.python_version(), "machine": platform.machine()}
        page.many("gauge", "edged_build_info", "What is running; always 1.", [(build, 1)])
        connected = int(self._status.session.connected)
        page.gauge("edged_mqtt_connected", "Whether the broker is connected.", connected)
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
        page.gauge("edged_uptime_seconds", "Since the start of the daemon.", self._status.uptime)
        healthy = self._status.problem is None
        page.gauge("edged_healthy", "Whether nothing keeps the daemon from its work.", int(healthy))
        names = self._status.paused.names
        paused = [({"part": part}, int(part in names)) for part in ("ingest", "serving", "training")]
        page.many("gauge", "edged_paused", "Parts that rest by command.", paused)
        counts = [({"outcome": name}, count) for name, count in sorted(self._status.running.counts.items())]
        page.many("counter", "edged_commands_total", "Commands by what became of them.", counts)

    def _stream(self, page: PrometheusText, counters: Counters) -> None:
        ingest, committer = self._pipeline.ingestor, self._pipeline.committer
        page.counter("edged_samples_total", "Samples ever accepted.", counters.samples)
        page.counter(
            "edged_quarantined_total", "Messages that could not become samples.", counters.quarantined
        )
        page.gauge("edged_ingest_lag_seconds", "From the newest sample's time to its arrival.", committer.lag)
        page.gauge("edged_ingest_waiting_messages", "Messages not yet acknowledged.", ingest.waiting)
        page.counter(
            "edged_ingest_redelivered_total", "Messages recognised as repeated.", committer.redelivered
        )
        page.counter("edged_ingest_overrun_total", "Messages of QoS 0 that found no room.", ingest.overrun)
        page.counter(
            "edged_ingest_flooded_total", "Readings of keys that sent too many.", ingest.admission.flooded
        )
        page.counter("edged_ingest_skewed_total", "Event times that could not be.", ingest.admission.skewed)
        page.counter(
            "edged_ingest_failed_commits_total", "Commits the disk refused.", committer.failed_commits
        )
        page.gauge("edged_stuck_sensors", "Sensors that stand still.", ingest.admission.stuck)

    def _labels(self, page: PrometheusText, counters: Counters) -> None:
        predictor = self._pipeline.predictor
        page.counter("edged_labels_total", "Labels that found their samples.", counters.labels)
        share = counters.labels / counters.samples if counters.samples else None
        page.gauge("edged_label_ratio", "Share of all samples that got a label.", share)
        page.counter("edged_label_contradictions_total", "Labels changed afterwards.", counters.contradicted)
        page.gauge("edged_label_delay_samples", "Samples between one and its label.", predictor.label_delay)
        asked = self._pipeline.requester.requested
        page.counter("edged_label_requests_total", "Labels people were asked for.", asked)

    def _model(self, page: PrometheusText) -> None:
        predictor, models = self._pipeline.predictor, self._pipeline.models
        version = predictor.champion.version
        record, reign = self._pipeline.registry.get(version), self._pipeline.registry.reign()
        named = {"version": str(version), "source": record.source}
        page.many("gauge", "edged_model_info", "The model that serves; always 1.", [(named, 1)])
        since = None if reign is None else reign.ts
        page.gauge("edged_model_since_timestamp_seconds", "When it began to serve.", since)
        page.gauge("edged_model_pinned", "Whether it is pinned.", int(record.pinned))
        page.counter("edged_promotions_total", "Candidates that took over.", models.promotions)
        page.counter("edged_rejections_total", "Candidates the gate refused.", models.rejections)
        page.counter("edged_rollbacks_total", "Models that were taken back.", models.rollbacks)
        page.counter("edged_predictions_total", "Rows predicted.", predictor.predictions)
        page.counter("edged_unanswerable_total", "Rows no model could answer.", predictor.unanswerable)
        live = predictor.live_quality()
        accuracy, error = (live.mean, None) if live.of_classes else (None, live.mean)
        page.gauge("edged_live_accuracy_ratio", "Of the newest labelled predictions.", accuracy)
        about = "Of the newest sets that contained their label."
        page.gauge("edged_live_coverage_ratio", about, live.coverage)
        page.gauge("edged_live_error", "Mean error of the newest labelled ones.", error)
        about = "The same figure of repeating the last known value, on the same predictions."
        page.gauge("edged_live_repeated", about, live.repeated)
        page.counter("edged_live_labelled_total", "Predictions whose label came.", live.labelled)
        about = "From the arrival of a row to its prediction."
        page.histograms("edged_prediction_duration_seconds", about, [({}, self._predictions)])

    def _drift(self, page: PrometheusText) -> None:
        drift = self._pipeline.predictor.drift
        found = [({"source": s, "level": level}, count) for (s, level), count in sorted(self._drifts.items())]
        page.many("counter", "edged_drift_signals_total", "Warnings and drifts.", found)
        score = None
        if drift.last is not None and drift.last.threshold:
            score = drift.last.statistic / drift.last.threshold
        page.gauge("edged_drift_score_ratio", "Newest signal: its statistic over its threshold.", score)
        anomalies = self._pipeline.predictor.anomalies
        if anomalies is not None:
            standing = len(anomalies.standing())
            page.gauge("edged_anomaly_alarms", "Keys whose alarm stands.", standing)

    def _learning(self, page: PrometheusText) -> None:
        scheduler = self._pipeline.scheduler
        runs = [({"outcome": outcome}, count) for outcome, count in self._runs.items()]
        page.many("counter", "edged_training_runs_total", "Training runs since the start.", runs)
        page.histograms("edged_training_duration_seconds", "Of runs that ended well.", [({}, self._training)])
        about = "End of the newest run that ended well."
        page.gauge("edged_training_last_success_timestamp_seconds", about, self._last_success)
        running = int(scheduler.progress is not None)
        page.gauge("edged_training_running", "Whether a run is under way.", running)
        page.gauge("edged_training_failures", "Runs failed since one ended well.", scheduler.backoff.failures)
        new = self._status.new_labelled()
        page.gauge("edged_training_new_labels", "Labels no run has learned from.", new)

    def _keeping(self, page: PrometheusText, counters: Counters) -> None:
        outbox = self._status.outbound.outbox()
        page.gauge("edged_buffer_samples", "Samples in the log.", counters.rows)
        page.gauge("edged_buffer_bytes", "Size of the log.", counters.bytes)
        page.gauge("edged_buffer_limit_bytes", "Its bound.", self._pipeline.config.storage.max_bytes)
        page.counter("edged_buffer_evicted_total", "Samples evicted.", counters.evicted)
        page.gauge("edged_outbox_pending_messages", "Messages the broker has not got.", outbox.pending)
        page.gauge("edged_outbox_bytes", "Their size on the disk.", outbox.bytes)
        page.counter("edged_outbox_dropped_total", "Messages given up.", outbox.dropped)

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
        page.histograms("edged_inference_duration_seconds", "Of inference requests over HTTP.", times)
        page.gauge("edged_inference_waiting_requests", "Without an answer yet.", self._bridge.waiting)
        reasons = [({"reason": reason}, count) for reason, count in sorted(dict(self._refused).items())]
        page.many("counter", "edged_http_refused_total", "Requests refused, by reason.", reasons)
        page.gauge("edged_http_event_streams", "Open event streams.", self._feed.streams)

    def _host(self, page: PrometheusText) -> None:
        vitals = self._vitals.read()
        page.gauge("edged_resident_memory_bytes", "Of the daemon.", vitals.rss_bytes)
        page.counter("edged_cpu_seconds_total", "Processor time of the daemon.", self._vitals.cpu_seconds())
        page.counter(
            "edged_flash_written_bytes_total",
            "Written by the daemon and its trainers.",
            self._status.flash_bytes(),
        )
        page.gauge("edged_temperature_celsius", "Hottest thermal zone.", vitals.temperature_c)
        page.gauge("edged_load1", "Load average over one minute.", vitals.load1)
        page.gauge("edged_disk_free_bytes", "Where the state is.", vitals.disk_free_bytes)
        charge = vitals.battery_percent
        page.gauge("edged_battery_ratio", "Charge of the battery.", None if charge is None else charge / 100)
