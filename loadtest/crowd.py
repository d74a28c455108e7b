"""Many agents that have nothing to do, in one process: each has a connection and a stream of its own, and heartbeats.

It says in one JSON line when all were welcomed, and in another, when it ends, what became of them. They serve a
queue to which nothing is submitted, so whatever a node spends on them is what a connected agent costs.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import secrets
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from loadtest.files import add_tls_options, tls_of
from loadtest.submitters import open_channel
from stepward.client.tls import TlsFiles
from stepward.v1 import agent_service_pb2 as pb
from stepward.v1 import agent_service_pb2_grpc

QUEUE = "bench-crowd"
WELCOME_S_MAX = 60.0
# So many hellos are on their way at once: all at once are another measurement.
JOINING_MAX = 32

# Of somebody who holds nothing: see `Heartbeat.held_digest`.
HOLDS_NOTHING = int.from_bytes(hashlib.sha256(b"").digest()[:8], "big")


@dataclass
class Count:
    """What became of the agents of this process."""

    joining: int
    """Not welcomed yet."""
    heartbeats: int = 0
    """That were answered."""
    lost: int = 0
    """Streams that ended before they were told to."""
    all_welcomed: asyncio.Event = field(default_factory=asyncio.Event)

    def welcome(self) -> None:
        """One more has been welcomed."""
        self.joining -= 1
        if not self.joining:
            self.all_welcomed.set()


class IdleAgent:
    """One session on one stream."""

    def __init__(self, address: str, tls: TlsFiles | None, count: Count) -> None:
        self._address = address
        self._tls = tls
        self._count = count

    async def serve(self, joining: asyncio.Semaphore) -> None:
        """Say hello, then heartbeats, until cancelled or until the stream ends."""
        async with open_channel(self._address, self._tls) as channel:
            call: Any = agent_service_pb2_grpc.AgentServiceStub(channel).Work()
            async with joining, asyncio.timeout(WELCOME_S_MAX):
                await call.write(pb.WorkRequest(hello=_hello()))
                welcome = (await call.read()).welcome
            self._count.welcome()
            interval_s = welcome.heartbeat_interval.ToMilliseconds() / 1_000
            beating = asyncio.create_task(self._beat(call, interval_s))
            try:
                await self._read(call)
            finally:
                beating.cancel()

    async def _beat(self, call: Any, interval_s: float) -> None:
        # Those that began together would beat together.
        await asyncio.sleep(interval_s * random.random())
        number = 0
        while True:
            number += 1
            await call.write(pb.WorkRequest(heartbeat=pb.Heartbeat(number=number, held_digest=HOLDS_NOTHING)))
            await asyncio.sleep(interval_s)

    async def _read(self, call: Any) -> None:
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                self._count.heartbeats += message.WhichOneof("message") == "heartbeat"
        except grpc.aio.AioRpcError as error:
            sys.stderr.write(f"a stream to {self._address} ended: {error.code()}: {error.details()}\n")
        self._count.lost += 1


def _hello() -> pb.Hello:
    return pb.Hello(
        protocol_version=1,
        session_id=f"session-{secrets.token_hex(8)}",
        queue=QUEUE,
        actions=["nothing"],
        slots=1,
        name="idle",
        library="stepward-loadtest",
    )


async def crowd(given: argparse.Namespace) -> None:
    """Serve until a SIGTERM. An agent that is not welcomed ends the process."""
    stopping, count, joining = asyncio.Event(), Count(given.agents), asyncio.Semaphore(JOINING_MAX)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    addresses, tls = given.server.split(","), tls_of(given)
    agents = [IdleAgent(addresses[number % len(addresses)], tls, count) for number in range(given.agents)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(agent.serve(joining)) for agent in agents]
        await count.all_welcomed.wait()
        _say(event="ready", pid=os.getpid())
        before, began_s = count.heartbeats, time.monotonic()
        await stopping.wait()
        per_s = (count.heartbeats - before) / (time.monotonic() - began_s)
        _say(event="count", heartbeats_per_s=per_s, lost=count.lost)
        for task in tasks:
            task.cancel()


def _say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Entry of the command line."""
    options = argparse.ArgumentParser(prog="python -m loadtest.crowd", description=__doc__)
    options.add_argument("--server", required=True, help="where; several behind commas, over which they spread")
    options.add_argument("--agents", type=int, default=250, help="how many (default: %(default)s)")
    add_tls_options(options)
    asyncio.run(crowd(options.parse_args()))


if __name__ == "__main__":
    main()
