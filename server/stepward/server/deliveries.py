"""What an agent is told of its session and its assignments, from rows: the same on a stream and in answers to calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepward.server import observe
from stepward.server.api import convert
from stepward.server.core import views
from stepward.v1 import agent_service_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from stepward.server.core.commands import SessionOpened
    from stepward.server.core.limits import Limits
    from stepward.server.core.rows import Assignment
    from stepward.server.core.views import OfferView
    from stepward.server.observe import Counters
    from stepward.server.reading import Reading

# An agent may send this often within a TTL.
HEARTBEATS_A_TTL: Final = 6
# What an offer costs beside its payloads, and where a set of them is cut: a message must fit into the limit of clients
# that were told nothing, which is 4 MiB.
OFFER_BYTES: Final = 512
OFFERS_BYTES_MAX: Final = 1024 * 1024

_log = observe.logger("deliveries")


def welcome(
    session_id: str, opened: SessionOpened, *, node_id: str, node_addresses: Sequence[str], limits: Limits
) -> pb.Welcome:
    """What a session is, for its agent."""
    return pb.Welcome(
        session_id=session_id,
        generation=opened.generation,
        ttl=convert.duration(opened.ttl_ms),
        heartbeat_interval=convert.duration(opened.ttl_ms // HEARTBEATS_A_TTL),
        kill_grace=convert.duration(limits.kill_grace_ms),
        payload_bytes_max=limits.payload_bytes_max,
        node_id=node_id,
        node_addresses=node_addresses,
    )


def offer_views(
    reader: Reading, assigned: Iterable[tuple[bytes, Assignment]], *, limits: Limits, counters: Counters
) -> Iterator[OfferView]:
    """Offers and cancels as the rows have them now. What has become pointless is left out."""
    for key, assignment in assigned:
        try:
            view = views.offer_view(reader, key, assignment, limits)
        except Exception:  # noqa: BLE001 - one offer that cannot be put together must not hold up the others
            counters.delivery_failures += 1
            _log.exception("offer_failed", key=key.hex())
            continue
        if view is not None:
            yield view


def offer_bytes(view: OfferView) -> int:
    """Size of an offer in a message, near enough."""
    progress = 0 if view.last_progress is None else len(view.last_progress.data)
    return len(view.input.data) + progress + OFFER_BYTES
