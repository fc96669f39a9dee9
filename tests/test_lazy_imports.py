"""Modules that are named at once and read at their first use."""

import json
import subprocess
import sys


def run(code: str) -> object:
    """What a fresh interpreter prints as JSON."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_a_module_is_read_at_its_first_use_and_then_is_the_real_one() -> None:
    found = run(
        "import json, sys; from edged.lazy_imports import lazily; lazily('wave'); import wave as first;"
        "before = 'Wave_read' in vars(first); made = first.Wave_read.__name__; import wave as second;"
        "same = first.Wave_read is second.Wave_read;"
        "print(json.dumps([before, made, second.__file__.endswith('wave.py'), same]))"
    )
    assert found == [False, "Wave_read", True, True]


def test_submodules_of_a_package_can_be_imported_as_ever() -> None:
    found = run(
        "import json; from edged.lazy_imports import lazily; lazily('asyncio'); lazily('urllib.request');"
        "from asyncio import events; import asyncio.tasks; import urllib.request;"
        "print(json.dumps([events.__name__, asyncio.tasks.__name__, callable(urllib.request.getproxies)]))"
    )
    assert found == ["asyncio.events", "asyncio.tasks", True]


def test_a_function_that_is_only_named_is_not_read_before_it_is_called() -> None:
    found = run(
        "import json, sys; from edged.lazy_imports import lazily;"
        "lazily('importlib.metadata', 'entry_points');"
        "from importlib.metadata import entry_points; before = 'email' in sys.modules;"
        "made = len(entry_points(group='console_scripts')) > 0; from importlib.metadata import version;"
        "import importlib.metadata as real;"
        "print(json.dumps([before, made, bool(version('numpy')), real.entry_points is not entry_points]))"
    )
    assert found == [False, True, True, True]


def test_a_module_that_is_there_stays_as_it_is() -> None:
    found = run(
        "import json, sys, wave; from edged.lazy_imports import lazily; lazily('wave');"
        "print(json.dumps(sys.modules['wave'] is wave))"
    )
    assert found is True


def test_what_a_daemon_never_uses_is_not_read() -> None:
    """Without rich tracebacks, a loop of asyncio, plugins of pydantic, and archives."""
    found = run(
        "import os; os.environ['PYDANTIC_DISABLE_PLUGINS'] = '__all__';"  # as `edged run` does
        "import json, sys, edged.daemon;"
        "names = 'asyncio.events', 'http.client', 'rich', 'email', 'difflib', '_ssl', '_bz2';"
        "print(json.dumps([name for name in names if name in sys.modules]))"
    )
    assert found == []
