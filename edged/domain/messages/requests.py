"""What each command takes: the fields of its request beside those of every request."""

from __future__ import annotations

from edged.domain.messages.schema import (
    ANYTHING,
    FLAG,
    OBJECT,
    SECONDS,
    TEXT,
    VERSION,
    Schema,
    about,
    fields,
    listed,
    one_of,
)

PARTS = ("training", "serving")
WIPED = ("samples", "labels", "checkpoints", "models")

ENVELOPE: dict[str, Schema] = {
    "transaction": about(
        "echoed in the response; the same command with the same transaction runs once", ANYTHING
    ),
    "ts": about("time of sending; refused if older than `commands.max_age`", SECONDS),
    "expires": about("time after which the command is not run", SECONDS),
    "nonce": about("for a signed command", TEXT),
    "signature": about("for a signed command", TEXT),
}
"""Fields of every request."""

INSTALL = fields(
    "transfer",
    "manifest",
    transfer=about("a name chosen by the sender", TEXT),
    manifest=about("bytes, sha256 and chunks, each with its bytes and sha256", OBJECT),
)
DOWNGRADE = {"allow_downgrade": about("in a signed command: accept a bundle older than an earlier one", FLAG)}

REQUESTS: dict[str, Schema] = {
    "train": about(
        "Train now, ignoring guards.",
        fields(
            steps=about("optimizer steps", {"type": "integer", "minimum": 1, "maximum": 1_000_000}),
            epochs=about("passes over the new samples, instead of steps", {
                "type": "number", "exclusiveMinimum": 0, "maximum": 1000,
            }),
            learning_rate={"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 10},
            dry_run=about("train and evaluate, but change nothing", FLAG),
            from_=about("initial weights", one_of("checkpoint", "champion", "bundle")),
        ),
    ),
    "cancel": about(
        "Stop the current run, or the command with this transaction.",
        fields(target=about("transaction of the command; the current run when absent", ANYTHING)),
    ),
    "pause": about(
        "Pause a component, across restarts, until `resume`.",
        fields(what=one_of(*PARTS), hold=about("false: resume, for a switch", FLAG)),
    ),
    "resume": about("Resume a paused component.", fields(what=one_of(*PARTS))),
    "promote": about("Serve a stored model, on probation.", fields("version", version=VERSION)),
    "rollback": about(
        "Serve an earlier model (by default the previous one) and reject the current one; version 0 of a key"
        " is the stream's model.",
        fields(version={"type": "integer", "minimum": 0}),
    ),
    "pin": about(
        "Serve only this version (by default the current one) until `unpin`.",
        fields(version=VERSION),
    ),
    "unpin": about("Allow new models to replace the current one again.", fields()),
    "checkpoint": about("Save a checkpoint of the current run.", fields()),
    "export": about(
        "Write a model, its weights, or the mixture as served, to exports/ in the state directory.",
        fields(what=one_of("model", "weights", "mixture"), version=VERSION),
    ),
    "evaluate": about(
        "Evaluate a model on the newest labelled samples never trained on.",
        fields(version=VERSION, rows={"type": "integer", "minimum": 1, "maximum": 100_000}),
    ),
    "label": about(
        "Store labels: `id` and `label`; `key`, `ts` and `label`; or a list of these in `labels`. With"
        " `from` and `to`, label all samples of `key` in this interval (null removes labels); with `hold`,"
        " all future ones.",
        fields(
            label=ANYTHING,
            labels=listed(OBJECT),
            key=about("optional if all samples have the same key", ANYTHING),
            from_=about("Unix seconds, milliseconds or ISO 8601", ANYTHING),
            to=about("end of the interval, inclusive; as from", ANYTHING),
            hold=about("the label holds from now on until the next; without a label, stop", FLAG),
        ) | {"additionalProperties": True},
    ),
    "label.undo": about(
        "Undo the last command `label`, or the one with this `number` in its response.",
        fields(number={"type": "integer", "minimum": 1}),
    ),
    "labels.suspects": about(
        "List labels contradicted by a model fitted without them, most suspect first.",
        fields(
            limit={"type": "integer", "minimum": 1, "maximum": 300},
            key=about("only samples of this key", TEXT),
        ),
    ),
    "labels.confirm": about(
        "Confirm the labels of these samples: they are not suspect again unless they change.",
        fields(
            "ids",
            ids=listed(TEXT, minItems=1, maxItems=1000),
            right=about("false: withdraw the confirmation; default true", FLAG),
        ),
    ),
    "class.add": about("Create a class before its first label.", fields("class", class_=TEXT)),
    "class.remove": about(
        "Remove a class: it is not predicted, and its labels do not count.", fields("class", class_=TEXT)
    ),
    "class.merge": about("Count the class `from` as `to`.", fields("from", "to", from_=TEXT, to=TEXT)),
    "accept": about(
        "Accept active alarms as normal.", fields(key=TEXT),
    ),
    "weights.get": about(
        "Publish the weights of a version, or some of their chunks, on weights/<version>/….",
        fields(
            version=VERSION,
            dtype=one_of("float32", "int8"),
            chunks=about("numbers of the wanted chunks; all when absent", listed({
                "type": "integer", "minimum": 0,
            })),
        ),
    ),
    "weights.apply": about(
        "Announce weights in chunks, or request the missing chunks or the outcome.",
        fields(
            "transfer", "manifest",
            transfer=about("a name chosen by the sender", TEXT),
            manifest=about("as on weights/<version>/manifest", OBJECT),
        ),
    ),
    "model.install": about(
        "Announce a model file of the device's own network, which comes in chunks.", INSTALL
    ),
    "bundle.install": about(
        "Announce a bundle file, which comes in chunks, or request the outcome.",
        INSTALL | {"properties": INSTALL["properties"] | DOWNGRADE},
    ),
    "keys.rotate": about(
        "Replace a public key wherever it is valid; always signed.",
        fields(
            "old", "new",
            old=about("ID or text (PEM) of the key", TEXT),
            new=about("text of the new public key (PEM)", TEXT),
        ),
    ),
    "keys.revoke": about(
        "Revoke a public key; always signed.",
        fields("key", key=about("ID or text (PEM) of the key", TEXT)),
    ),
    "drift.reset": about("Use current data as the drift baseline.", fields()),
    "config.get": about(
        "Return the effective configuration.",
        fields(keys=about("such as training.every; all when absent", listed(TEXT))),
    ),
    "config.set": about(
        "Change keys such as training.every permanently; null restores the file's value.",
        {"type": "object", "properties": {}},
    ),
    "config.replace": about(
        "Replace the configuration file; if the device does not start with it, the file before it is put"
        " back. Needs a transaction.",
        fields("config", config=about("the whole file, YAML", TEXT)),
    ),
    "logs.level": about(
        "Set the log level until the next start.",
        fields("level", level=one_of("debug", "info", "warning", "error")),
    ),
    "wipe": about(
        "Erase collected samples and trained models; the bundle's own model then serves.",
        fields(
            "confirm",
            confirm=about("the device ID", TEXT),
            what=about(
                "samples, checkpoints and models when absent", listed(one_of(*WIPED), minItems=1)
            ),
        ),
    ),
    "status": about("Get the status.", fields()),
    "ping": about("Check for a response.", fields()),
    "capabilities": about("Describe the device and the commands that it accepts, with schemas.", fields()),
}  # fmt: skip

READS = frozenset({"capabilities", "config.get", "labels.suspects", "ping", "status"})
"""Commands that only read: each is answered anew, the journal does not have it, and no signature is needed.

Every other command needs one where there are keys, also `weights.get` (who has the weights can prepare some
that pass the gate) and `evaluate` (it computes for a long time).
"""


def whole(name: str) -> Schema:
    """The schema of a whole request, as it is published: its own fields and those of every request."""
    own = REQUESTS.get(name, OBJECT)
    if "properties" not in own:
        return own
    return own | {"properties": ENVELOPE | own["properties"]}


# Keys of the configuration that people turn in the field; `config.set` may change these.
SETTABLE: dict[str, tuple[str, ...]] = {
    "training": (
        "enabled", "every", "new_labels", "steps", "learning_rate", "quiet", "max_temperature",
    ),
    "gate": ("min_gain", "probation"),
    "labels": ("request_share", "requests_per_day"),
    "report": ("every",),
    "log": ("level",),
}  # fmt: skip


def settable() -> list[str]:
    """All keys that `config.set` may change, as `section.key`."""
    return [f"{section}.{key}" for section, keys in SETTABLE.items() for key in keys]
