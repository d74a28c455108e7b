"""Whom this node has not taken for one of the cluster, for the person who wonders why it does not take part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from stepward.server.clock import Clock

# Whoever is refused tries again within a second or two, so that one that is older was not refused again.
KEPT_MS: Final = 10_000
# More than a cluster has nodes: whatever calls from outside must not fill the memory, nor the screen.
KEPT_MAX: Final = 16


class Refusal(NamedTuple):
    """`node_id` refuses one that says it is `refused_node_id`. `refused_host`: from where that one calls."""

    node_id: str
    refused_node_id: str
    refused_host: str
    reason: str


class Refusals:
    """The last refusals of this node, one for each id and host. Belongs to the thread of the event loop."""

    def __init__(self, node_id: str, *, clock: Clock) -> None:
        self._node_id = node_id
        self._clock = clock
        self._kept: dict[tuple[str, str], tuple[int, str]] = {}

    def note(self, refused_node_id: str, refused_host: str, reason: str) -> None:
        """One was refused."""
        who = refused_node_id, refused_host
        # The newest stand at the end.
        self._kept.pop(who, None)
        self._kept[who] = self._clock.steady_ms(), reason
        if len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]

    def forget(self, refused_node_id: str, refused_host: str) -> None:
        """One that was refused is taken now."""
        self._kept.pop((refused_node_id, refused_host), None)

    def lately(self) -> list[Refusal]:
        """Those of the last seconds, the oldest first."""
        since_ms = self._clock.steady_ms() - KEPT_MS
        return [
            Refusal(self._node_id, refused_node_id, refused_host, reason)
            for (refused_node_id, refused_host), (at_ms, reason) in self._kept.items()
            if at_ms >= since_ms
        ]
