"""The pure-Python broker as a process: `python -m edged.workbench.demo.amqtt_broker PORT`."""

from __future__ import annotations

import asyncio
import sys

HOST = "127.0.0.1"


async def serve(port: int) -> None:
    """Serve on a loopback port until standard input ends."""
    from amqtt.broker import Broker

    broker = Broker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"{HOST}:{port}"}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }
    )
    await broker.start()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
