"""The yardstick: how many unary calls a second this machine gives between two Python processes, at this moment.

Machines drift by a third within minutes. A figure of the benchmark means something only beside the yardstick of the
same run. The service gives back the bytes that it gets and does nothing else, so it is the most that any Python server
could do here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time

import grpc.aio

METHOD = "/stepward.loadtest.Echo/Call"
PAYLOAD = b"x" * 300


async def serve() -> None:
    """Answer until a SIGTERM; say in one JSON line where."""

    async def echo(request: bytes, _: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return request

    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {"Call": grpc.unary_unary_rpc_method_handler(echo)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("stepward.loadtest.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    sys.stdout.write(json.dumps({"event": "ready", "address": f"127.0.0.1:{port}", "pid": os.getpid()}) + "\n")
    sys.stdout.flush()
    await stopping.wait()
    await server.stop(grace=0)


async def measure(address: str, *, in_flight: int, seconds: float) -> float:
    """Calls a second with so many in flight."""
    answered = 0
    until = time.monotonic() + seconds
    async with grpc.aio.insecure_channel(address) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(METHOD)

        async def caller() -> None:
            nonlocal answered
            while time.monotonic() < until:
                await call(PAYLOAD)
                answered += 1

        await call(PAYLOAD, wait_for_ready=True)
        began = time.monotonic()
        await asyncio.gather(*(caller() for _ in range(in_flight)))
        return answered / (time.monotonic() - began)


def main() -> None:
    """Entry of the command line: `serve`, or `measure` with an address; the answer of that is one JSON line."""
    options = argparse.ArgumentParser(prog="python -m loadtest.echo", description=__doc__)
    options.add_argument("--measure", metavar="ADDRESS", help="measure the service there; without it, be the service")
    options.add_argument("--inflight", type=int, default=64)
    options.add_argument("--seconds", type=float, default=2.0)
    given = options.parse_args()
    if given.measure is None:
        asyncio.run(serve())
        return
    rate = asyncio.run(measure(given.measure, in_flight=given.inflight, seconds=given.seconds))
    sys.stdout.write(json.dumps({"calls_per_s": rate}) + "\n")


if __name__ == "__main__":
    main()
