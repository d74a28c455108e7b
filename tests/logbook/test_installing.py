"""A follower that is too far behind takes over all rows: at once and whole, never backwards, and keeps its promises."""

from pathlib import Path

import pytest
from typing_extensions import override

from stepward.server.logbook.frames import NO_OP
from stepward.server.logbook.identity import open_identity
from stepward.server.logbook.outbox import Fetched, ReplicaLimits
from stepward.server.row_passing import RowPassing
from stepward.server.store import facts
from stepward.server.store.errors import IncomingFailed, StoreCorrupt
from stepward.server.store.interface import Store
from stepward.server.store.lmdb_store import LmdbStore
from stepward.server.store.memory import MemoryStore
from tests.logbook import toy
from tests.logbook.toy import Add, at
from tests.logbook.trio import IDS, Trio

# So short a journal that what a follower lacks is soon gone.
SHORT = ReplicaLimits(journal_entries_max=10, pinned_entries_max=10)


def others(node_id: str) -> list[str]:
    return [one for one in IDS if one != node_id]


def fetched(source: Store, target: Store) -> Fetched:
    """What the host fetches from another node."""
    with source.export() as export:
        incoming = target.incoming()
        for chunk in export.chunks(1 << 20):
            incoming.put(chunk)
        incoming.commit()
        return Fetched(incoming, export.head, export.applied_index, export.applied_term)


def behind(trio: Trio) -> tuple[str, str]:
    """The leader, and a follower that was away until what it lacks was compacted."""
    trio.write(Add())
    leader = trio.lead()
    trio.settle()
    lagging = others(leader)[0]
    trio.isolate(lagging)
    for _ in range(30):
        trio.write(Add(rows_written=2), node_id=leader)
    trio.heal()
    trio.run_until(lambda: fetch_from(trio, lagging) == leader)
    return leader, lagging


def fetch_from(trio: Trio, node_id: str) -> str:
    outbox = trio.machines[node_id].outbox
    assert outbox is not None
    return outbox.fetch_from


def fetch(trio: Trio, source: str, target: str) -> Fetched:
    return fetched(trio.machines[source].store, trio.machines[target].store)


def gives_rows(trio: Trio, node_id: str) -> bool:
    """Whether a node gives rows to others."""
    replica = trio.replica(node_id)
    passing = RowPassing(
        replica,
        standing=lambda: replica.standing,
        step_soon=lambda: None,
        on_failure=lambda error: pytest.fail(f"{error}"),
        settle=lambda: None,
    )
    return passing.leads


def test_follower_that_is_too_far_behind_takes_over_all_rows() -> None:
    trio = Trio(limits=SHORT)
    leader, lagging = behind(trio)
    replica, before = trio.replica(lagging), len(trio.applied[lagging])
    assert replica.install(fetch(trio, leader, lagging))
    outbox = trio.step(lagging)
    assert (outbox.installed, outbox.standing.head) == (True, trio.replica(leader).standing.head)
    trio.write(Add(), node_id=leader)
    trio.settle()

    assert trio.counter(lagging) == 32
    assert fetch_from(trio, lagging) == ""
    # What the rows hold was not applied one by one; what came later was.
    assert [one.sequence for one in trio.applied[lagging][before:]] == [33]
    assert trio.rows("n1") == trio.rows("n2") == trio.rows("n3")


@pytest.mark.parametrize("again", [False, True])
def test_rows_are_taken_over_on_disks(tmp_path: Path, again: bool) -> None:
    """With files instead of memory; and a process that ends right behind it finds what was installed."""
    stores = {node_id: LmdbStore(tmp_path / node_id, create=True, map_bytes=64 << 20) for node_id in IDS}
    trio = Trio(limits=SHORT, stores=stores)
    leader, lagging = behind(trio)
    assert trio.replica(lagging).install(fetch(trio, leader, lagging))
    if again:
        trio.kill(lagging)
        trio.machines[lagging].store = LmdbStore(tmp_path / lagging)
        trio.start(lagging)
    trio.write(Add(), node_id=leader)
    trio.settle()

    assert trio.counter(lagging) == 32
    assert trio.rows("n1") == trio.rows("n2") == trio.rows("n3")
    for node_id in IDS:
        trio.replica(node_id).close()


def test_rows_are_given_by_a_leader_that_cannot_open_its_epoch_without() -> None:
    """The log that the only other node needs is gone everywhere, and the new leader needs its word to commit anything.

    With the open epoch as the condition for giving rows the two waited for each other for ever.
    """
    trio = Trio(limits=SHORT)
    gone, lagging = behind(trio)
    trio.kill(gone)
    heir = next(one for one in others(gone) if one != lagging)
    trio.run_until(lambda: fetch_from(trio, lagging) == heir)
    trio.run(2_000)
    assert not trio.replica(heir).standing.leads
    assert gives_rows(trio, heir)
    assert trio.replica(lagging).install(fetch(trio, heir, lagging))

    assert trio.lead(among=[heir]) == heir
    assert not gives_rows(trio, lagging)


def test_installed_is_told_once() -> None:
    trio = Trio(limits=SHORT)
    leader, lagging = behind(trio)
    trio.replica(lagging).install(fetch(trio, leader, lagging))

    assert [trio.step(lagging).installed for _ in range(2)] == [True, False]


def test_promises_of_this_node_stay() -> None:
    """Identity, term and vote are what it told others, and are not the other node's."""
    trio = Trio(limits=SHORT)
    leader, lagging = behind(trio)
    store = trio.machines[lagging].store
    store.put_fact(facts.NEWCOMERS, b"\x81\xa2n9\x07")
    before = [store.fact(name) for name in (facts.IDENTITY, facts.TERM, facts.QUARANTINE, facts.NEWCOMERS)]
    trio.replica(lagging).install(fetch(trio, leader, lagging))

    assert [store.fact(name) for name in (facts.IDENTITY, facts.TERM, facts.QUARANTINE, facts.NEWCOMERS)] == before
    assert open_identity(store).node_id == lagging


def test_it_is_durable_at_once() -> None:
    trio = Trio(limits=SHORT)
    leader, lagging = behind(trio)
    trio.replica(lagging).install(fetch(trio, leader, lagging))
    head = trio.replica(leader).standing.head
    trio.kill(lagging)
    trio.start(lagging)

    assert trio.replica(lagging).standing.head == head
    trio.write(Add(), node_id=leader)
    trio.settle()
    assert trio.counter(lagging) == 32


def test_H075_older_rows_are_refused() -> None:
    """Two fetches overlapped, and the older one ends last: it would take rows back."""
    trio = Trio(limits=SHORT)
    leader, lagging = behind(trio)
    older = fetch(trio, leader, lagging)
    older.incoming.discard()
    trio.write(Add(), node_id=leader)
    newer = fetch(trio, leader, lagging)
    assert trio.replica(lagging).install(newer)
    head = trio.replica(lagging).standing.head
    assert not trio.replica(lagging).install(older)
    assert not trio.replica(lagging).install(newer)

    assert trio.replica(lagging).standing.head == head
    assert not trio.step(lagging).answers


@pytest.mark.parametrize("older_by", [1, 0])
def test_H075_rows_that_the_log_has_passed_are_refused(older_by: int) -> None:
    """They were fetched for a node that meanwhile was given the entries themselves."""
    trio = Trio()
    trio.write(Add())
    leader = trio.lead()
    trio.settle()
    target = others(leader)[0]
    rows = fetch(trio, leader, target)
    if older_by:
        trio.write(Add(), node_id=leader)
        trio.settle()

    assert not trio.replica(target).install(rows)
    assert trio.counter(target) == 1 + older_by


def test_leader_installs_nothing() -> None:
    trio = Trio()
    trio.write(Add())
    leader = trio.lead()
    rows = fetch(trio, leader, leader)._replace(applied_index=1_000)

    assert not trio.replica(leader).install(rows)


@pytest.mark.parametrize(
    ("applied_term", "last"),
    [
        # The same entry as the rows hold: this node may have acknowledged what follows, and may be one of a majority.
        (4, (6, 4)),
        # Another one: what follows stands on what was never committed.
        (5, (3, 5)),
    ],
)
def test_entries_behind_the_rows(applied_term: int, last: tuple[int, int]) -> None:
    replica = toy.pair()
    replica.peer.append(term=4, previous=(1, 0), entries=[(NO_OP, 4)] * 5, commit_index=1)
    replica.step(at(0), [])
    assert replica._journal.last == (6, 4)
    head = facts.encode_head(replica.standing.head)
    incoming = replica._store.incoming()
    incoming.commit()
    assert replica.install(Fetched(incoming, head, 3, applied_term))

    assert replica._journal.last == last
    assert (replica._journal.first_index, replica._journal.applied) == (3, 3)


def test_deposed_leader_may_take_over_rows() -> None:
    """The batch that it left behind is in the way of nobody."""
    trio = Trio()
    trio.write(Add())
    old = trio.lead()
    trio.settle()
    trio.isolate(old)
    trio.ask(old, Add())
    trio.run(1_500)
    new = trio.lead(among=others(old))
    for _ in range(5):
        trio.write(Add(), node_id=new)
    assert trio.replica(old).install(fetch(trio, new, old))
    trio.heal()
    trio.settle()

    assert trio.counter(old) == 6


class FullStore(MemoryStore):
    """A disk that has no room for what would be installed."""

    full = True

    @override
    def install(self, *incoming: object, **more: object) -> None:
        if self.full:
            raise IncomingFailed("there is no room")
        super().install(*incoming, **more)  # type: ignore[arg-type]  # handed on as it came


def test_what_cannot_be_installed_changes_nothing() -> None:
    trio = Trio(limits=SHORT, stores={node_id: FullStore() for node_id in IDS})
    leader, lagging = behind(trio)
    rows, head = fetch(trio, leader, lagging), trio.replica(lagging).standing.head
    with pytest.raises(IncomingFailed):
        trio.replica(lagging).install(rows)
    assert trio.replica(lagging).standing.head == head
    assert not trio.step(lagging).installed
    store = trio.machines[lagging].store
    assert isinstance(store, FullStore)
    store.full = False

    assert trio.replica(lagging).install(rows)


def test_head_that_cannot_be_read_changes_nothing() -> None:
    trio = Trio(limits=SHORT)
    leader, lagging = behind(trio)
    rows, head = fetch(trio, leader, lagging), trio.replica(lagging).standing.head
    with pytest.raises(StoreCorrupt):
        trio.replica(lagging).install(rows._replace(head=b"\xc1"))

    assert trio.step(lagging).standing.head == head


def test_a_log_that_holds_what_the_rows_hold_is_skipped() -> None:
    """Rows may be newer than the entry beside them says: the chain knows."""
    trio = Trio(limits=SHORT)
    leader, lagging = behind(trio)
    rows = fetch(trio, leader, lagging)
    journal = trio.replica(leader)._journal
    earlier = rows.applied_index - 3
    term = journal.term_of(earlier)
    assert term is not None
    assert trio.replica(lagging).install(rows._replace(applied_index=earlier, applied_term=term))
    before = len(trio.applied[lagging])
    trio.write(Add(), node_id=leader)
    trio.settle()

    assert [one.sequence for one in trio.applied[lagging][before:]] == [33]
    assert trio.counter(lagging) == 32
