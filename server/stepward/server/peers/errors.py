"""What may go wrong with what another node says. None of these ends this node.

ServerError                  see `store.errors`
└── PeerError
    ├── MessageUnreadable    another node says something that this software does not know
    └── PeerRefused          another node did not take a stream, or spoke out of turn
"""

from __future__ import annotations

from stepward.server.store.errors import ServerError


class PeerError(ServerError):
    """Another node cannot be understood."""


class MessageUnreadable(PeerError):  # noqa: N818 - a state of what came, named as such
    """Bytes of another node are no command, or no answer, of this software."""

    def __init__(self, kind: str, size_bytes: int, why: str) -> None:
        super().__init__(
            f"another node sent {kind} of {size_bytes} bytes that this software does not know ({why}); "
            "run the same release on all nodes"
        )
        self.kind = kind
        self.size_bytes = size_bytes


class PeerRefused(PeerError):  # noqa: N818 - a state of the other node, named as such
    """Another node did not welcome a stream, or said something else than the protocol has it say."""

    def __init__(self, node_id: str, why: str) -> None:
        super().__init__(f"node {node_id} does not serve this one: {why}")
        self.node_id = node_id
