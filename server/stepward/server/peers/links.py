"""The streams to all other nodes: one hand to put frames on them, and one clock that looks after them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from stepward.server.peers.link import Connections, Ends, Link

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from stepward.server.config import NodeConfig
    from stepward.server.logbook.outbox import Frame
    from stepward.server.observe import Counters
    from stepward.server.peers.handshake import Introduction


class Links:
    """A stream to each other node. Belongs to the thread of the event loop."""

    def __init__(
        self,
        us: Introduction,
        *,
        config: NodeConfig,
        counters: Counters,
        wall_ms: int,
        rng: random.Random,
        ends: Ends,
    ) -> None:
        """`wall_ms`: when this node started; the numbers of its streams begin there."""
        connections = Connections(wall_ms)
        self._config = config
        self._links = {
            peer_id: Link(
                peer_id,
                config.nodes[peer_id],
                us=us,
                config=config,
                counters=counters,
                connections=connections,
                rng=rng,
                ends=ends,
            )
            for peer_id in us.peers
        }
        self._tasks: list[asyncio.Task[None]] = []
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> Sequence[asyncio.Task[None]]:
        """Begin to make streams; who does it, which ends only when told to."""
        self._tasks = [asyncio.create_task(link.run(), name=f"link-{link.peer_id}") for link in self._links.values()]
        if self._links:
            self._look()
        return self._tasks

    async def stop(self) -> None:
        """Let go of all streams."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def send(self, frames: Sequence[Frame]) -> None:
        """Put what a step gave on its streams: all for one peer together."""
        by_peer: dict[str, list[bytes]] = {}
        for frame in frames:
            by_peer.setdefault(frame.peer_id, []).append(frame.content)
        for peer_id, contents in by_peer.items():
            self._links[peer_id].send(contents)

    def heard(self, peer_id: str) -> None:
        """A node has said something on its own stream."""
        self._links[peer_id].heard()

    def hasten(self, peer_id: str) -> None:
        """A node has made a stream to this one, so it can be reached again."""
        self._links[peer_id].hasten()

    def stands(self, peer_id: str) -> bool:
        """Whether there is a stream to a node."""
        return self._links[peer_id].stands

    def refusals(self) -> dict[str, str]:
        """Why nodes take no stream of this one, of those that have said it."""
        return {peer_id: link.refusal for peer_id, link in self._links.items() if link.refusal}

    def _look(self) -> None:
        # Twice as often as a beat is due, so that none is late by much.
        self._timer = asyncio.get_running_loop().call_later(self._config.peer_beat_ms / 2_000, self._look)
        for link in self._links.values():
            link.look()
