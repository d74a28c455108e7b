"""How a call reads rows: as new as everything that was acknowledged before it, or as they are here.

On the leader the rows are read first, and only then it is made sure that nobody else can have decided meanwhile: the
process may have been paused while it read. Under its lease that is one comparison. Elsewhere the leader is asked which
batch is the newest, and this node waits until it has applied that; so it never says on its own that there is no such
job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepward.server.core.rejections import Reason, Refused, Rejection

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import TracebackType

    from stepward.server.reading import Reading
    from stepward.server.shard import Shard


class CurrentRows:
    """Rows with everything that was acknowledged before they were asked for. Nothing may be awaited inside."""

    __slots__ = ("_led", "_open", "_shard")

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    async def __aenter__(self) -> Reading:
        """Raises Refused NO_LEADER when nobody can tell what was acknowledged."""
        shard = self._shard
        self._led = shard.leads
        if not self._led:
            if shard.forwarding is None:
                raise _no_leader()
            await shard.forwarding.readers.caught_up()
        self._open: AbstractContextManager[Reading] = shard.committed()
        return self._open.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What was found, or not found, counts only when this node still led."""
        self._open.__exit__(kind, error, trace)
        shard = self._shard
        if not self._led or shard.holds_lease:
            return
        if shard.forwarding is None:
            raise _no_leader()
        await shard.forwarding.readers.still_leads()


def _no_leader() -> Refused:
    return Refused(Rejection(Reason.NO_LEADER, "this node knows no leader of shard 0; ask again", retry_after_ms=200))
