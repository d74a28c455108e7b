"""All rows of another node take the place of this one's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepward.server.logbook import journal as journals
from stepward.server.store import facts

if TYPE_CHECKING:
    from stepward.server.logbook.journal import StoreJournal
    from stepward.server.logbook.outbox import Fetched
    from stepward.server.store.interface import Store

# What this node has promised, and whom it has met.
_OWN: Final = (facts.IDENTITY, facts.TERM, facts.QUARANTINE, facts.NEWCOMERS)


def install(store: Store, journal: StoreJournal, fetched: Fetched) -> None:
    """Replace rows, head and journal in one step of the store, which is durable when this returns.

    Term, vote, incarnation, quarantine and the newcomers that it met are this node's own promises, and stay. Of its own
    entries behind the rows those stay that may be part of a majority: the same entry before them is what proves it.
    Where another one stands, what follows was never committed. Without an entry there, the log of this node ends
    before the rows do.

    Raises:
        IncomingFailed: The disk did not take it. Nothing has changed.
        StoreFailed: It failed in the middle; the process must end.
    """
    store.commit()
    index, term = fetched.applied_index, fetched.applied_term
    own = {name: store.fact(name) for name in _OWN}
    kept = {name: value for name, value in own.items() if value is not None}
    stand = {facts.HEAD: fetched.head, facts.APPLIED: facts.encode_applied(index, term)}
    proven = journal.term_of(index) == term
    tail = [entry for entry in store.entries() if entry[0] > index] if proven else []
    store.install(fetched.incoming, facts=kept | stand, entries=[journals.foundation(index, term), *tail])
    journal.reload()
