"""Fixtures for all tests: a broker of the test's own."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from edged.workbench.demo.broker import find_mosquitto, free_port
from tests.installed import needs_native
from tests.mosquitto import Mosquitto

if TYPE_CHECKING:
    MakeBroker = Callable[..., Mosquitto]

# Tests start thousands of processes: each would compile all its modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores it, and so would every program that the tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A machine that has other work is slow, which says nothing of what is tested.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# Their tests share nothing: they are handed out one by one. Every other file stays on one worker, with the
# fixtures that its tests share.
SINGLE = (
    *("tests/crash/test_machine.py", "tests/crash/test_states.py"),
    *("tests/docs/test_tutorials.py", "tests/workbench/evaluation/test_replay.py"),
)


def _is_single(nodeid: str) -> bool:
    return nodeid.partition("::")[0] in SINGLE


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out files, and the tests of `SINGLE` one by one, to several workers; see `make test`."""
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if _is_single(nodeid) else nodeid.partition("::")[0]

    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests need an engine; short ones of `SINGLE` come last, so that workers end together."""
    items.sort(key=lambda item: _is_single(item.nodeid) and item.get_closest_marker("slow") is None)
    for item in items:
        given = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if any(isinstance(value, str) and value == "native" for value in given):
            item.add_marker(needs_native)


_FIRST: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _same_numbers(request: pytest.FixtureRequest) -> None:
    """A module's `RNG` begins anew with every test: what a test draws depends on no other test."""
    module = request.node.getparent(pytest.Module)
    rng = getattr(module and module.obj, "RNG", None)
    if isinstance(rng, np.random.Generator):
        rng.bit_generator.state = _FIRST.setdefault(module.nodeid, rng.bit_generator.state)


@pytest.fixture
def make_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeBroker]:
    """Starts mosquitto processes, with further configuration lines; `directory`, `port`, `log`.

    Each can be stopped, killed and started again on the same port.
    """
    yield from _brokers(tmp_path_factory)


@pytest.fixture(scope="module")
def make_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeBroker]:
    """Brokers as those of `make_broker`, for all tests of a module."""
    yield from _brokers(tmp_path_factory)


def _brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeBroker]:
    if find_mosquitto() is None:
        pytest.fail("mosquitto is not installed: run the tests with `make test`, which installs it")
    running: list[Mosquitto] = []

    def make(*extra: str, directory: Path | None = None) -> Mosquitto:
        home = directory or tmp_path_factory.mktemp("broker")
        broker = Mosquitto(home, free_port(), extra or ("allow_anonymous true",))
        running.append(broker)
        broker.start()
        return broker

    yield make
    for broker in running:
        broker.stop()


@pytest.fixture
def broker(make_broker: MakeBroker) -> Mosquitto:
    """A mosquitto process on a free loopback port, open to everybody."""
    return make_broker()
