"""Commands that wait become a batch: as many as fit, decided on applied rows.

Deciding changes nothing. So when a batch comes out too large it is decided again for fewer commands, and what may be
said about a command that fits into no batch is said here, before anything travels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stepward.server.core import keys
from stepward.server.core.decide import Decision, Moment
from stepward.server.core.rejections import Reason, Rejection
from stepward.server.logbook import batch as batches
from stepward.server.logbook.batch import Batch
from stepward.server.logbook.outbox import Instant, Proposal
from stepward.server.logbook.waiting import Waiting, fewer, strides
from stepward.server.store.interface import KEY_BYTES_MAX, key_too_long

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepward.server.core.clocks import Clocks
    from stepward.server.core.rows import Head
    from stepward.server.logbook.outbox import Decider, ReplicaLimits
    from stepward.server.store.live import LiveRows


class Ground(NamedTuple):
    """What a batch is decided on: the head that it continues, and the time."""

    head: Head
    now: Instant
    clocks: Clocks


class Author(NamedTuple):
    """What every batch of a node says of it."""

    incarnation: int
    boot_id: str

    def batch(
        self, ground: Ground, *, epoch: int, puts: list[tuple[bytes, bytes]], deletes: list[bytes]
    ) -> batches.Batch:
        """The next batch behind the head."""
        return Batch(
            sequence=ground.head.sequence + 1,
            parent=ground.head.hash,
            epoch=epoch,
            incarnation=self.incarnation,
            led_ms=ground.clocks.led_ms,
            log_ms=ground.clocks.log_ms,
            wall_ms=ground.clocks.wall_ms,
            decided_steady_ms=ground.now.steady_ms,
            boot_id=self.boot_id,
            puts=puts,
            deletes=deletes,
        )

    def moment(self, ground: Ground) -> Moment:
        """What the rules may know of the next batch."""
        return Moment(
            sequence=ground.head.sequence + 1,
            epoch=ground.head.epoch,
            incarnation=self.incarnation,
            led_ms=ground.clocks.led_ms,
            log_ms=ground.clocks.log_ms,
            wall_ms=ground.clocks.wall_ms,
            steady_ms=ground.now.steady_ms,
        )


class Gathered(NamedTuple):
    """Waiting commands, decided, and the batch that they would make. `misfit` says why nobody could write it."""

    proposals: Sequence[Proposal]
    decision: Decision
    batch: Batch
    encoded: bytes
    misfit: Rejection | None


class Gatherer:
    """Takes commands out of those that wait, as many as one batch can hold."""

    def __init__(self, *, decider: Decider, author: Author, waiting: Waiting, limits: ReplicaLimits) -> None:
        self._decider = decider
        self._author = author
        self._waiting = waiting
        self._limits = limits
        # How many commands beside the urgent ones the next batch may hold: what the last ones have taught.
        self._others_max = limits.commands_max

    def gather(self, live: LiveRows, ground: Ground) -> Gathered:
        """Decide for as many waiting commands as fit into a batch, and take these out.

        Deciding changes nothing, so when the batch comes out too large it is decided again for fewer.
        """
        urgent, bytes_max = self._waiting.urgent, self._limits.gathered_bytes_max
        count = self._promising(live, ground)
        while True:
            gathered = self._try(live, ground, self._waiting.first(count))
            fits = gathered.misfit is None and len(gathered.encoded) <= bytes_max
            if fits or count == 1:
                break
            count = fewer(count, len(gathered.encoded), bytes_max)
            self._others_max = max(1, count - urgent)
        # Only what was reached shows that more may fit: a batch of one renewal shows nothing.
        if len(gathered.encoded) * 2 <= bytes_max and count >= urgent + self._others_max:
            self._others_max = min(self._others_max * 2, self._limits.commands_max)
        for _ in gathered.proposals:
            self._waiting.pop_first()
        return gathered

    def _promising(self, live: LiveRows, ground: Ground) -> int:
        """How many of the first commands promise to fit into a batch, by what a few of them cost.

        Without the samples a thousand submissions of the largest definitions were decided for a batch that holds ten,
        and nobody renewed a lease for fourteen seconds.
        """
        urgent, bytes_max = self._waiting.urgent, self._limits.gathered_bytes_max
        count = min(len(self._waiting), self._limits.commands_max, urgent + self._others_max)
        for stride in strides(count - urgent):
            sample = self._waiting.first(count, others_stride=stride)
            size_bytes = len(self._try(live, ground, sample).encoded) * (count - urgent) // len(sample)
            if size_bytes > bytes_max:
                self._others_max = fewer(count - urgent, size_bytes, bytes_max)
                return urgent + self._others_max
        return count

    def _try(self, live: LiveRows, ground: Ground, proposals: Sequence[Proposal]) -> Gathered:
        """What a batch of these commands would be."""
        decision = self._decider(live, [proposal.command for proposal in proposals], self._author.moment(ground))
        puts = [(key, keys.encode_row(row)) for key, row in decision.changes.items() if row is not None]
        deletes = [key for key, row in decision.changes.items() if row is None]
        batch = self._author.batch(ground, epoch=ground.head.epoch, puts=puts, deletes=deletes)
        encoded = batches.encode(batch)
        return Gathered(proposals, decision, batch, encoded, self._misfit(batch, encoded))

    def _misfit(self, batch: Batch, encoded: bytes) -> Rejection | None:
        """Why no replica could write this batch; checked here, so that applying cannot fail."""
        if len(encoded) > self._limits.batch_bytes_max:
            return Rejection(
                Reason.PAYLOAD_TOO_LARGE,
                f"this needs a batch of {len(encoded)} bytes; at most {self._limits.batch_bytes_max} can be written",
            )
        long = key_too_long([key for key, _ in batch.puts])
        if long is not None:
            message = f"this needs a key of {len(long)} bytes; at most {KEY_BYTES_MAX} can be stored; use shorter names"
            return Rejection(Reason.INVALID_ARGUMENT, message)
        return None
