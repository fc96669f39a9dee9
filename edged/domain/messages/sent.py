"""What a device sends: answers to commands, and what it publishes by itself; and all schemas by topic."""

from __future__ import annotations

from edged.domain.messages.requests import REQUESTS, whole
from edged.domain.messages.schema import (
    ANYTHING,
    COUNT,
    FLAG,
    NUMBER,
    OBJECT,
    SECONDS,
    TEXT,
    VERSION,
    Schema,
    about,
    each,
    every,
    fields,
    listed,
    one_of,
    or_null,
)

DIALECT = "https://json-schema.org/draft/2020-12/schema"
STATES = ("accepted", "executing", "successful", "failed", "refused")

OUTBOX = every(**each(COUNT, "pending", "bytes", "dropped"))
WINDOWS = or_null(every(**each(COUNT, "cut", "gaps", "out_of_order", "forgotten")))
ON_HOLD = about("whether a command has paused the component", FLAG)
HISTORICAL = about("sent late, from the outbox", FLAG)
VERDICT = every({"promoted": or_null(VERSION), "summary": TEXT}, accepted=FLAG, reasons=listed(TEXT))
PAUSED = every(paused=listed(TEXT))
SETTINGS = every(
    desired=about("values set by command", OBJECT),
    reported=about("values in effect", OBJECT),
    needs_restart=about("keys that take effect at the next start", listed(TEXT)),
)
AUDIT_HEAD = about("head of the audit log: the last entry and its hash", or_null(OBJECT))
SO_MANY = fields(more=True, **each(COUNT, "labelled", "unlabelled"), held=FLAG)
# The first of two answers has nothing else.
ACCEPTED = {"state": one_of("accepted")}

SUMMARY = about("result of the newest labels in one sentence; null before the first run", or_null(TEXT))
SUMMED_UP: Schema = {"summary": about("one sentence for people", TEXT)}

STATUS = every(
    state=one_of("online", "degraded", "stopped", "crashed"), problem=or_null(TEXT),
    health=every(state=one_of("ok", "degraded", "stopped", "crashed"), reasons=listed(TEXT)),
    on_hold=about("components paused by a command", listed(TEXT)),
    ts=SECONDS, uptime_s=NUMBER, version=TEXT,
    **each(COUNT, "boot", "samples", "labels", "quarantined", "evicted"),
    model=every(version=VERSION, since=or_null(SECONDS), quality=or_null(OBJECT)),
    training=every(
        {"summary": SUMMARY, "summary_ts": or_null(SECONDS)},
        runs=COUNT, **each(or_null(OBJECT), "last", "progress", "paused"),
    ),
    outbox=OUTBOX, engine=or_null(TEXT), audit=AUDIT_HEAD,
)  # fmt: skip

CLASSES = every(
    classes=about("current classes", listed(TEXT)), free=about("number of further classes possible", COUNT)
)

TRANSFER = every(
    {
        "topic": about("topic of the chunks, with the number as a further level", TEXT),
        "missing": listed(COUNT),
        "version": or_null(VERSION),
        "reasons": listed(TEXT),
    },
    state=one_of("receiving", "executing", "promoted", "refused"),
    transfer=TEXT,
)

ANSWERS: dict[str, Schema] = {
    "train": every({
        "state": about("only in the first of two responses", one_of("accepted")),
        **each(COUNT, "new_samples", "run", "steps", "samples"),
        "outcome": one_of("done"), "engine": TEXT, "verdict": or_null(VERDICT),
    }),
    "cancel": every(cancelled=about("the cancelled command", TEXT), run=or_null(COUNT)),
    "checkpoint": every(ACCEPTED | each(or_null(COUNT), "generation", "step")),
    "accept": every(accepted=about("number of alarms, or of labels that edged now learns from", COUNT)),
    "weights.get": every(version=VERSION, chunks=COUNT, sent=COUNT, manifest=OBJECT),
    "weights.apply": TRANSFER,
    "model.install": TRANSFER,
    "bundle.install": TRANSFER,
    "keys.rotate": every(keys=listed(OBJECT)),
    "keys.revoke": every(keys=listed(OBJECT)),
    "drift.reset": every(forgotten=about("signals since startup", COUNT)),
    "pause": PAUSED,
    "resume": PAUSED,
    "promote": every(from_=VERSION, to=VERSION),
    "rollback": every(from_=VERSION, to=VERSION, reason=TEXT),
    "pin": every(pinned=VERSION),
    "unpin": every(unpinned=listed(VERSION)),
    "evaluate": every(ACCEPTED | each(COUNT, "rows", "first_offset", "last_offset") | {
        "version": VERSION,
        "figures": about("accuracy, balanced_accuracy, kappa; mae, rmse, r2; or error", OBJECT),
    }),
    "export": every(ACCEPTED | {
        "version": VERSION, "file": about("in the state directory", TEXT), "bytes": COUNT, "sha256": TEXT,
    }),
    "label": fields(
        "number", "before", "after", more=True, **each(COUNT, "labelled", "unknown"),
        number=about("number for label.undo", COUNT), held=about("whether a label holds now", FLAG),
        before=SO_MANY, after=SO_MANY,
    ),
    "label.undo": fields(
        "number", "undone", "before", "after", more=True, **each(COUNT, "number", "undone"),
        kept=about("samples labelled again since", COUNT), gone=about("samples evicted since", COUNT),
        before=SO_MANY, after=SO_MANY,
    ),
    "labels.suspects": every(
        reviewed=about("time of the last review; null before the first", or_null(SECONDS)),
        labels=about("number of reviewed labels", COUNT),
        suspects=listed(fields(
            "id", "key", "ts", "label", "answer", "confidence", "label_confidence", "values",
            id=TEXT, key=TEXT, ts=SECONDS, values=listed(NUMBER), label=TEXT, answer=TEXT,
            confidence=about("confidence of the answer, from 0 to 1", NUMBER),
            label_confidence=about("the same model's confidence in the label", NUMBER),
        )),
    ),
    "labels.confirm": fields(
        "unknown", unknown=COUNT, confirmed=COUNT, withdrawn=about("with `right` false", COUNT)
    ),
    "class.add": CLASSES,
    "class.remove": CLASSES,
    "class.merge": CLASSES,
    "wipe": every(ACCEPTED | {
        "keys": about("keys whose models were erased", COUNT),
    } | each(COUNT, "samples", "labels", "quarantined", "models", "files") | {
        "checkpoints": about("files", COUNT),
    }),
    "config.get": every(values=OBJECT, **SETTINGS["properties"]),
    "config.set": SETTINGS,
    "config.replace": every(ACCEPTED, sha256=about("of the new file", TEXT)),
    "logs.level": every(level=TEXT),
    "status": STATUS,
    "ping": every(pong=FLAG, ts=SECONDS, version=TEXT),
    "capabilities": every(
        root=about("prefix of all topics of the device", TEXT),
        protocol=about("MQTT version", TEXT),
        task=one_of("classify", "regress", "reconstruct", "forecast"),
        features=about("names, or their number", ANYTHING),
        classes=listed(ANYTHING),
        **each(TEXT, "device", "version", "engine", "codec"),
        commands=about("by name: description, and the schemas of request and response", OBJECT),
    ),
}  # fmt: skip
"""What is in `data` of the answer to each command."""


def answer_to(name: str) -> Schema:
    """The schema of the whole answer to a command."""
    good = fields(
        "status", "state", "data",
        status=one_of("ok"), state=one_of("accepted", "executing", "successful"),
        data=ANSWERS.get(name, OBJECT), transaction=about("as received", ANYTHING),
    )  # fmt: skip
    bad = fields(
        "status", "state", "error", "reason",
        status=one_of("error"), state=one_of("failed", "refused"), reason=one_of("failed", "refused"),
        error=about("one line: place, problem, remedy", TEXT), transaction=about("as received", ANYTHING),
    )  # fmt: skip
    return {"anyOf": [good, bad]}


PUBLISHED: dict[str, Schema] = {
    "status": every(
        {"seq": about("not in the last will", COUNT), "ts": SECONDS},
        state=one_of("online", "offline"), version=TEXT, boot=COUNT,
    ),
    "state/model": every(
        version=VERSION, since=or_null(SECONDS), parent=or_null(VERSION), source=TEXT, metrics=OBJECT,
        pinned=FLAG, on_hold=ON_HOLD,
        missing=about("what an untrained model lacks, such as 7 of 20 labels", or_null(TEXT)),
    ),
    "state/quality": every(
        {"accuracy": or_null(NUMBER), "error": or_null(NUMBER)},
        version=VERSION, labelled=about("number of labels", COUNT),
    ),
    "state/health": every(state=one_of("ok", "degraded"), reasons=listed(TEXT)),
    "state/prediction": every(
        key=TEXT, ts=or_null(SECONDS), label=or_null(TEXT), confidence=or_null(NUMBER),
        output=or_null(listed(NUMBER)), model=or_null(VERSION),
        alarm=FLAG, silent=about("the next sample of the key is overdue", FLAG), untrained=FLAG,
    ),
    "state/labelling": every(key=TEXT, label=about("the label that holds", or_null(TEXT))),
    "state/training": every(
        {"summary": SUMMARY, "summary_ts": or_null(SECONDS)},
        engine=or_null(TEXT), running=FLAG,
        runs=about("runs ever started, including rounds of a fleet", COUNT),
        paused=about("after failures, as in the event training_paused", or_null(OBJECT)),
        **each(COUNT, "failures", "promotions", "rejections", "rollbacks"),
        on_hold=ON_HOLD, waiting_for=listed(TEXT),
    ),
    "state/drift": every(signals=COUNT, last=or_null(OBJECT), inputs=or_null(OBJECT)),
    "state/buffer": every(
        **each(COUNT, "samples", "rows", "bytes", "evicted"),
        problem=or_null(TEXT), windows=WINDOWS, outbox=OUTBOX,
    ),
    "state/streams": every(
        streams=about("with several streams, at the device's topic: state of each, by name", OBJECT)
    ),
    "state/config": every(
        {"page": about("URL of the device page for other machines; null if none", or_null(TEXT))},
        **each(OBJECT, "stream", "training", "gate", "serving", "storage", "commands", "report"),
        **SETTINGS["properties"],
    ),
    "metrics": every(
        ts=SECONDS, uptime_s=NUMBER, model=VERSION,
        **each(COUNT, "seq", "boot", "quarantine", "predictions"),
        problem=about("the problem that degrades the device", or_null(TEXT)),
        flash=about("bytes written to disk since startup", OBJECT),
        ingest=every(
            **each(COUNT, "samples", "waiting", "redelivered", "failed_commits"),
            per_s=NUMBER, lag_s=or_null(NUMBER), windows=WINDOWS,
        ),
        buffer=every(**each(COUNT, "rows", "bytes", "evicted")),
        training=every(**each(COUNT, "runs", "failures", "new"), running=or_null(OBJECT)),
        **each(OBJECT, "live", "latency", "recovery", "host"),
        anomaly=or_null(OBJECT),
        labels=every(count=about("labels that matched a sample", COUNT)),
        outbox=OUTBOX,
        audit=AUDIT_HEAD,
        commands=about("since startup, by outcome", {
            "type": "object", "additionalProperties": COUNT,
        }),
    ),
    "predictions": every(
        {"label": ANYTHING, "confidence": or_null(NUMBER), "boot": COUNT, "seq": COUNT,
         "set": about("with serving.coverage: classes, or smallest and largest value per target",
                      {"type": ["array", "null"]}),
         "coverage": about("share of the sets that contain the truth", NUMBER),
         "historical": HISTORICAL, "untrained": about("true until every class has labels", FLAG),
         "missing": about("what an untrained model lacks, such as 7 of 20 labels", TEXT)},
        id=TEXT, key=TEXT, ts=SECONDS, model=VERSION,
        output=about("probabilities, values or an anomaly score", {"type": ["array", "number", "null"]}),
    ),
    "progress": every(transaction=ANYTHING, command=TEXT, state=one_of(*STATES), ts=SECONDS),
}  # fmt: skip
"""By topic below `<root>/<device>/`.

`progress` is that of any transaction, `state/prediction` and `state/labelling` those of any key.
"""

INSTALLED = every(transfer=TEXT, state=one_of("promoted", "refused"), reasons=listed(TEXT))
EVENTS: dict[str, Schema] = {
    "stream_failed": every(stream=TEXT, problem=TEXT),
    "started": every(version=TEXT, model=VERSION, boot_reason=TEXT, repaired=listed(TEXT)),
    "training_started": every(run=COUNT, trigger=TEXT, new=COUNT),
    "training_finished": every(SUMMED_UP, run=COUNT, outcome=one_of("done", "failed", "no_data", "stopped")),
    "training_paused": every(SUMMED_UP, reason=TEXT),
    "training_resumed": every(run=COUNT),
    "checkpoint_damaged": every(generation=COUNT),
    "device_throttled": every(state=one_of("start", "end"), reasons=listed(TEXT)),
    "clock_set": every(step_s=NUMBER, before=SECONDS),
    "drift_detected": every(
        level=one_of("warning", "drift"), detector=TEXT, source=TEXT, offset=COUNT, features=listed(OBJECT)
    ),
    "candidate_rejected": every(SUMMED_UP, run=COUNT, reasons=listed(TEXT)),
    "candidates_refused": every(SUMMED_UP, count=COUNT, cause=TEXT, reasons=listed(TEXT)),
    "model_promoted": every(SUMMED_UP, version=VERSION, parent=VERSION, origin=TEXT, reasons=listed(TEXT)),
    "model_rolled_back": every(SUMMED_UP, from_=VERSION, to=VERSION, reason=TEXT),
    "anomaly": every(key=TEXT, state=one_of("start", "end"), offset=COUNT, since=SECONDS),
    "sensor_stuck": every(key=TEXT, features=listed(ANYTHING), more_=COUNT),
    "sensor_moves": every(key=TEXT, features=listed(ANYTHING), more_=COUNT),
    "sensor_missing": every(key=TEXT, features=listed(TEXT), more_=COUNT),
    "sensor_back": every(key=TEXT, features=listed(TEXT), more_=COUNT),
    "sensor_flooding": every(key=TEXT, more_=COUNT),
    "sample_quarantined": every(reason=TEXT),
    "sample_implausible": every(key=TEXT, feature=ANYTHING, value=NUMBER, more_=COUNT),
    "weights_applied": INSTALLED,
    "model_installed": INSTALLED,
    "bundle_installed": INSTALLED,
    "fleet_trained": every(round=COUNT, samples=COUNT, steps=COUNT, bytes=COUNT, norm=NUMBER),
    "fleet_accepted": every(round=COUNT, sendings=COUNT),
    "fleet_refused": every(round=COUNT, sendings=COUNT, reason=TEXT),
    "fleet_declined": every(round=COUNT, reason=TEXT),
    "fleet_failed": every(round=or_null(COUNT), reason=TEXT),
    "fleet_model": every(round=COUNT, model=TEXT, taken=FLAG, reason=TEXT),
    "label_requested": every(
        id=TEXT,
        key=TEXT,
        sample_ts=SECONDS,
        values=ANYTHING,
        answer=ANYTHING,
        random=about("drawn at random, not by the value of its label", FLAG),
    ),
}
"""What the events have beside `event`, `ts`, `seq` and `boot`."""


def event() -> Schema:
    """The schema of a message on `events`."""
    common = every({"historical": HISTORICAL}, event=one_of(*EVENTS), ts=SECONDS, seq=COUNT, boot=COUNT)
    cases = [
        {"if": {"properties": {"event": {"const": name}}}, "then": schema} for name, schema in EVENTS.items()
    ]
    return common | {"allOf": cases}


def schemas() -> dict[str, Schema]:
    """All schemas by topic below `<root>/<device>/`: `status`, `request/train`, `response/train`, ...

    >>> schemas()["request/ping"]["title"]
    'request/ping'
    """
    found = dict(PUBLISHED) | {"events": event()}
    found |= {f"request/{name}": whole(name) for name in REQUESTS}
    found |= {f"response/{name}": answer_to(name) for name in ANSWERS}
    return {name: {"$schema": DIALECT, "title": name} | schema for name, schema in sorted(found.items())}
