"""The calls that only nodes may make: each is served by the part that knows of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from stepward.server.core.rejections import Reason, Refused, Rejection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stepward.internal.v1 import peer_service_pb2 as pb
    from stepward.server.interceptor import Context
    from stepward.server.peers.replicating import Replicating

P = TypeVar("P")


class Forwarding(Protocol):
    """Serves commands of other nodes."""

    async def forward(self, requests: object, context: Context) -> None:
        """A stream of them; reads and writes through `context`."""
        ...


class Exporting(Protocol):
    """Serves rows to nodes that need all of them."""

    def export_rows(self, request: pb.ExportRowsRequest, context: Context) -> AsyncIterator[pb.ExportRowsResponse]:
        """All rows, in pieces."""
        ...


class Founding(Protocol):
    """Tells who this node is, and makes it one of a cluster."""

    async def get_node(self, request: pb.GetNodeRequest, context: Context) -> pb.GetNodeResponse:
        """Who this node is."""
        ...

    async def found_cluster(self, request: pb.FoundClusterRequest, context: Context) -> pb.FoundClusterResponse:
        """Make this node one of a cluster."""
        ...


class PeerService:
    """The servicer. What this node has no part for is UNIMPLEMENTED."""

    def __init__(
        self,
        *,
        replicating: Replicating | None = None,
        forwarding: Forwarding | None = None,
        exporting: Exporting | None = None,
        founding: Founding | None = None,
    ) -> None:
        self._replicating = replicating
        self._forwarding = forwarding
        self._exporting = exporting
        self._founding = founding

    async def replicate(self, requests: Any, context: Context) -> None:
        await _served(self._replicating, "Replicate").replicate(requests, context)

    async def forward(self, requests: Any, context: Context) -> None:
        await _served(self._forwarding, "Forward").forward(requests, context)

    async def export_rows(
        self, request: pb.ExportRowsRequest, context: Context
    ) -> AsyncIterator[pb.ExportRowsResponse]:
        async for response in _served(self._exporting, "ExportRows").export_rows(request, context):
            yield response

    async def get_node(self, request: pb.GetNodeRequest, context: Context) -> pb.GetNodeResponse:
        return await _served(self._founding, "GetNode").get_node(request, context)

    async def found_cluster(self, request: pb.FoundClusterRequest, context: Context) -> pb.FoundClusterResponse:
        return await _served(self._founding, "FoundCluster").found_cluster(request, context)


def _served(part: P | None, method: str) -> P:
    if part is None:
        text = f"{method} is not served here: this node is alone, or is no member of a cluster yet"
        raise Refused(Rejection(Reason.UNIMPLEMENTED, text))
    return part
