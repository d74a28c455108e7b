"""The life of a node's process: what it tells whoever started it, and what ends it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from stepward.server import membership, observe
from stepward.server.beginning import Beginning
from stepward.server.empty_node import EmptyNode
from stepward.server.logbook.identity import known_identity
from stepward.server.node import Node, version
from stepward.server.peers import certificate
from stepward.server.probes import ProbesAddressTaken
from stepward.server.room_to_begin import room_to_begin
from stepward.server.store.lock import refuse_held

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepward.server.config import ClusterConfig, NodeConfig
    from stepward.server.config_file import Configuration
    from stepward.server.logbook.identity import Identity

# What is read from stdin means nothing; only its end does.
_STDIN_BYTES: Final = 4_096

_log = observe.logger("serving")


class Orders(NamedTuple):
    """What whoever starts a node wants to hear, and when it shall end."""

    ready_fd: int | None = None
    exit_with_parent: bool = False


async def serve(configuration: Configuration, orders: Orders) -> str:
    """Run a node until a signal, or until it cannot go on; why it cannot, empty otherwise.

    Raises:
        ServerError: The directory cannot be used, or belongs to another node, or this node runs already.
        AddressTaken: The address cannot be listened on.
        ProbesAddressTaken: That of the pages for monitoring cannot.
    """
    return await serve_until(_asked_to_stop(orders), *configuration, ready_fd=orders.ready_fd)


async def serve_until(
    asked: asyncio.Event, cluster: ClusterConfig, config: NodeConfig, *, ready_fd: int | None = None
) -> str:
    """As `serve`, until somebody sets `asked`."""
    # First of all, so that whoever waits for this process can ask it what it waits for.
    try:
        beginning = Beginning(config, version=version())
    except ProbesAddressTaken:
        # By this very node, when it was started before: that says more than that its address is taken.
        refuse_held(config.data)
        raise
    stop = asyncio.create_task(asked.wait())
    try:
        if config.tls is not None:
            _look_at_certificate(config)
        # Whoever starts a node of a cluster does so again and again. One that is alone says at once why it cannot.
        if config.nodes and not await room_to_begin(config, stop, on_waiting=beginning.wait_for_room):
            return ""
        beginning.go_on()
        identity = known_identity(config.data)
        if identity is None and config.nodes:
            identity = await _become_member(cluster, config, stop, beginning)
            if identity is None:
                return ""
        if identity is not None:
            membership.check_identity(identity, config)
        return await _run(Node(cluster, config, probes=beginning.probes), stop, ready_fd)
    finally:
        stop.cancel()
        beginning.stop()


def _look_at_certificate(config: NodeConfig) -> None:
    now = datetime.now(UTC)
    ends_at = certificate.check(config, now)
    if reason := certificate.ends_soon(ends_at, now):
        _log.warning("certificate_ends_soon", node_id=config.node_id, ends_at=ends_at.isoformat(), reason=reason)


async def _run(node: Node, stop: asyncio.Task[bool], ready_fd: int | None) -> str:
    fatal = asyncio.create_task(node.fatal())
    try:
        await node.start()
        if not fatal.done():
            _tell(ready_fd, "ready", node.address, node.identity, http=node.http_address)
        await asyncio.wait((fatal, stop), return_when=asyncio.FIRST_COMPLETED)
    finally:
        await node.stop()
    if fatal.done():
        return fatal.result()
    fatal.cancel()
    return ""


async def _become_member(
    cluster: ClusterConfig, config: NodeConfig, stop: asyncio.Task[bool], beginning: Beginning
) -> Identity | None:
    """Wait as a node that knows no cluster until it is one of a cluster; None when it is asked to stop before."""
    empty = EmptyNode(cluster, config, on_waiting=beginning.wait_for)
    await empty.start()
    _tell(None, "waiting", empty.address, None, node_id=config.node_id, http=beginning.address)
    member = asyncio.create_task(empty.member())
    await asyncio.wait((member, stop), return_when=asyncio.FIRST_COMPLETED)
    beginning.go_on()
    if member.done():
        return member.result()
    member.cancel()
    await asyncio.gather(member, return_exceptions=True)
    return None


def _asked_to_stop(orders: Orders) -> asyncio.Event:
    """Set when somebody wants the process to end."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    if orders.exit_with_parent and _is_pipe(sys.stdin.fileno()):
        _on_end_of_pipe(loop, sys.stdin.fileno(), asked.set)
    return asked


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


def _tell(ready_fd: int | None, event: str, address: str, identity: Identity | None, **more: str) -> None:
    """One line for whoever started this process."""
    who = {} if identity is None else {"node_id": identity.node_id, "cluster_id": identity.cluster_id}
    line = json.dumps({"event": event, "address": address, "pid": os.getpid(), **who, **more})
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
    if ready_fd is not None:
        os.write(ready_fd, line.encode() + b"\n")
        os.close(ready_fd)
