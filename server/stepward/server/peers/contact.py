"""Whether this node still learns what is decided, and what callers are told when it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepward.server import observe
from stepward.server.core.rejections import Reason, Rejection

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from stepward.server.logbook.outbox import Standing

# When a caller for whom no leader was found should come back: elections take some hundreds of milliseconds.
RETRY_AFTER_MS_MIN: Final = 100
RETRY_AFTER_MS_MAX: Final = 400

_log = observe.logger("contact")


class Contact:
    """Knows when a leader was last heard of. Agents and waits are sent elsewhere when that is too long ago.

    They are, too, when the disk of this node is too full for what the leader sends.
    """

    def __init__(
        self, *, node_id: str, addresses: Callable[[str], str], session_ttl_ms: int, rng: random.Random
    ) -> None:
        """`addresses` says where a node is, for the hints in refusals."""
        # Agents that go on without a word for longer than this lose their leases before they can be heard elsewhere.
        self.ms_max = session_ttl_ms // 3
        self.lost = False
        # The disk is too full for entries: what is decided elsewhere cannot be seen here.
        self.is_shut = False
        self._node_id = node_id
        self._addresses = addresses
        self._rng = rng
        self._leader_id = ""
        self._heard_at_ms = 0
        self._listeners: list[Callable[[Rejection], None]] = []

    def on_lost(self, listener: Callable[[Rejection], None]) -> None:
        """Tell `listener` why callers and agents should go elsewhere, whenever contact is lost."""
        self._listeners.append(listener)

    def judge(self, standing: Standing, now_ms: int) -> None:
        """Notice when this node cannot know any more what is decided, and tell everybody once."""
        self._leader_id = standing.leader_id
        is_us = standing.leads or standing.leader_id == self._node_id
        # A leader hears of itself all the time; with a majority it has contact while it holds its lease, or just has.
        # None is counted of one that was just elected, and had contact a moment ago; nor of one that has failed to hand
        # over, in all of its term: without a majority that one gives up by itself.
        has_lease = is_us and standing.lease_until_ms
        heard_at_ms = min(now_ms, standing.lease_until_ms) if has_lease else standing.contact_at_ms
        # A node that has just started has not lost what it never had.
        self._heard_at_ms = max(self._heard_at_ms or now_ms, heard_at_ms)
        self.is_shut = not (standing.takes_entries or standing.leads)
        silent, before = now_ms - self._heard_at_ms > self.ms_max, self.lost
        self.lost = silent or self.is_shut
        if not self.lost or before:
            return
        _log.warning("contact_lost", after_ms=self.ms_max, disk_full=self.is_shut)
        refusal = self.shut() if self.is_shut else self._silent()
        for listener in self._listeners:
            listener(refusal)

    def shut(self) -> Rejection:
        """What callers are told of a node whose disk is too full to learn anything."""
        text = "the disk of this node is nearly full, so it learns of nothing new; ask another node"
        return self.refusal(Reason.NO_LEADER, text)

    def _silent(self) -> Rejection:
        text = f"this node has heard of no leader for {self.ms_max} ms; ask another node"
        return self.refusal(Reason.NO_LEADER, text)

    def refusal(self, reason: Reason, text: str) -> Rejection:
        """With a hint who leads, as long as that is more than a memory; and when to come back."""
        metadata: dict[str, str] = {}
        if self._leader_id and self._leader_id != self._node_id and (self.is_shut or not self.lost):
            metadata["leader_id"] = self._leader_id
            if address := self._addresses(self._leader_id):
                metadata["leader_address"] = address
        retry_after_ms = int(self._rng.uniform(RETRY_AFTER_MS_MIN, RETRY_AFTER_MS_MAX))
        return Rejection(reason, text, metadata, retry_after_ms=retry_after_ms)
