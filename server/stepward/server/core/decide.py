"""The entry to the rules: committed rows, waiting commands and a moment give a batch.

Nothing is remembered between two decisions: what the leader holds in memory is a cache of rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

if TYPE_CHECKING:
    from stepward.server.core.commands import Answer
    from stepward.server.core.rows import Row


class Moment(Struct, frozen=True):
    """Everything that a batch knows of time and place.

    `steady_ms` is the leader's own steady clock; it means something within one epoch of one process only.
    """

    sequence: int
    epoch: int
    incarnation: int
    led_ms: int
    log_ms: int
    wall_ms: int
    steady_ms: int

    @property
    def token(self) -> int:
        """The fencing token of every assignment of this batch.

        The incarnation of the cluster in the high bits, so that tokens grow over a restore, too; the sequence below.
        """
        return self.incarnation << 48 | self.sequence


class Decision(NamedTuple):
    """A batch before it has a hash. `answers` are in the order of the commands.

    `failures` are commands whose rule raised: each was rolled back and answered INTERNAL; the shell logs them.
    """

    changes: dict[bytes, Row | None]
    answers: list[Answer]
    failures: list[tuple[object, BaseException]]
