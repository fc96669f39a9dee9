"""The main thread is woken by signals in whichever thread they arrive."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, signal, threading
from edged.host.waiting import WakeupQueue

bell = WakeupQueue((signal.SIGTERM, signal.SIGHUP))
there = threading.Event()

def elsewhere():
    # Only this thread takes signals: the main one has blocked them before it waits.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGHUP})
    there.set()
    for number in (signal.SIGHUP, signal.SIGTERM):
        asked.wait()
        asked.clear()
        os.kill(os.getpid(), number)
    asked.wait()
    bell.put("a word")

asked = threading.Event()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})
threading.Thread(target=elsewhere, daemon=True).start()
there.wait()
for _ in range(3):
    threading.Timer(0.05, asked.set).start()
    print(bell.get(), flush=True)
"""


def test_signals_that_another_thread_takes_wake_the_main_one() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.split("\n")[:3] == ["1", "15", "a word"]


def test_a_flood_loses_nothing() -> None:
    program = """
import signal
from edged.host.waiting import WakeupQueue
bell = WakeupQueue((signal.SIGTERM,))
for i in range(100_000):
    bell.put(i)
print([bell.get() for _ in range(100_000)] == list(range(100_000)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "True\n"
