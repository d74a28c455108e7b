"""What comes from a peer, and from the disk, is read as exactly what it may be, or not at all."""

import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from stepward.server.logbook import frames
from stepward.server.logbook.errors import FrameUnreadable, JournalCorrupt
from stepward.server.store.memory import MemoryStore
from tests.logbook import toy
from tests.logbook.hand import Hand, command

HASH = bytes(32)
EXAMPLES: list[frames.Message] = [
    frames.Append(3, 2, 1, 2, 9, 8, [frames.FrameEntry(2, -1, command("a")), frames.FrameEntry(3, 5, frames.NO_OP)], 1),
    frames.Compacted(3, 2, 1),
    frames.AppendAnswer(3, 2, 1, True, 9, toy.ABLE),
    frames.HigherTerm(4),
    frames.PreVoteRequest(4, 1, 9, 3),
    frames.PreVote(4, 1, False),
    frames.VoteRequest(4, 9, 3, True),
    frames.Vote(4),
    frames.StandNow(4),
    frames.Hello(2),
    frames.HelloAnswer(2, 4, 9),
    frames.AgeQuestion(HASH),
    frames.AgeAnswer(HASH, 17, 1_700_000_000_000),
]


class Executed(BaseException):
    """Raised by whoever unpickles it; no handler of ours catches it."""


def execute() -> None:
    raise Executed


class Hostile:
    """Runs when it is unpickled."""

    @override
    def __reduce__(self) -> tuple[object, tuple[()]]:
        return execute, ()


@pytest.mark.parametrize("message", EXAMPLES)
def test_message_is_read_as_it_was_written(message: frames.Message) -> None:
    assert frames.decode(frames.encode(message)) == message


def test_every_kind_has_an_example() -> None:
    assert {type(message) for message in EXAMPLES} == set(frames.Message.__args__)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_are_refused(protocol: int) -> None:
    """To unpickle what a stranger sent is to run what he wrote."""
    hostile = pickle.dumps(Hostile(), protocol)
    with pytest.raises(Executed):
        pickle.loads(hostile)

    with pytest.raises(FrameUnreadable):
        frames.decode(hostile)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(content: bytes) -> None:
    try:
        message = frames.decode(content)
    except FrameUnreadable:
        return
    assert frames.decode(frames.encode(message)) == message


@given(st.sampled_from(EXAMPLES), st.data())
def test_damaged_message_is_another_or_refused(message: frames.Message, data: st.DataObject) -> None:
    """And an engine that gets it goes on or refuses it; it never stops and never runs anything."""
    content = bytearray(frames.encode(message))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] = data.draw(st.integers(0, 255))
    hand = Hand()
    try:
        hand.engine.receive("n2", 1, bytes(content), hand.now_ms)
    except FrameUnreadable:
        return
    hand.step()


@pytest.mark.parametrize(
    "content", [b"", b"\x00", b"\xc1", b"\x90", msgspec.msgpack.encode(["append", 1]), b"\x92\xff"]
)
def test_what_is_no_message_is_refused(content: bytes) -> None:
    with pytest.raises(FrameUnreadable):
        frames.decode(content)


@pytest.mark.parametrize(
    "fields",
    [
        # A kind that there is not; a field too many, too few, of another type.
        [99, 1],
        [8, 4, 5],
        [8],
        [8, "4"],
        [8, True],
        [8, 4.0],
        # Below what a number may be, and above.
        [8, -1],
        [8, (1 << 61) + 1],
        [12, b"short"],
        [13, HASH, -2, 0],
    ],
)
def test_what_is_almost_a_message_is_refused(fields: list[object]) -> None:
    with pytest.raises(FrameUnreadable):
        frames.decode(msgspec.msgpack.encode(fields))


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        # Kinds that pysyncobj unpickles: changes of membership and of the code version.
        ([[1, 0, b"\x02" + pickle.dumps(1)]], "kind 02"),
        ([[1, 0, b"\x03" + pickle.dumps(1)]], "kind 03"),
        ([[1, 0, b"\x09"]], "kind 09"),
        ([[1, 0, b""]], "kind nothing"),
        # A no-op that carries something is none.
        ([[1, 0, b"\x01x"]], "kind 01"),
        # Terms only rise, and none is above the leader's.
        ([[2, 0, b"\x00"], [1, 0, b"\x00"]], "term 1 stands behind one of term 2"),
        ([[0, 0, b"\x00"]], "term 0 stands behind one of term 1"),
        ([[4, 0, b"\x00"]], "an entry of term 4 comes from a leader of term 3"),
        ([[1, 0, "text"]], "bytes"),
        ([[1, -2, b"\x00"]], ">= -1"),
    ],
)
def test_entry_that_cannot_be_one_is_refused(entries: list[object], reason: str) -> None:
    with pytest.raises(FrameUnreadable, match=reason):
        frames.decode(msgspec.msgpack.encode([1, 3, 1, 1, 1, 1, 0, entries, 0]))


@pytest.mark.parametrize("count", [frames.ENTRIES_MAX, frames.ENTRIES_MAX + 1])
def test_entries_of_a_message_are_bounded(count: int) -> None:
    content = frames.encode(frames.Append(1, 1, 0, 1, 1, 0, [frames.FrameEntry(1, 0, b"\x00")] * count, 0))

    if count <= frames.ENTRIES_MAX:
        assert isinstance(frames.decode(content), frames.Append)
    else:
        with pytest.raises(FrameUnreadable):
            frames.decode(content)


@pytest.mark.parametrize("over", [0, 1])
def test_bytes_of_a_message_are_bounded(over: int) -> None:
    around = len(frames.encode(frames.Append(1, 1, 0, 1, 1, 0, [frames.FrameEntry(1, 0, b"\x00" + bytes(1 << 20))], 0)))
    size = frames.FRAME_BYTES_MAX + over - (around - (1 << 20))
    content = frames.encode(frames.Append(1, 1, 0, 1, 1, 0, [frames.FrameEntry(1, 0, b"\x00" + bytes(size))], 0))
    assert len(content) == frames.FRAME_BYTES_MAX + over

    if not over:
        assert isinstance(frames.decode(content), frames.Append)
    else:
        with pytest.raises(FrameUnreadable, match="12582913 bytes; at most 12582912"):
            frames.decode(content)


def test_what_comes_late_is_not_even_read() -> None:
    """Its stream was replaced by a newer one, which is not to end because of it."""
    hand = Hand()
    hand.say("n2", frames.HigherTerm(1), connection=2)
    hand.engine.receive("n2", 1, b"hostile", hand.now_ms)


def test_what_cannot_be_read_changes_nothing() -> None:
    """It is refused before anything of it has happened, also the number of its stream."""
    hand = Hand()
    with pytest.raises(FrameUnreadable):
        hand.engine.receive("n2", 99, b"hostile", hand.now_ms)
    hand.follow("n2")

    assert hand.engine.leader_id == "n2"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_in_the_journal_are_damage(protocol: int) -> None:
    store = toy.new_store()
    store.put_entry(2, pickle.dumps(Hostile(), protocol))

    with pytest.raises(JournalCorrupt, match="entry 2"):
        toy.journal(store)


@given(st.binary(max_size=100))
def test_any_bytes_in_the_journal_are_damage(value: bytes) -> None:
    store = toy.new_store()
    store.put_entry(2, value)

    with pytest.raises(JournalCorrupt, match="entry 2"):
        toy.journal(store)


def test_a_flipped_bit_anywhere_in_an_entry_is_found() -> None:
    store = toy.new_store()
    toy.journal(store).add(command("a"), 2, 1)
    value = dict(store.entries())[2]
    for place in range(len(value) * 8):
        damaged = bytearray(value)
        damaged[place // 8] ^= 1 << place % 8
        broken = MemoryStore()
        for index, kept in toy.new_store().entries():
            broken.put_entry(index, kept)
        broken.put_entry(2, bytes(damaged))
        with pytest.raises(JournalCorrupt, match="entry 2"):
            toy.journal(broken)
