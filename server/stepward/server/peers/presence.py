"""Which of the other nodes are there: so that nobody takes the place of one that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepward.server.clock import Clock


class Presence:
    """When each other node was last heard on its stream to this one. Belongs to the thread of the event loop."""

    def __init__(self, addresses: Mapping[str, str], *, gone_ms: int, clock: Clock) -> None:
        """`addresses`: where each node is reached, to be told. `gone_ms`: one that was silent for longer is gone."""
        self._addresses = addresses
        self._gone_ms = gone_ms
        self._clock = clock
        self._began_at_ms = clock.steady_ms()
        self._heard_at_ms: dict[str, int] = {}

    def heard(self, node_id: str) -> None:
        """It has said something."""
        self._heard_at_ms[node_id] = self._clock.steady_ms()

    def of(self, node_id: str, incarnation: int) -> str:
        """Why another one that comes under the id of a node is not taken: that node is there. Empty: it is not.

        `incarnation`: of the one that was heard.
        """
        heard_at_ms = self._heard_at_ms.get(node_id)
        if heard_at_ms is None or (silent_ms := self._clock.steady_ms() - heard_at_ms) >= self._gone_ms:
            return ""
        return (
            f"{node_id} runs already at {self._addresses.get(node_id, 'an unknown address')}, incarnation "
            f"{incarnation}, last heard {silent_ms / 1_000:.1f} s ago; stop it first, or give this one another id"
        )

    def unknown(self, node_id: str) -> str:
        """Why nobody can tell yet whether a node is there: this one was only just started. Empty: it would know."""
        up_ms = self._clock.steady_ms() - self._began_at_ms
        if up_ms >= self._gone_ms:
            return ""
        return (
            f"another {node_id} may run: the node that was asked was started {up_ms / 1_000:.1f} s ago, and knows "
            f"after {self._gone_ms / 1_000:.1f} s (peer_gone_ms)"
        )
