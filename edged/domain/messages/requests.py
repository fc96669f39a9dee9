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

OF_KEY = about("a key that has a model of its own (model.per); the stream's model without it", TEXT)
PARTS = ("ingest", "training", "serving")
WIPED = ("samples", "labels", "checkpoints", "models")

ENVELOPE: dict[str, Schema] = {
    "transaction": about("echoed; under the same one a command is done once", ANYTHING),
    "ts": about("when it was sent; what is older than `commands.max_age` is refused", SECONDS),
    "expires": about("from when on it must not be carried out any more", SECONDS),
    "nonce": about("of a signed command", TEXT),
    "signature": about("of a signed command", TEXT),
}
"""Fields of every request."""

INSTALL = fields(
    "transfer",
    transfer=about("a name that the sender chooses", TEXT),
    manifest=about("bytes, sha256 and chunks, each of those with bytes and sha256", OBJECT),
    url=about("instead of chunks: an address that `install.urls` allows", TEXT),
    bytes=about("of what is fetched", {"type": "integer", "minimum": 1}),
    sha256=about("of what is fetched", TEXT),
)
DOWNGRADE = {"allow_downgrade": about("signed: take it though it is older than one before", FLAG)}

REQUESTS: dict[str, Schema] = {
    "train": about(
        "trains now, whatever the guards say",
        fields(
            steps=about("optimizer steps", {"type": "integer", "minimum": 1, "maximum": 1_000_000}),
            epochs=about("instead of steps: passes over the new samples", {
                "type": "number", "exclusiveMinimum": 0, "maximum": 1000,
            }),
            learning_rate={"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 10},
            engine=about("what executes this run", one_of("auto", "native", "portable")),
            dry_run=about("train and judge, but neither promote nor go on from it", FLAG),
            from_=about("which weights it starts with", one_of("checkpoint", "champion", "bundle")),
            key=OF_KEY,
        ),
    ),
    "cancel": about(
        "ends the run under way, or the command with that transaction",
        fields(target=about("transaction of the command; the present run without it", ANYTHING)),
    ),
    "pause": about(
        "stops a part of the device, over restarts, until `resume`",
        fields(what=one_of(*PARTS), hold=about("false does what `resume` does, for a switch", FLAG)),
    ),
    "resume": about("lets it go on", fields(what=one_of(*PARTS))),
    "promote": about("serves a stored model, on probation", fields("version", version=VERSION, key=OF_KEY)),
    "rollback": about(
        "serves an earlier model, the previous one without a version; of a key, 0 is the stream's model",
        fields(version={"type": "integer", "minimum": 0}, key=OF_KEY),
    ),
    "pin": about(
        "serves this version (the present one without a number) and no other until `unpin`",
        fields(version=VERSION, key=OF_KEY),
    ),
    "unpin": about("lets candidates take over again", fields(key=OF_KEY)),
    "checkpoint": about("writes down what the learner knows", fields()),
    "export": about(
        "writes a model, its weights, or the mixture that is served with it, into the state directory's"
        " exports/",
        fields(what=one_of("model", "weights", "mixture"), version=VERSION, key=OF_KEY),
    ),
    "evaluate": about(
        "judges a model on the newest labelled samples that were never trained on",
        fields(version=VERSION, rows={"type": "integer", "minimum": 1, "maximum": 100_000}, key=OF_KEY),
    ),
    "label": about(
        "stores labels: `id` and `label`, or `key`, `ts` and `label`, or a list of such as `labels`; of all"
        " samples of `key` `from` a time `to` another, null for none; or, with `hold`, of those that come",
        fields(
            label=ANYTHING,
            labels=listed(OBJECT),
            key=about("not needed where all samples have the same", ANYTHING),
            from_=about("Unix seconds, milliseconds or ISO 8601", ANYTHING),
            to=about("the same; a sample of this very moment is labelled, too", ANYTHING),
            hold=about("the label counts from now on, until another; without a label it ends", FLAG),
        ) | {"additionalProperties": True},
    ),
    "label.undo": about(
        "takes back what the last command `label` did, or the one whose answer had that `number`",
        fields(number={"type": "integer", "minimum": 1}),
    ),
    "labels.suspects": about(
        "labels that a model contradicts which was fitted without them, the most suspect first",
        fields(
            limit={"type": "integer", "minimum": 1, "maximum": 300},
            key=about("samples of this key alone", TEXT),
        ),
    ),
    "labels.confirm": about(
        "the labels of these samples are right: they are not suspected again unless they change",
        fields(
            "ids",
            ids=listed(TEXT, minItems=1, maxItems=1000),
            right=about("false takes it back; true without", FLAG),
        ),
    ),
    "class.add": about("makes a class before its first label", fields("class", class_=TEXT)),
    "class.remove": about(
        "a class is none any more: it is not answered, its labels do not count", fields("class", class_=TEXT)
    ),
    "class.merge": about("the class `from` counts as `to`", fields("from", "to", from_=TEXT, to=TEXT)),
    "accept": about(
        "alarms that stand are the new normal, or a source of labels is trusted again",
        fields(
            key=TEXT,
            labels=about("a source of labels that is in dispute", TEXT),
            earlier=about("whether to learn from those that were set aside, too; true when absent", FLAG),
        ),
    ),
    "weights.get": about(
        "publishes the weights of a version, or some chunks of them, on weights/<version>/…",
        fields(
            version=VERSION,
            mode=one_of("full", "delta"),
            dtype=one_of("float32", "float16", "int8"),
            base=about("last, bundle, or a version: what a difference is to", ANYTHING),
            chunks=about("numbers of those that are wanted; all without", listed({
                "type": "integer", "minimum": 0,
            })),
        ),
    ),
    "weights.apply": about(
        "announces weights that come in chunks, or asks what is missing and what became of them",
        fields(
            "transfer", "manifest",
            transfer=about("a name that the sender chooses", TEXT),
            manifest=about("as on weights/<version>/manifest", OBJECT),
            mix=about("whether they may be mixed with the device's own; true without", FLAG),
        ),
    ),
    "model.install": about(
        "announces a model file of the device's own network that comes in chunks or is fetched", INSTALL
    ),
    "bundle.install": about(
        "announces a bundle file that comes in chunks or is fetched, or asks what became of it",
        INSTALL | {"properties": INSTALL["properties"] | DOWNGRADE},
    ),
    "keys.rotate": about(
        "lets another public key count wherever one counts now; always signed",
        fields(
            "old", "new",
            old=about("id of the key, or its text (PEM)", TEXT),
            new=about("text of the public key that takes its place (PEM)", TEXT),
        ),
    ),
    "keys.revoke": about(
        "lets a key count no more; always signed",
        fields("key", key=about("its id, or its text (PEM)", TEXT)),
    ),
    "drift.reset": about("the drift detectors begin anew", fields(key=OF_KEY)),
    "config.get": about(
        "the configuration in force", fields(keys=about("such as training.every; all without", listed(TEXT)))
    ),
    "config.set": about(
        "changes keys such as training.every for good; null goes back to the file's value; of a device with"
        " several streams also streams.<name>: sections, or false",
        {"type": "object", "properties": {}},
    ),
    "logs.level": about(
        "of the log on stderr, until the next start",
        fields("level", level=one_of("debug", "info", "warning", "error")),
    ),
    "wipe": about(
        "erases what the device has collected and learned; the bundle's own model serves then",
        fields(
            "confirm",
            confirm=about("the device's id", TEXT),
            what=about(
                "samples, checkpoints and models without it", listed(one_of(*WIPED), minItems=1)
            ),
            key=about("erases what this key has learned for itself, and nothing else", TEXT),
        ),
    ),
    "status": about("what `edged status` prints", fields()),
    "ping": about("answers", fields()),
    "capabilities": about("what this device is, and which commands it takes in which form", fields()),
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


# Keys of the configuration that `config.set` may change: none that could lock a device out or lose data.
SETTABLE: dict[str, tuple[str, ...]] = {
    "training": (
        "enabled", "every", "cron", "min_new_samples", "new_labels", "scarce_labels", "cooldown", "steps",
        "steps_per", "max_steps", "learning_rate", "schedule", "warmup", "new_share", "recent_share",
        "key_share", "checkpoint_every", "retry_after", "max_failures", "quiet", "max_temperature",
        "mains_only", "min_battery", "max_load", "max_runs_per_day", "max_minutes_per_day",
    ),
    "gate": (
        "recent", "min_holdout", "min_gain", "significance", "max_regret", "recall", "suspect_labels",
        "probation", "probation_drop", "probation_time",
    ),
    "labels": ("request_share", "request_random", "requests_per_day"),
    "drift": ("train",),
    "report": ("every",),
    "log": ("level",),
}  # fmt: skip


def settable() -> list[str]:
    """All keys that `config.set` may change, as `section.key`."""
    return [f"{section}.{key}" for section, keys in SETTABLE.items() for key in keys]
