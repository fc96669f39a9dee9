"""`edged init`: listens, shows what is there, asks, and writes a configuration."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.prompt import Prompt
from rich.text import Text
from typer import Argument, Option

from edged.cli import output
from edged.cli.options import AsJson, Force, check_directory, print_json
from edged.errors import ConfigError, EdgedError

if TYPE_CHECKING:
    from edged.workbench.proposal.draft import Draft, Labels
    from edged.workbench.proposal.machines import Machine, ProposedField
    from edged.workbench.proposal.survey import Survey

FILE = "edged.yaml"
MOST_ROWS = 80


def init(
    folder: Annotated[Path, Argument(metavar="[DIR]", help=f"directory for {FILE}")] = Path(),
    broker: Annotated[
        str, Option(envvar="EDGED_BROKER", metavar="HOST[:PORT]", help="broker, or mqtts://USER@HOST:PORT")
    ] = "localhost",
    listen: Annotated[
        list[str] | None,
        Option(metavar="FILTER", help="topic filter, repeatable; all topics when absent"),
    ] = None,
    seconds: Annotated[float, Option(min=0.5, max=3600, help="how long to listen")] = 10.0,
    recorded: Annotated[
        Path | None,
        Option(
            "--from", metavar="FILE", help="read CSV, JSON lines or the output of mosquitto_sub -v instead"
        ),
    ] = None,
    password_file: Annotated[
        Path | None, Option(help="file with the password in its first line, for USER@HOST")
    ] = None,
    yes: Annotated[bool, Option("--yes", help="accept the proposal without questions")] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Listen to a broker, or read a file, and write a matching configuration.

    Lists topics and fields with rates, ranges and kinds, and proposes features, key, classes and label.
    If --listen names topics without wildcards, they are joined into one stream.
    """
    from edged import logs
    from edged.workbench.proposal.draft import Draft, document
    from edged.workbench.proposal.machines import joined, machines

    logs.configure("error")
    check_directory(folder, FILE, force=force)
    if not yes and not sys.stdin.isatty():
        raise ConfigError("there is no terminal for questions", where="init", remedy="add --yes")
    mqtt = _mqtt_section(broker, password_file)
    survey, source = _survey(mqtt, listen or [], seconds, recorded)
    found = machines(survey)
    if not found:
        raise _nothing_usable(survey, source)
    exact = bool(listen) and not any(set(name) & {"+", "#"} for name in listen or ())
    if not as_json:
        show_machines(found, survey)
    if yes:
        draft = Draft.of(joined(found if exact else found[:1]))
    else:
        draft = interview(found, range(1, len(found) + 1) if exact else [1])
    path = _write(folder, document(draft, mqtt, source))
    _show_result(path, draft, recorded, as_json=as_json)


def _mqtt_section(broker: str, password_file: Path | None) -> dict[str, Any]:
    """The section `mqtt` for an address as people write it."""
    from edged.mqtt.control_client import broker_section

    section = broker_section(broker)
    if password_file is not None:
        section["password_file"] = str(password_file.absolute())
    return section


def _survey(
    mqtt: dict[str, Any], listen: Sequence[str], seconds: float, recorded: Path | None
) -> tuple[Survey, str]:
    """What is there, and where it is from in words."""
    from edged.workbench.proposal import recorded as files
    from edged.workbench.proposal.survey import Survey

    survey = Survey()
    if recorded is not None:
        for topic, payload in files.messages(recorded):
            survey.add(topic, payload)
        return survey, f"{survey.messages:,} messages in {recorded.name}"
    from edged.config import MqttConfig
    from edged.mqtt.control_client import observe

    filters = list(listen) or ["#"]
    where = f"{mqtt['host']}:{mqtt['port']}"
    with output.err.status(f"listening to {where} for {seconds:g} s") as shown:
        remedy = "--broker HOST:PORT names another, --broker USER@HOST --password-file FILE a user"
        for message in observe(MqttConfig(**mqtt), filters, seconds, remedy=remedy):
            survey.add(message.topic, message.payload, message.received, retained=message.retain)
            came = f"{survey.messages:,} messages, {len(survey.topics):,} topics"
            shown.update(f"listening to {where} for {seconds:g} s: {came}")
    return survey, f"{seconds:g} s of {where}, {survey.messages:,} messages on {', '.join(filters)}"


def _nothing_usable(survey: Survey, source: str) -> EdgedError:
    if not survey.messages:
        remedy = (
            "check that the sensors publish; --seconds 60 listens longer, --listen names topics that the"
            " broker allows"
        )
        return EdgedError("no message arrived", where=source, remedy=remedy)
    unread = [topic.name for topic in survey.topics.values() if topic.unread]
    what = f"no topic has a number or an on/off value: {', '.join(sorted(survey.topics)[:4])}"
    remedy = f"{unread[0]} is not JSON: see docs/codecs.md" if unread else "listen to other topics, or longer"
    return EdgedError(what[:300], where=source, remedy=remedy)


# ---- what a person sees --------------------------------------------------------------------


def show_machines(found: Sequence[Machine], survey: Survey) -> None:
    """Print what topics carry, busiest machine first; features stand before what is left out."""
    table = output.new_table("", ("", "topic", "field", "kind", "rate", "range or words", "left out"))
    for column in ("topic", "field", "range or words"):
        next(c for c in table.columns if c.header == column).overflow = "fold"
    rows = 0
    for number, machine in enumerate(found, 1):
        before = ""
        for one in sorted(machine.candidates(), key=lambda c: (machine.filters.index(c.topic), bool(c.why))):
            new = one.topic != before
            cells = [
                str(number) if not before else "", one.topic if new else "", one.path or "(payload)",
                one.field.kind, machine.rate(one.topic) if new else "", one.field.shown,
                one.why.partition(":")[0],
            ]  # fmt: skip
            if rows < MOST_ROWS:
                table.add_row(*map(Text, cells), style="dim" if one.why and not one.label else "")
            before, rows = one.topic, rows + 1
    output.out.print(table)
    used = sum(len(machine.topics) for machine in found)
    others = len(survey.topics) - used
    lines = [f"and {rows - MOST_ROWS} more fields"] if rows > MOST_ROWS else []
    lines += [f"{others} other topics have no readings"] if others else []
    if lines:
        output.say("; ".join(lines))


def interview(found: Sequence[Machine], proposed: Sequence[int]) -> Draft:
    """Ask for each choice, with the proposal as its default; Enter takes it."""
    from edged.workbench.proposal.draft import Draft, device_id
    from edged.workbench.proposal.machines import joined

    chosen = list(proposed)
    if len(found) > 1:
        chosen = _numbers(
            "Which machine? Several numbers, such as 1,3, join machines", proposed, len(found)
        ) or [1]
    draft = Draft.of(joined([found[number - 1] for number in chosen]))
    if draft.array is None:
        draft = _ask_features(draft)
    draft = replace(draft, labels=_ask_labels(draft))
    name = Prompt.ask("Name of this device", console=output.out, default=draft.device)
    return replace(draft, device=device_id(name))


def _numbers(question: str, default: Sequence[int], most: int) -> list[int]:
    """Numbers from 1 to `most` with commas between them; asked again until they are."""
    shown = ",".join(map(str, default))
    while True:
        text = Prompt.ask(question, console=output.out, default=shown, show_default=bool(shown))
        parts = text.replace(",", " ").split()
        if all(part.isdecimal() and 1 <= int(part) <= most for part in parts):
            return list(dict.fromkeys(map(int, parts)))
        output.say(f"enter numbers from 1 to {most}, such as 1,2")


def _ask_features(draft: Draft) -> Draft:
    """Let a person leave out features, and take in what was left out, where it can be a number."""
    offered = [*draft.features, *(c for c in draft.left_out if c.field.kind in ("number", "on/off"))]
    if len(offered) == 1:
        return draft
    for number, one in enumerate(offered, 1):
        why = f"  left out: {one.why}" if one not in draft.features else ""
        output.say(f" {number:>3}  {one.name}: {one.field.kind}, {one.field.shown}{why}")
    default = [number for number, one in enumerate(offered, 1) if one in draft.features]
    span = f"1-{len(default)}"
    text = Prompt.ask("Features, such as 1,2,5 or 1-4", console=output.out, default=span)
    kept = _spans(text, len(offered))
    while not kept:
        text = Prompt.ask(f"Enter numbers from 1 to {len(offered)}", console=output.out, default=span)
        kept = _spans(text, len(offered))
    return replace(draft, features=tuple(offered[number - 1] for number in kept))


def _spans(text: str, most: int) -> list[int]:
    """Numbers in text such as `1,3-5`; none if one of them is wrong.

    >>> _spans("1,3-5", 9), _spans("0", 9)
    ([1, 3, 4, 5], [])
    """
    found: list[int] = []
    for part in text.replace(",", " ").split():
        low, _, high = part.partition("-")
        if not (low.isdecimal() and (high or low).isdecimal()):
            return []
        found += range(int(low), int(high or low) + 1)
    return list(dict.fromkeys(found)) if all(1 <= number <= most for number in found) else []


def _ask_labels(draft: Draft) -> Labels:
    """How the model learns: from a field, from labels by hand, or what is normal."""
    from edged.workbench.proposal.draft import BY_HAND, Labels

    fields = [c for c in draft.machine.candidates() if _can_label(c)]
    if draft.labels.candidate is not None:
        fields = [draft.labels.candidate, *(c for c in fields if c != draft.labels.candidate)]
    choices = [f"the field {c.name}: {c.field.shown}" for c in fields]
    choices += [
        f"labels that you send by hand, on {draft.label_topic}",
        "no labels: learn what is normal, report anomalies",
    ]
    output.say("How should it learn?")
    for number, line in enumerate(choices, 1):
        output.say(f" {number:>3}  {line}")
    default = 1 if draft.labels.candidate is not None else len(fields) + 1
    choice = (_numbers("Number", [default], len(choices)) or [default])[0]
    if choice == len(choices):
        return Labels("normal")
    if choice <= len(fields):
        labels = Labels.of(fields[choice - 1])
        words = labels.classes
        return replace(labels, classes=_ask_classes(words)) if isinstance(words, tuple) and words else labels
    return Labels("hand", _ask_classes(BY_HAND))


def _can_label(candidate: ProposedField) -> bool:
    from edged.workbench.proposal.machines import A_WORD

    return candidate.label or candidate.why == A_WORD


def _ask_classes(known: Sequence[str]) -> tuple[str, ...]:
    """Two or more words."""
    while True:
        text = Prompt.ask("Names of the classes", console=output.out, default=",".join(known))
        words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
        if len(words) > 1:
            return words
        output.say("enter at least two names, separated by commas")


# ---- what is written -----------------------------------------------------------------------


def _write(folder: Path, text: str) -> Path:
    from edged.storage.files.atomic import disk_errors, publish_file

    path = folder / FILE
    with disk_errors("writing the configuration", path):
        folder.mkdir(parents=True, exist_ok=True)
        publish_file(path, text.encode())
    return path


def _show_result(path: Path, draft: Draft, recorded: Path | None, *, as_json: bool) -> None:
    """What was written, and the next two commands."""
    name = shlex.quote(str(path))
    first = f"edged doctor {name}"
    if recorded is not None and ".csv" in recorded.suffixes:
        first = f"edged evaluate {name} --data {shlex.quote(str(recorded))}"
    after = [first, f"edged run {name}"]
    if as_json:
        features = [candidate.name for candidate in draft.features]
        print_json({"config": str(path), "device": draft.device, "features": features, "next": after})
        return
    output.say(f"written: {path}")
    output.say("next:")
    for line in after:
        output.say(f"  {line}")
