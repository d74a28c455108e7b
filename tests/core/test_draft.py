"""The overlay: what a batch has decided so far hides what is committed, and a savepoint takes it back."""

from __future__ import annotations

import random

from stepward.server.core import keys, rows
from stepward.server.core.draft import Draft
from stepward.server.core.rows import Event, EventType
from stepward.server.store.live import LiveRows
from stepward.server.store.memory import MemoryStore

PREFIX = keys.assignments("agent-one")


def reader_with(*numbers: int) -> LiveRows:
    """Committed assignments with these tokens."""
    store = MemoryStore()
    store.apply([(key(n), keys.encode_row(row(n))) for n in numbers], [])
    store.commit()
    return LiveRows(store)


def key(number: int) -> bytes:
    """An assignment key."""
    return keys.assignment("agent-one", number, "j1", 0)


def row(number: int) -> rows.Assignment:
    """An assignment that can be told from others."""
    return rows.Assignment(rows.Part.ACTION, rows.StartMode.ON_OFFER, number)


def test_a_row_born_in_the_batch_vanishes_without_a_trace() -> None:
    """It was never committed, so the log need not say that it is gone."""
    draft = Draft(reader_with())
    draft.put(key(1), row(1))
    draft.delete(key(1))

    assert draft.changes() == {}


def test_deleting_what_is_not_there_changes_nothing() -> None:
    """The log carries no delete for it."""
    draft = Draft(reader_with())
    draft.delete(key(1))

    assert draft.changes() == {}


def test_a_savepoint_takes_back_rows_and_events() -> None:
    """Also a delete, and a put over a put."""
    draft = Draft(reader_with(1, 2))
    draft.put(key(3), row(3))
    draft.event("j1", Event(EventType.JobSubmitted))
    savepoint = draft.savepoint()
    draft.put(key(3), row(30))
    draft.delete(key(1))
    draft.put(key(4), row(4))
    draft.delete(key(4))
    draft.event("j1", Event(EventType.JobCompleted))
    draft.event("j2", Event(EventType.JobSubmitted))

    draft.rollback(savepoint)

    assert draft.changes() == {key(3): row(3)}
    assert draft.touched() == ("j1",)
    assert list(draft.keys(PREFIX)) == [key(1), key(2), key(3)]


def test_scans_and_counts_agree_with_a_plain_dict() -> None:
    """Random puts, deletes, savepoints and rollbacks, against the simplest thing that could be right."""
    rng = random.Random(7)
    for _ in range(200):
        committed = set(rng.sample(range(20), rng.randint(0, 12)))
        draft = Draft(reader_with(*sorted(committed)))
        model, saved = set(committed), set(committed)
        savepoint = draft.savepoint()
        for _ in range(30):
            number = rng.randrange(20)
            match rng.randrange(5):
                case 0 | 1:
                    draft.put(key(number), row(number))
                    model.add(number)
                case 2 | 3:
                    draft.delete(key(number))
                    model.discard(number)
                case _ if rng.random() < 0.5:
                    savepoint, saved = draft.savepoint(), set(model)
                case _:
                    draft.rollback(savepoint)
                    model = set(saved)
            after = rng.randrange(20)
            assert list(draft.keys(PREFIX)) == [key(n) for n in sorted(model)]
            assert list(draft.keys(PREFIX, after=key(after))) == [key(n) for n in sorted(model) if n > after]
            assert draft.count(PREFIX) == len(model)
            assert (draft.get(key(number)) is not None) == (number in model)


def timer(at_ms: int) -> bytes:
    """A timer key."""
    return keys.session_timer(at_ms, "agent-one")


def test_what_was_removed_and_put_again_is_gone_when_it_is_removed_again() -> None:
    """A timer may move away and back within one batch; the committed row must not outlive that."""
    store = MemoryStore()
    store.apply([(timer(1), keys.encode_row(rows.Timer()))], [])
    store.commit()
    draft = Draft(LiveRows(store))
    draft.remove(timer(1))
    draft.put(timer(1), rows.Timer())
    draft.remove(timer(1))

    assert draft.changes() == {timer(1): None}


def test_an_index_row_born_in_the_batch_is_removed_without_a_trace() -> None:
    """As a delete does it; and a rollback brings it back."""
    draft = Draft(reader_with())
    draft.put(timer(1), rows.Timer())
    savepoint = draft.savepoint()
    draft.remove(timer(1))
    gone = draft.changes()
    draft.rollback(savepoint)

    assert gone == {}
    assert draft.changes() == {timer(1): rows.Timer()}


def test_a_removed_index_row_comes_back_with_a_rollback() -> None:
    """And can be removed once more."""
    store = MemoryStore()
    store.apply([(timer(1), keys.encode_row(rows.Timer()))], [])
    store.commit()
    draft = Draft(LiveRows(store))
    savepoint = draft.savepoint()
    draft.remove(timer(1))
    draft.rollback(savepoint)
    back = draft.changes()
    draft.remove(timer(1))

    assert back == {}
    assert draft.changes() == {timer(1): None}
