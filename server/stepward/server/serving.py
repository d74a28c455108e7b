"""The life of a node's process: what it tells whoever started it, and what ends it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from stepward.server import membership
from stepward.server.logbook.identity import known_identity
from stepward.server.node import Node

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepward.server.config_file import Configuration

# What is read from stdin means nothing; only its end does.
_STDIN_BYTES: Final = 4_096


class Orders(NamedTuple):
    """What whoever starts a node wants to hear, and when it shall end."""

    ready_fd: int | None = None
    exit_with_parent: bool = False


async def serve(configuration: Configuration, orders: Orders) -> str:
    """Run a node until a signal, or until it cannot go on; why it cannot, empty otherwise.

    Raises:
        ServerError: The directory cannot be used, or belongs to another node.
        AddressTaken: The address cannot be listened on.
    """
    stop = _asked_to_stop(orders)
    identity = known_identity(configuration.node.data)
    if identity is not None:
        membership.check_identity(identity, configuration.node)
    node = Node(*configuration)
    fatal = asyncio.create_task(node.fatal())
    try:
        await node.start()
        if not fatal.done():
            _tell_ready(node, orders.ready_fd)
        await asyncio.wait((fatal, stop), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.cancel()
        await node.stop()
    if fatal.done():
        return fatal.result()
    fatal.cancel()
    return ""


def _asked_to_stop(orders: Orders) -> asyncio.Task[bool]:
    """Ends when somebody wants the process to end."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    if orders.exit_with_parent and _is_pipe(sys.stdin.fileno()):
        _on_end_of_pipe(loop, sys.stdin.fileno(), asked.set)
    return asyncio.create_task(asked.wait())


def _is_pipe(descriptor: int) -> bool:
    """Whether the end of another process would close it. asyncio makes sockets instead of pipes on some platforms."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _on_end_of_pipe(loop: asyncio.AbstractEventLoop, descriptor: int, ended: Callable[[], object]) -> None:
    """Call `ended` once, when nobody holds the other end any more. The kernel closes it also after kill -9."""

    def readable() -> None:
        try:
            if os.read(descriptor, _STDIN_BYTES):
                return
        except ConnectionError:
            pass
        loop.remove_reader(descriptor)
        ended()

    loop.add_reader(descriptor, readable)


def _tell_ready(node: Node, ready_fd: int | None) -> None:
    line = json.dumps(
        {
            "event": "ready",
            "address": node.address,
            "pid": os.getpid(),
            "node_id": node.identity.node_id,
            "cluster_id": node.identity.cluster_id,
            "http": node.http_address,
        }
    )
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
    if ready_fd is not None:
        os.write(ready_fd, line.encode() + b"\n")
        os.close(ready_fd)
