"""Proposals that wait for a batch: who goes first, so that nobody starves.

Urgent ones, on which leases hang, go in front of everything. What belongs to work that exists (outcomes, cancels,
timers, verbs) goes before new work, but not for ever: every so manieth place is new work's. New work takes turns by
`share`, its namespace, so that one that floods waits in its own line.
"""

from __future__ import annotations

from collections import deque
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepward.server.logbook.outbox import Proposal

# From so many commands on some are decided on trial first, and one of how many: a few hundredths of the work.
_SAMPLED_MIN: Final = 16
_STRIDE_FEW: Final = 16
_MANY: Final = 64
_STRIDES_MANY: Final = (512, 128, 32)
# Of so many places one is new work's while both kinds wait. More would let new jobs delay those that exist; with none,
# agents that report all the time would shut out every new job.
NEW_WORK_EVERY: Final = 4


class Waiting:
    """Three queues that are read as one. `first` shows in which order `pop_first` takes them."""

    def __init__(self) -> None:
        self._urgent: deque[Proposal] = deque()
        self._work: deque[Proposal] = deque()
        # By share, the one whose turn it is in front.
        self._new: dict[str, deque[Proposal]] = {}
        self._new_count = 0
        # How many places were taken since new work had one.
        self._since_new = 0

    def __len__(self) -> int:
        return len(self._urgent) + len(self._work) + self._new_count

    @property
    def urgent(self) -> int:
        """How many of the first ones are urgent."""
        return len(self._urgent)

    def extend(self, proposals: Sequence[Proposal]) -> None:
        """Let more of them wait."""
        for proposal in proposals:
            if proposal.urgent:
                self._urgent.append(proposal)
            elif proposal.share:
                self._new.setdefault(proposal.share, deque()).append(proposal)
                self._new_count += 1
            else:
                self._work.append(proposal)

    def first(self, count: int, *, others_stride: int = 1) -> list[Proposal]:
        """The first `count`; of those that are not urgent every so manieth, and then none that is."""
        if others_stride > 1:
            return list(islice(self._others(), 0, max(0, count - len(self._urgent)), others_stride))
        return list(islice(chain(self._urgent, self._others()), count))

    def pop_first(self) -> Proposal:
        """Take out the one whose turn it is."""
        if self._urgent:
            return self._urgent.popleft()
        if not self._new or (self._work and self._since_new < NEW_WORK_EVERY - 1):
            self._since_new += 1
            return self._work.popleft()
        self._since_new = 0
        self._new_count -= 1
        share = next(iter(self._new))
        line = self._new.pop(share)
        proposal = line.popleft()
        if line:
            self._new[share] = line
        return proposal

    def pop_last(self) -> Proposal:
        """Take out the one that would wait longest: of new work the newest in the longest line."""
        if not self._new:
            return (self._work or self._urgent).pop()
        share = max(self._new, key=lambda share: len(self._new[share]))
        proposal = self._new[share].pop()
        self._new_count -= 1
        if not self._new[share]:
            del self._new[share]
        return proposal

    def _others(self) -> Iterator[Proposal]:
        """Those that are not urgent, in their order."""
        since_new, new = self._since_new, self._new_in_turn()
        for proposal in self._work:
            if since_new >= NEW_WORK_EVERY - 1 and (its_turn := next(new, None)) is not None:
                yield its_turn
                since_new = 0
            yield proposal
            since_new += 1
        yield from new

    def _new_in_turn(self) -> Iterator[Proposal]:
        lines = deque(map(iter, self._new.values()))
        while lines:
            line = lines.popleft()
            if (proposal := next(line, None)) is not None:
                yield proposal
                lines.append(line)


def strides(others: int) -> tuple[int, ...]:
    """One of how many commands to decide on trial before all of them are: coarse first, none for a few.

    What a command costs is known only when it is decided, and may be a thousand times what the one before it cost. So
    the first sample is of a few commands only, and each one guards the next finer one.
    """
    if others < _SAMPLED_MIN:
        return ()
    if others < _MANY:
        return (_STRIDE_FEW,)
    return tuple(stride for stride in _STRIDES_MANY if others >= 2 * stride)


def fewer(count: int, size_bytes: int, bytes_max: int) -> int:
    """How many commands to try when `count` of them made a batch of so many bytes: half, or what promises to fit."""
    return max(1, min(count // 2, count * bytes_max // max(size_bytes, 1)))
