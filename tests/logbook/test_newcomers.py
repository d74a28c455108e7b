"""What a node keeps of others that have begun with an empty directory."""

import pytest

from stepward.server.logbook import frames, quarantine
from stepward.server.logbook.errors import JournalCorrupt
from stepward.server.store import facts
from tests.logbook import toy
from tests.logbook.hand import Hand


def test_who_has_begun_anew_is_known_after_a_restart() -> None:
    """Else the directory that a node had before would count again: it lacks what its successor acknowledged."""
    store = toy.new_store()
    hand = Hand(store=store)
    hand.follow("n3", term=7)
    hand.say("n2", frames.Hello(9))
    assert hand.heard("n2") == [frames.HelloAnswer(9, 7, 0)]
    assert quarantine.read_newcomers(store) == {"n2": 9}

    again = Hand(store=store)
    again.say("n2", frames.Hello(8))
    assert again.heard("n2") == []
    assert quarantine.read_newcomers(store) == {"n2": 9}


@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x01"])
def test_newcomers_that_cannot_be_read(value: bytes) -> None:
    store = toy.new_store()
    store.put_fact(facts.NEWCOMERS, value)
    with pytest.raises(JournalCorrupt, match="begun anew"):
        quarantine.read_newcomers(store)
