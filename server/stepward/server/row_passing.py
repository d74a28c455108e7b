"""Rows that leave a shard as a whole, and those of another node that take the place of its own."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from stepward.server import observe
from stepward.server.store.errors import IncomingFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stepward.server.core.rows import Head
    from stepward.server.logbook.outbox import Fetched, Outbox, Standing
    from stepward.server.logbook.replica import Replica
    from stepward.server.store.interface import Export, Incoming

_log = observe.logger("rows")


class RowPassing:
    """Stands between the replica and those who carry its rows. All but `incoming` belongs to the event loop.

    Args:
        replica: Whose rows these are.
        standing: What it was at the end of the last step; None when it steps no more.
        step_soon: Called when there is something to go on with.
        on_failure: Called with what the replica raised, which then may never be asked again.
        settle: Finishes the step that is begun, if one is.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        standing: Callable[[], Standing | None],
        step_soon: Callable[[], None],
        on_failure: Callable[[Exception], None],
        settle: Callable[[], None],
    ) -> None:
        self._replica = replica
        self._standing = standing
        self._step_soon = step_soon
        self._on_failure = on_failure
        self._settle = settle
        self._head = replica.standing.head
        self._fetching_from = ""
        self._fetching_listeners: list[Callable[[str], None]] = []
        self._installed_listeners: list[Callable[[], None]] = []

    @property
    def leads(self) -> bool:
        """Whether this node gives its rows: as soon as it is elected.

        Its epoch may have to wait for that: it opens when a majority has an entry of this term, and who lacks what the
        log holds no more can only take that entry behind the rows. Those are committed, whoever has them.
        """
        return self._standing() is not None and self._replica.elected

    @property
    def head(self) -> Head:
        """The last batch that this node held at the end of the last step."""
        return self._head

    @property
    def applied_index(self) -> int:
        """The last entry of the log that the rows of this node hold."""
        return self._replica.applied_index

    @property
    def fetching_from(self) -> str:
        """The node whose rows this one needs to go on; empty: none."""
        return self._fetching_from

    def on_fetching(self, listener: Callable[[str], None]) -> None:
        """Tell `listener` whenever `fetching_from` changes."""
        self._fetching_listeners.append(listener)

    def on_installed(self, listener: Callable[[], None]) -> None:
        """Tell `listener` when rows of another node have taken the place of those here, before batches that follow.

        What happened between the two was never applied here batch by batch, so whoever follows batches missed it.
        """
        self._installed_listeners.append(listener)

    def stepped(self, outbox: Outbox) -> None:
        """Look at what a step gave, before anybody is told of its batches."""
        self._head = outbox.standing.head
        if outbox.installed:
            _log.info("rows_installed", sequence=self._head.sequence)
            for told in self._installed_listeners:
                told()
        if outbox.fetch_from != self._fetching_from:
            self._fetching_from = outbox.fetch_from
            for listener in self._fetching_listeners:
                listener(self._fetching_from)

    @contextmanager
    def exporting(self, node_id: str) -> Iterator[Export]:
        """All rows, for another node; the log is kept from there on for it, until `exported`."""
        self._settle()
        with self._replica.exporting(node_id) as export:
            yield export

    def exported(self, node_id: str) -> None:
        """The log need not be kept for that node any more."""
        self._replica.exported(node_id)

    def incoming(self, size_bytes: int) -> Incoming:
        """See `store.interface.Store`. Any thread may call it."""
        return self._replica.incoming(size_bytes)

    def install(self, fetched: Fetched) -> bool:
        """Go on from rows of another node. False: they are of no use.

        Raises:
            IncomingFailed: The disk did not take it. Nothing has changed.
        """
        self._settle()
        if self._standing() is None:
            return False
        try:
            is_installed = self._replica.install(fetched)
        except IncomingFailed:
            raise
        except Exception as error:  # noqa: BLE001 - as in a step: such a replica may never be asked again
            self._on_failure(error)
            return False
        if is_installed:
            # What the last step asked for is there; the next one asks again if that is not enough.
            self._fetching_from = ""
            self._step_soon()
        return is_installed
