"""What a device publishes by itself: status, states, metrics, predictions, progress."""

from __future__ import annotations

from edged.domain.messages.answers import OBJECT, SETTINGS, STATES
from edged.domain.messages.schema_helpers import (
    ANYTHING,
    COUNT,
    FLAG,
    NUMBER,
    SECONDS,
    TEXT,
    VERSION,
    Schema,
    about,
    every,
    fields,
    listed,
    one_of,
    or_null,
)

OUTBOX: Schema = every(pending=COUNT, bytes=COUNT, dropped=COUNT)
WINDOWS: Schema = or_null(every(cut=COUNT, gaps=COUNT, out_of_order=COUNT, forgotten=COUNT))
ON_HOLD: Schema = about("whether a command has paused it", FLAG)
HISTORICAL: Schema = about("it was sent late, from the outbox", FLAG)

PUBLISHED: dict[str, Schema] = {
    "status": fields(
        "state",
        "version",
        "boot",
        more=True,
        state=one_of("online", "offline"),
        version=TEXT,
        boot=COUNT,
        seq=about("not in the last will", COUNT),
        ts=SECONDS,
    ),
    "state/model": every(
        version=VERSION,
        since=or_null(SECONDS),
        parent=or_null(VERSION),
        source=TEXT,
        metrics=OBJECT,
        pinned=FLAG,
        form=one_of("float32", "int8"),
        on_hold=ON_HOLD,
    ),
    "state/training": every(
        engine=or_null(TEXT),
        runs=about("ever begun, rounds of a fleet among them", COUNT),
        failures=COUNT,
        paused=about("after failures, as in the event training_paused", or_null(OBJECT)),
        on_hold=ON_HOLD,
        promotions=COUNT,
        rejections=COUNT,
        rollbacks=COUNT,
        waiting_for=listed(TEXT),
    ),
    "state/drift": every(signals=COUNT, last=or_null(OBJECT), inputs=or_null(OBJECT), regimes=COUNT),
    "state/buffer": every(
        rows=COUNT,
        bytes=COUNT,
        evicted=COUNT,
        problem=or_null(TEXT),
        on_hold=ON_HOLD,
        windows=WINDOWS,
        outbox=OUTBOX,
    ),
    "state/config": every(
        stream=OBJECT,
        training=OBJECT,
        gate=OBJECT,
        serving=OBJECT,
        storage=OBJECT,
        commands=OBJECT,
        report=OBJECT,
        **SETTINGS["properties"],
    ),
    "metrics": every(
        ts=SECONDS,
        seq=COUNT,
        boot=COUNT,
        uptime_s=NUMBER,
        problem=about("what keeps the device from its work", or_null(TEXT)),
        flash=about("bytes written to the disk since the start", OBJECT),
        ingest=every(
            samples=COUNT,
            per_s=NUMBER,
            lag_s=or_null(NUMBER),
            waiting=COUNT,
            redelivered=COUNT,
            failed_commits=COUNT,
            windows=WINDOWS,
        ),
        buffer=every(rows=COUNT, bytes=COUNT, evicted=COUNT),
        quarantine=COUNT,
        training=every(runs=COUNT, failures=COUNT, running=or_null(OBJECT), new=COUNT),
        model=VERSION,
        live=OBJECT,
        anomaly=or_null(OBJECT),
        labels=fields("count", more=True, count=about("labels that found their samples", COUNT)),
        predictions=COUNT,
        latency=OBJECT,
        outbox=OUTBOX,
        commands=about("since the start, by what became of them", {
            "type": "object", "additionalProperties": COUNT,
        }),
        recovery=OBJECT,
        host=OBJECT,
    ),
    "predictions": fields(
        "id",
        "key",
        "ts",
        "output",
        "model",
        more=True,
        id=TEXT,
        key=TEXT,
        ts=SECONDS,
        output=about("probabilities, values or an anomaly score", {"type": ["array", "number", "null"]}),
        label=ANYTHING,
        confidence=or_null(NUMBER),
        model=VERSION,
        boot=COUNT,
        seq=COUNT,
        historical=HISTORICAL,
    ),
    "progress": every(transaction=ANYTHING, command=TEXT, state=one_of(*STATES), ts=SECONDS),
}  # fmt: skip
"""By topic below `<root>/<device>/`; `progress` is that of any transaction."""

EVENTS: dict[str, Schema] = {
    "started": every(version=TEXT, model=VERSION, boot_reason=TEXT, repaired=listed(TEXT)),
    "training_started": every(run=COUNT, trigger=TEXT, new=COUNT),
    "training_finished": every(run=COUNT, outcome=one_of("done", "failed", "no_data", "stopped")),
    "training_paused": every(reason=TEXT),
    "training_resumed": every(run=COUNT),
    "checkpoint_damaged": every(generation=COUNT),
    "device_throttled": every(state=one_of("start", "end"), reasons=listed(TEXT)),
    "clock_set": every(step_s=NUMBER, before=SECONDS),
    "drift_detected": every(
        level=one_of("warning", "drift"), detector=TEXT, source=TEXT, offset=COUNT, features=listed(OBJECT)
    ),
    "candidate_rejected": every(run=COUNT, reasons=listed(TEXT)),
    "model_promoted": every(version=VERSION, parent=VERSION, origin=TEXT, reasons=listed(TEXT)),
    "model_rolled_back": every(from_=VERSION, to=VERSION, reason=TEXT),
    "anomaly": every(key=TEXT, state=one_of("start", "end"), offset=COUNT, since=SECONDS),
    "sensor_stuck": every(key=TEXT, features=listed(ANYTHING), more_=COUNT),
    "sensor_moves": every(key=TEXT, features=listed(ANYTHING), more_=COUNT),
    "sensor_flooding": every(key=TEXT, more_=COUNT),
    "sample_quarantined": every(reason=TEXT),
    "weights_applied": every(transfer=TEXT, state=one_of("promoted", "refused"), reasons=listed(TEXT)),
    "model_installed": every(transfer=TEXT, state=one_of("promoted", "refused"), reasons=listed(TEXT)),
    "bundle_installed": every(transfer=TEXT, state=one_of("promoted", "refused"), reasons=listed(TEXT)),
    "fleet_trained": every(round=COUNT, samples=COUNT, steps=COUNT, bytes=COUNT, norm=NUMBER),
    "fleet_accepted": every(round=COUNT, sendings=COUNT),
    "fleet_refused": every(round=COUNT, sendings=COUNT, reason=TEXT),
    "fleet_declined": every(round=COUNT, reason=TEXT),
    "fleet_failed": every(round=or_null(COUNT), reason=TEXT),
    "fleet_model": every(
        round=COUNT, model=TEXT, share=or_null(NUMBER), taken={"type": "boolean"}, reason=TEXT
    ),
    "label_requested": every(id=TEXT, key=TEXT, sample_ts=SECONDS, values=ANYTHING, answer=ANYTHING),
}
"""What the events have beside `event`, `ts`, `seq` and `boot`."""


def event() -> Schema:
    """The schema of a message on `events`."""
    common = every(event=one_of(*EVENTS), ts=SECONDS, seq=COUNT, boot=COUNT)
    common["properties"] |= {"historical": HISTORICAL}
    cases = [
        {"if": {"properties": {"event": {"const": name}}}, "then": schema} for name, schema in EVENTS.items()
    ]
    return common | {"allOf": cases}
