"""The seam at which raft messages leave.

One rule holds already for a node without peers: whatever is promised in a message (a vote, a request for one, entries
that the sender counts as its own, an acknowledgement) is durable before the message leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pysyncobj.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Callable

# Commands reach the leader on a way of ours; pysyncobj's own would carry them around every check.
_REFUSED: Final = frozenset({"apply_command", "apply_command_response"})


class FlushingTransport(Transport):  # type: ignore[misc]  # pysyncobj has no types
    """Flushes, then hands a message to the wire.

    Args:
        flush: Makes everything durable that was written so far; cheap when there is nothing.
        wire: Sends a message to the peer of that id; says whether it could.
    """

    def __init__(self, flush: Callable[[], None], wire: Callable[[str, dict[str, Any]], bool]) -> None:
        super().__init__(None, None, [])
        self._flush = flush
        self._wire = wire

    def send(self, node: Any, message: dict[str, Any]) -> bool:
        """Called by pysyncobj for each message."""
        if message["type"] in _REFUSED:
            return False
        self._flush()
        return self._wire(node.id, message)


def no_wire(peer_id: str, message: dict[str, Any]) -> bool:
    """The wire of a cluster of one: there is nobody to talk to."""
    raise AssertionError(f"a cluster of one sends {message['type']} to {peer_id}")
