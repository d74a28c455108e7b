"""Proposals that wait for a batch: urgent ones in front of all others, and in order otherwise."""

from __future__ import annotations

from collections import deque
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepward.server.logbook.outbox import Proposal

# From so many commands on some are decided on trial first, and one of how many: a few hundredths of the work.
_SAMPLED_MIN: Final = 16
_STRIDE_FEW: Final = 16
_MANY: Final = 64
_STRIDES_MANY: Final = (512, 128, 32)


class Waiting:
    """Two queues that are read as one."""

    def __init__(self) -> None:
        self._urgent: deque[Proposal] = deque()
        self._others: deque[Proposal] = deque()

    def __len__(self) -> int:
        return len(self._urgent) + len(self._others)

    @property
    def urgent(self) -> int:
        """How many of the first ones are urgent."""
        return len(self._urgent)

    def extend(self, proposals: Sequence[Proposal]) -> None:
        """Let more of them wait."""
        for proposal in proposals:
            (self._urgent if proposal.urgent else self._others).append(proposal)

    def first(self, count: int, *, others_stride: int = 1) -> list[Proposal]:
        """The first `count`; of those that are not urgent every so manieth, and then none that is."""
        if others_stride > 1:
            return list(islice(self._others, 0, max(0, count - len(self._urgent)), others_stride))
        return list(islice(chain(self._urgent, self._others), count))

    def pop_first(self) -> Proposal:
        """Take out the one whose turn it is."""
        return (self._urgent or self._others).popleft()

    def pop_last(self) -> Proposal:
        """Take out the one that would wait longest."""
        return (self._others or self._urgent).pop()


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
