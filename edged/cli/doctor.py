"""`edged doctor`: everything that must be right before a device is left alone."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from edged.clock import SystemClock
from edged.config import Config, loader
from edged.device.admin.arrivals import Arrivals
from edged.device.commands.keys import counting
from edged.device.startup.bootstrap import with_own_keys
from edged.domain.commands.rules import CLOCK_SET
from edged.domain.messages.requests import READS
from edged.domain.stream.admission import MIN_OUTCOMES
from edged.domain.training.message import SparseMessage
from edged.engines import open_engine
from edged.engines.inference import InferenceModel
from edged.engines.native import api
from edged.errors import ConfigError, EdgedError, UnavailableError, one_of
from edged.host.kernel import synchronised
from edged.host.vitals import VitalsReader
from edged.mqtt.codecs import sample_codec
from edged.mqtt.control_client import observe
from edged.mqtt.sparkplug.payload import SparkplugWire
from edged.mqtt.topics import widest
from edged.signing import Keys
from edged.storage.files.atomic import DirectoryLock
from edged.storage.models.bundle_archive import as_folder
from edged.storage.models.signatures import open_bundle
from edged.storage.models.trust import Trust
from edged.storage.samples.log import SampleLog

if TYPE_CHECKING:
    from edged.storage.models.bundles import Bundle

Level = Literal["ok", "warning", "error"]

LISTEN_SECONDS = 5.0
REMEDY = "start the broker, or correct mqtt.host and mqtt.port"


@dataclass(frozen=True)
class CheckResult(SparseMessage):
    """Result of one check: level, subject, finding and remedy."""

    what: str
    level: Level
    result: str
    remedy: str = ""


def _ok(what: str, result: str) -> CheckResult:
    return CheckResult(what, "ok", result)


def _error(what: str, result: str, remedy: str = "") -> CheckResult:
    return CheckResult(what, "error", result, remedy)


def examine(path: Path, seconds: float = LISTEN_SECONDS, stream: str | None = None) -> list[CheckResult]:
    """Look at everything, and listen to the broker for some seconds.

    Nothing is changed but a file written to and removed from the state directory.
    """
    try:
        config = loader.load(path, stream=stream)
    except EdgedError as problem:
        return [_error("configuration", problem.line())]
    findings = [_ok("configuration", str(path))]
    for look in (_runtime, _formats, _web, _keys, _bundle, _state, _clock, _board):
        findings.extend(look(config))
    findings.extend(_broker(config, seconds))
    return findings


def _runtime(_: Config) -> Iterator[CheckResult]:
    found: dict[str, str] = {}
    for name in ("onnxruntime", "onnxruntime-training", "onnxruntime-training-cpu"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    if len(found) > 1:
        several = f"several builds share one package: {', '.join(found)}"
        remedy = "pip uninstall all of them, then install one"
        yield _error("onnxruntime", several, remedy)
    elif not found:
        yield _error("onnxruntime", "not installed", "pip install onnxruntime")
    else:
        yield _ok("onnxruntime", " ".join(next(iter(found.items()))))


def _formats(config: Config) -> Iterator[CheckResult]:
    """Packages that only some formats of messages need."""
    codec, node = config.stream.codec, config.sparkplug is not None
    if codec == "json" and not node:
        return
    try:
        sample_codec(config.stream)
        if node:
            SparkplugWire("sparkplug")
    except UnavailableError as problem:
        yield _error("formats", f"{problem.where}: {problem.what}", problem.remedy)
        return
    yield _ok("formats", f"reads {codec}" + (", is an edge node of Sparkplug B" if node else ""))


def _keys(config: Config) -> Iterator[CheckResult]:
    """Whether signatures can be checked, where keys are named."""
    files = [*config.commands.keys, *config.model.keys]
    if not files:
        return
    try:
        Keys(files)
        trust = Trust(config.storage.dir)
        found = counting(config, trust)
    except EdgedError as problem:
        yield _error("keys", problem.line())
        return
    named = (f"{key['id']} for {' and '.join(key['for'])}" for key in found)
    yield _ok("keys", f"{len(found)} public keys count: {', '.join(named)}")
    if trust.lost:
        warning = "trust.json was damaged: known bundle versions and replaced keys are lost"
        remedy = "check the configured keys, then start once with `edged run CONFIG --allow-downgrade`"
        yield CheckResult("trust", "warning", warning, remedy)
    open_to_all = sorted(config.commands.unsigned() - READS)
    if config.commands.keys and open_to_all:
        warning = f"commands.require_signed leaves these to everybody: {', '.join(open_to_all)}"
        yield CheckResult("commands", "warning", warning, "remove it, or set it to changes")
    if config.model.keys and config.fleet is not None:
        warning = "models of a fleet are not signed: with model.keys they are evaluated and never served"
        yield CheckResult("fleet", "warning", warning, "remove model.keys, or the section fleet")
    if config.commands.keys and config.fleet is not None and not (config.fleet.keys or config.fleet.flower):
        warning = (
            "rounds need no signature: anyone who can publish them can make this device train and send an"
            " update"
        )
        yield CheckResult("fleet", "warning", warning, "add the coordinator's public key to fleet.keys")


def _web(config: Config) -> Iterator[CheckResult]:
    """Packages, tokens and certificate of the section `web`."""
    web = config.web
    if web is None:
        return
    from edged.device.web.front import require_packages
    from edged.device.web.http.authentication import Tokens
    from edged.device.web.http.sockets import check_certificate

    try:
        require_packages()
        tokens = Tokens(web.tokens)
        if web.tls is not None:
            check_certificate(web.tls.cert_file, web.tls.key_file)
    except EdgedError as problem:
        yield _error("http", f"{problem.where}: {problem.what}", problem.remedy)
    else:
        places = " and ".join(str(place) for place in (web.listen, web.unix_socket) if place is not None)
        yield _ok("http", f"listens on {places}; tokens: {', '.join(sorted(tokens.scopes)) or 'none'}")


def _bundle(config: Config) -> Iterator[CheckResult]:
    config = with_own_keys(config)
    path = config.model.bundle or config.storage.dir / "bundle"
    if config.model.bundle is None and not (path / "bundle.json").exists():
        yield _ok("bundle", "none configured: edged builds the standard network at the first start")
        yield _builder(config)
        return
    try:
        with as_folder(path) as folder:
            bundle = open_bundle(folder, config.model.keys)
            bundle.check_schema(config.stream.to_schema())
            InferenceModel(bundle.inference_model, providers=config.serving.provider).warm_up()
            engine = _engine(config, bundle)
    except EdgedError as problem:
        remedy = "" if isinstance(problem, ConfigError) else "build it again with `edged artifacts build`"
        yield _error("bundle", problem.line(), remedy)
        return
    yield _ok("bundle", f"{path}: complete, fits the stream, serves")
    yield engine


def _builder(config: Config) -> CheckResult:
    """Check for the engine that will train the standard network, which is built at the first start."""
    if config.training.engine == "native":
        try:
            api.load("api")
        except UnavailableError as problem:
            return _error("engine", problem.what, problem.remedy)
    return _ok("engine", f"{config.training.engine} trains the standard network")


def _engine(config: Config, bundle: Bundle) -> CheckResult:
    """Open the engine that trains: its package, and every operator of its graphs."""
    training = config.training
    try:
        open_engine(training.engine, bundle, providers=training.provider)
    except EdgedError as problem:
        return _error("engine", f"{problem.where}: {problem.what}", problem.remedy)
    return _ok("engine", f"{training.engine}: every operator that it needs is there")


def _state(config: Config) -> Iterator[CheckResult]:
    folder = config.storage.dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder) as probe:
            started = time.perf_counter()
            probe.write(b"edged")
            probe.flush()
            os.fsync(probe.fileno())
            sync = time.perf_counter() - started
    except OSError as problem:
        remedy = "make it writable for this user, or set storage.dir"
        yield _error("state directory", f"{folder}: {problem.strerror}", remedy)
        return
    result = f"{folder}: writable, one fsync takes {sync * 1e3:.1f} ms"
    if sync < 0.25:
        yield _ok("state directory", result)
    else:
        remedy = "slow storage delays acknowledgements: raise storage.commit_delay"
        yield CheckResult("state directory", "warning", result, remedy)
    free = shutil.disk_usage(folder).free
    result = f"{free / 1024**2:.0f} MiB free"
    if free < config.storage.max_bytes:
        remedy = "lower storage.max_bytes or free some space"
        yield CheckResult("disk", "warning", f"{result}, less than storage.max_bytes", remedy)
    else:
        yield _ok("disk", result)
    if (folder / "samples.db").exists():
        yield _log(config)
    pid = DirectoryLock.holder(folder)
    if pid is not None:
        yield _ok("daemon", f"running as process {pid}")


def _log(config: Config) -> CheckResult:
    """Whether the sample log that is there was written for this stream."""
    try:
        log = SampleLog.open(config.storage.dir / "samples.db", config.stream.to_schema(), readonly=True)
    except EdgedError as problem:
        return _error("sample log", problem.line())
    rows = log.counters().rows
    log.close()
    return _ok("sample log", f"{rows:,} samples, fits the stream")


def _clock(_: Config) -> Iterator[CheckResult]:
    if time.time() < CLOCK_SET:
        remedy = "set the clock; enable systemd-timesyncd or chrony"
        yield _error("clock", f"the year is {time.gmtime().tm_year}", remedy)
        return
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    source = {True: ", set by a time server", False: ", not set by a time server", None: ""}
    yield _ok("clock", now + source[synchronised()])


def _board(config: Config) -> Iterator[CheckResult]:
    """Heat, power and processors, as far as this machine tells."""
    host = VitalsReader(config.storage.dir).board()
    named = {"throttled": "throttled", "under_voltage": "undervoltage", "on_battery": "on battery"}
    found = ((name, getattr(host, key)) for key, name in named.items())
    said = [f"{name}: {'yes' if value else 'no'}" for name, value in found if value is not None]
    if host.temperature_c is not None:
        said.insert(0, f"{host.temperature_c:.0f} °C")
    if host.power_mode is not None:
        said.append(f"power mode {host.power_mode}")
    trouble = host.throttled or host.under_voltage
    remedy = "check cooling and power supply: training waits" if trouble else ""
    if said:
        yield CheckResult("board", "warning" if trouble else "ok", ", ".join(said), remedy)
    yield _ok("processors", f"{len(os.sched_getaffinity(0))} usable")


def _broker(config: Config, seconds: float) -> Iterator[CheckResult]:
    """Whether the broker lets us in; then what comes there for some seconds."""
    mqtt = config.mqtt
    where = mqtt.address
    pid = DirectoryLock.holder(config.storage.dir)
    named = mqtt.username is not None or (mqtt.tls is not None and mqtt.tls.cert_file is not None)
    if pid is not None and named:
        # A broker may go by the user's name alone: a second connection would end the daemon's session there.
        yield _ok("broker", f"{where}: `edged status` shows whether process {pid} is connected")
        return
    try:
        arrivals = Arrivals(config, SystemClock())
        for message in observe(mqtt, widest(list(arrivals.topics)), seconds, REMEDY):
            arrivals.add(message)
        arrivals.count_due()
    except EdgedError as problem:
        yield _error("broker", f"{problem.where}: {problem.what}", problem.remedy)
        return
    yield _ok("broker", f"{where} accepts the connection")
    if seconds:
        yield from _arrivals(arrivals, seconds, "" if config.stream.window is None else " readings")


def _arrivals(arrivals: Arrivals, seconds: float, unit: str) -> Iterator[CheckResult]:
    """What came beside what the configuration expects; `unit` is that of the samples."""
    for name, count in arrivals.topics.items():
        if not count.messages and name == arrivals.label_topic:
            yield _ok("labels", f"none on {name} in {seconds:g} s")
            continue
        if not count.messages:
            remedy = f"compare with `mosquitto_sub -v -t '{name}'`; --seconds listens longer"
            yield CheckResult("messages", "warning", f"no message on {name} in {seconds:g} s", remedy)
            continue
        refused = count.refused.total()
        summary = f"{count.messages:,} on {name} in {seconds:g} s"
        if not refused:
            yield _ok("messages", summary)
            continue
        why, often = count.refused.most_common(1)[0]
        level: Level = "error" if refused >= max(MIN_OUTCOMES, count.messages) else "warning"
        remedy = "correct the section stream, or the sender"
        yield CheckResult(
            "messages", level, f"{summary}, {refused:,} would be rejected, {often:,} of them: {why}", remedy
        )
    if arrivals.samples:
        labelled = f", {arrivals.labelled:,} with a label" if arrivals.labelled else ""
        yield _ok("samples", f"{arrivals.samples:,}{unit} in {seconds:g} s{labelled}")
    elif awaited := arrivals.awaited:
        what = f"none in {seconds:g} s: no value of {one_of(awaited)}"
        remedy = "missing: {fill: last, flags: true} makes samples without them; --seconds listens longer"
        yield CheckResult("samples", "warning", what, remedy)
    if arrivals.held:
        yield _ok("labels", f"{arrivals.held:,} received, each for the following samples of its key")
    if arrivals.labels:
        found, came = arrivals.joined(), len(arrivals.labels)
        remedy = "" if found == came else "check stream.label.join, and the ids, keys and times in the labels"
        summary = f"{came:,} received, {found:,} match a sample"
        yield CheckResult("labels", "warning" if remedy else "ok", summary, remedy)
