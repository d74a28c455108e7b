"""Renewals that wait for company: heartbeats need no haste, and a batch costs the same for one as for hundreds.

Agents that are idle send nothing else. Decided as they come, a thousand of them caused hundreds of batches a second,
each of which every node writes and flushes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from stepward.server.core.commands import RenewSession

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepward.server.core.commands import Command
    from stepward.server.logbook.outbox import Proposal


def may_wait(command: Command) -> bool:
    """Whether a command is a heartbeat that says nothing that anybody waits for.

    One with the whole list of what its agent holds was asked for, because something may be lost.
    """
    return isinstance(command, RenewSession) and command.held is None


class Renewals:
    """Renewals that were not yet decided, in the order in which they came. Belongs to the loop."""

    def __init__(self, gather_ms: float, due: Callable[[], None]) -> None:
        """`due` is called when somebody has waited for `gather_ms`, or came who cannot wait."""
        self._gather_ms = gather_ms
        self._due = due
        self._waiting: list[Proposal] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def are_due(self) -> bool:
        """Whether they are to be decided now. Until then they go only with what is decided in any case."""
        return self._is_due

    def add(self, proposal: Proposal) -> None:
        """Let one more wait; `due` is called at once if it cannot."""
        self._waiting.append(proposal)
        if self._is_due:
            return
        if not may_wait(proposal.command) or self._gather_ms <= 0:
            self._now()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._gather_ms / 1_000, self._now)

    def take(self) -> list[Proposal]:
        """Take out all of them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        taken, self._waiting, self._is_due = self._waiting, [], False
        return taken

    def _now(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._is_due = True
        self._due()
