"""The models of keys without a daemon: which are loaded, what is kept, what a crash leaves."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml

from edged.clock import SystemClock
from edged.config import loader
from edged.device.events import Events, Listener
from edged.device.keys import KeyModels
from edged.device.learning.trainer_client import TrainerClient
from edged.device.pipeline import Host, Pipeline
from edged.device.startup.bootstrap import open_samples, with_bundle
from edged.domain.judging.expert_mix import ExpertMix
from edged.engines.inference import InferenceReader
from edged.errors import ConfigError, RefusedError
from edged.storage.files.atomic import MANIFEST
from edged.storage.models.bundles import Bundle
from edged.storage.models.key_folders import FOLDER, KeyFolders
from edged.storage.models.registry import Registry

if TYPE_CHECKING:
    from edged.domain.events import Event


class Heard(Listener):
    """Keeps events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def event(self, event: Event) -> None:
        """Keep an event."""
        self.events.append(event)


def configured(folder: Path, **model: Any) -> Path:
    """A configuration file with models by key."""
    path = folder / "edged.yaml"
    values = {
        "device": {"id": "d"},
        "stream": {"features": 4, "task": "classify", "classes": 3},
        "model": {"per": "key", "network": "mlp", "hidden": [8], **model},
        "storage": {"dir": str(folder / "state")},
    }
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


@contextmanager
def opened(path: Path) -> Iterator[tuple[KeyModels, Pipeline, Heard]]:
    """The models of keys of a state directory."""
    config, heard = with_bundle(loader.load(path)), Heard()
    folder = config.storage.dir
    with ExitStack() as stack:
        registry = stack.enter_context(Registry.open(folder))
        samples = stack.enter_context(open_samples(config))
        client = TrainerClient(config)
        stack.callback(client.close)
        bundle = Bundle.open(config.model.bundle or folder / "bundle")
        host = Host(Events(heard), SystemClock(), InferenceReader(), client)
        pipeline = Pipeline(config, bundle, registry, samples, samples, host)
        models = KeyModels(pipeline, bundle, host)
        stack.callback(models.pipelines.close)
        yield models, pipeline, heard


def promote(models: KeyModels, key: str) -> None:
    """Let a key's own model serve: here the stream's weights once more."""
    models.training.begin(key)
    with models.pipelines.held(key) as own:
        folder = own.config.storage.dir / "candidates" / "made"
        first = own.registry.verify(own.predictor.champion.version).parent
        shutil.copytree(first, folder, ignore=shutil.ignore_patterns(MANIFEST))
        record = own.registry.add(folder, created=0.0, source="training")
        own.models.set_champion(record.version, "test")
        own.predictor.swap(own.models.open(record.version), watch=False)
        own.contest.begin()


def own_answers(models: KeyModels, *keys: str) -> list[bool]:
    """Whose own model answers, key by key."""
    found = {share.key: share.own for share in models.serving.split(keys)}
    return [found.get(key, False) for key in keys]


def test_those_not_used_for_longest_are_unloaded_and_come_back_as_they_were(tmp_path: Path) -> None:
    with opened(configured(tmp_path, keep=2)) as (models, _, _):
        for key in "abc":
            promote(models, key)
        status = models.status()
        assert (status.own, status.loaded, status.unloads) == (3, 2, 1)
        assert own_answers(models, "b", "c") == [True, True]
        models.serving.split(["a"])  # it is loaded, in the place of b or c
        assert own_answers(models, "a") == [True]
        assert models.status().loaded == 2
        assert models.pipelines.at("a").predictor.champion.version == 2


def test_after_a_restart_keys_go_on_from_what_was_stored(tmp_path: Path) -> None:
    path = configured(tmp_path)
    with opened(path) as (models, _, _):
        promote(models, "pump/1")
        mix = models.pipelines.at("pump/1").mix
        x = np.zeros((1, models.pipelines.at("pump/1").schema.width), np.float32)
        models.pipelines.at("pump/1").predictor.predict(np.array([1]), x)
        assert isinstance(mix, ExpertMix)
        mix.update(np.eye(len(mix.weights), 3, dtype=np.float32)[None], np.array([0]))
        kept = mix.state()
    with opened(path) as (models, _, _):
        assert models.status().own == 1
        models.serving.split(["pump/1"])
        assert own_answers(models, "pump/1") == [True]
        assert models.pipelines.at("pump/1").mix.state() == kept


def test_a_damaged_directory_is_set_aside_and_the_key_shares(tmp_path: Path) -> None:
    path = configured(tmp_path)
    with opened(path) as (models, _, _):
        promote(models, "a")
        promote(models, "b")
    state = tmp_path / "state"
    for model in (KeyFolders(state).of("a") / "models").glob("[0-9]*/model.onnx"):
        model.write_bytes(model.read_bytes()[:-20])
    with opened(path) as (models, _, heard):
        assert own_answers(models, "a", "b") == [False, False]  # asked for, and loaded meanwhile
        assert own_answers(models, "a", "b") == [False, True]
        told = [event.to_json() for event in heard.events if event.name == "key_model"]
        assert [one["key"] for one in told if "reason" in one] == ["a"]
        assert list((state / FOLDER).glob("=a.damaged-*"))
        promote(models, "a")  # it begins anew
        assert own_answers(models, "a") == [True]


def test_a_birth_that_was_cut_off_is_finished_or_begun_again(tmp_path: Path) -> None:
    path = configured(tmp_path)
    with opened(path) as (models, _, _):
        models.training.begin("a")
    folder = KeyFolders(tmp_path / "state").of("a")
    shutil.rmtree(folder / "models")  # the cut came before there was a model
    (folder / "key.json").unlink(missing_ok=True)
    with opened(path) as (models, _, _):
        assert own_answers(models, "a") == [False]
        assert models.pipelines.at("a").shares


def test_version_0_is_the_streams_model(tmp_path: Path) -> None:
    with opened(configured(tmp_path)) as (models, _, heard):
        promote(models, "a")
        with models.pipelines.held("a") as own:
            own.rollout.roll_back("command", 0)
        assert own_answers(models, "a") == [False]
        assert models.pipelines.at("a").shares
        (told,) = [event.to_json() for event in heard.events if event.name == "model_rolled_back"]
        assert (told["key"], told["from"]) == ("a", 2)


def test_what_is_erased_is_gone(tmp_path: Path) -> None:
    with opened(configured(tmp_path)) as (models, _, _):
        promote(models, "a")
        promote(models, "b")
        assert models.forget("a") == 1
        assert own_answers(models, "a", "b") == [False, True]
        with pytest.raises(RefusedError, match="no own model"):
            models.pipelines.at("a")
        assert models.forget() == 1
        assert not (tmp_path / "state" / FOLDER).exists()


def test_changes_of_champions_are_in_the_streams_audit_log(tmp_path: Path) -> None:
    with opened(configured(tmp_path)) as (models, pipeline, _):
        promote(models, "a")
        told = [entry for entry in pipeline.registry.waiting_audit().values() if entry.key == "a"]
        assert [entry.after for entry in told] == [1, 2]
        assert not models.pipelines.at("a").registry.waiting_audit()


def test_streams_without_labels_have_one_model(tmp_path: Path) -> None:
    path = configured(tmp_path)
    values = yaml.safe_load(path.read_text())
    values["stream"] = {"features": 4, "target": "reconstruct"}
    values["model"] = {"per": "key"}
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError, match=r"model\.per: key learns from labels"):
        loader.load(path)
