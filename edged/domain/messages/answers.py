"""What is in `data` of the answer to each command, and the form of every answer."""

from __future__ import annotations

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

STATES = ("accepted", "executing", "successful", "failed", "refused")

VERDICT: Schema = fields(
    "accepted", "reasons", more=True, accepted=FLAG, reasons=listed(TEXT), promoted=or_null(VERSION)
)
OBJECT: Schema = {"type": "object"}
PAUSED: Schema = every(paused=listed(TEXT))
SETTINGS: Schema = every(
    desired=about("what was set", OBJECT),
    reported=about("what is in force of it", OBJECT),
    needs_restart=about("what waits for the next start of the daemon", listed(TEXT)),
)

STATUS: Schema = every(
    state=one_of("online", "degraded", "stopped"),
    problem=or_null(TEXT),
    on_hold=about("parts that a command has paused", listed(TEXT)),
    ts=SECONDS,
    uptime_s=NUMBER,
    version=TEXT,
    boot=COUNT,
    samples=COUNT,
    labels=COUNT,
    quarantined=COUNT,
    evicted=COUNT,
    model=every(version=VERSION, since=or_null(SECONDS), quality=or_null(OBJECT)),
    training=every(runs=COUNT, last=or_null(OBJECT), progress=or_null(OBJECT), paused=or_null(OBJECT)),
    outbox=every(pending=COUNT, bytes=COUNT, dropped=COUNT),
    engine=or_null(TEXT),
)

TRANSFER: Schema = fields(
    "state",
    "transfer",
    more=True,
    state=one_of("receiving", "executing", "promoted", "refused"),
    transfer=TEXT,
    topic=about("the chunks go to this topic, one level more for the number", TEXT),
    missing=listed(COUNT),
    version=or_null(VERSION),
    share=about("of these weights in the mixture", or_null(NUMBER)),
    reasons=listed(TEXT),
)

ANSWERS: dict[str, Schema] = {
    "train": fields(
        more=True,
        state=about("only in the first of two answers", one_of("accepted")),
        new_samples=COUNT,
        run=COUNT,
        outcome=one_of("done"),
        steps=COUNT,
        samples=COUNT,
        engine=TEXT,
        verdict=or_null(VERDICT),
    ),
    "cancel": every(cancelled=about("the command", TEXT), run=or_null(COUNT)),
    "checkpoint": fields(more=True, state=one_of("accepted"), generation=or_null(COUNT), step=or_null(COUNT)),
    "accept": every(accepted=about("alarms", COUNT)),
    "weights.get": every(version=VERSION, chunks=COUNT, sent=COUNT, manifest=OBJECT),
    "weights.apply": TRANSFER,
    "model.install": TRANSFER,
    "bundle.install": TRANSFER,
    "drift.reset": every(forgotten=about("signals since the start", COUNT)),
    "pause": PAUSED,
    "resume": PAUSED,
    "promote": every(from_=VERSION, to=VERSION),
    "rollback": every(from_=VERSION, to=VERSION, reason=TEXT),
    "pin": every(pinned=VERSION),
    "unpin": every(unpinned=listed(VERSION)),
    "evaluate": fields(
        more=True,
        state=one_of("accepted"),
        version=VERSION,
        rows=COUNT,
        first_offset=COUNT,
        last_offset=COUNT,
        figures=about("accuracy, balanced_accuracy, kappa; mae, rmse, r2; or error", OBJECT),
    ),
    "export": fields(
        more=True,
        state=one_of("accepted"),
        version=VERSION,
        file=about("within the state directory", TEXT),
        bytes=COUNT,
        sha256=TEXT,
    ),
    "label": every(labelled=COUNT, unknown=COUNT),
    "wipe": fields(
        more=True,
        state=one_of("accepted"),
        samples=COUNT,
        labels=COUNT,
        quarantined=COUNT,
        checkpoints=about("files", COUNT),
        models=COUNT,
        files=COUNT,
    ),
    "config.get": every(values=OBJECT, **SETTINGS["properties"]),
    "config.set": SETTINGS,
    "logs.level": every(level=TEXT),
    "status": STATUS,
    "ping": every(pong=FLAG, ts=SECONDS, version=TEXT),
    "capabilities": every(
        device=TEXT,
        version=TEXT,
        root=about("what every topic of the device begins with", TEXT),
        protocol=about("version of MQTT", TEXT),
        engine=TEXT,
        task=one_of("classify", "regress", "reconstruct", "forecast"),
        features=about("names, or how many", ANYTHING),
        classes=listed(ANYTHING),
        codec=TEXT,
        commands=about("by name: description, and the schemas of request and answer", OBJECT),
    ),
}


def answer_to(name: str) -> Schema:
    """The schema of the whole answer to a command."""
    good = fields(
        "status",
        "state",
        "data",
        status=one_of("ok"),
        state=one_of("accepted", "executing", "successful"),
        data=ANSWERS.get(name, OBJECT),
        transaction=about("as it came", ANYTHING),
    )
    bad = fields(
        "status",
        "state",
        "error",
        "reason",
        status=one_of("error"),
        state=one_of("failed", "refused"),
        error=about("one line: where, what, and what to do", TEXT),
        reason=one_of("failed", "refused"),
        transaction=about("as it came", ANYTHING),
    )
    return {"anyOf": [good, bad]}
