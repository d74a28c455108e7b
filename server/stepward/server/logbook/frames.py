"""What the engines of two nodes say to each other, as strict messages: what is not exactly one of these is refused.

Nothing here can name code. An entry is a batch of ours or a no-op; the kinds that pysyncobj would unpickle, changes of
membership and of the code version, cannot be said.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct

from stepward.server.logbook.errors import FrameUnreadable

# What an entry is, by its first byte; pysyncobj's numbers.
REGULAR: Final = b"\x00"
NO_OP: Final = b"\x01"

# Above the largest batch, with room for what stands around it. Also what one stream must be able to carry.
FRAME_BYTES_MAX: Final = 12 << 20
# Entries in one message. So many of the smallest fill a message in practice never; it bounds what a frame may cost.
ENTRIES_MAX: Final = 4_096
# Far beyond every real one, and far below where arithmetic or encoding would end.
_NUMBER_MAX: Final = 1 << 61

_Number: TypeAlias = Annotated[int, Meta(ge=0, le=_NUMBER_MAX)]
# A duration that nobody may know: -1.
_Age: TypeAlias = Annotated[int, Meta(ge=-1, le=_NUMBER_MAX)]
_Hash: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]

UNKNOWN_AGE: Final = -1


class FrameEntry(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """An entry of the journal on its way. `age_ms`: how long ago it was decided when it was sent; -1: nobody knows."""

    term: _Number
    age_ms: _Age
    command: bytes

    def __post_init__(self) -> None:
        if self.command[:1] != REGULAR and self.command != NO_OP:
            raise ValueError(f"an entry of kind {self.command[:1].hex() or 'nothing'} is neither a batch nor a no-op")


class Append(Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=1):
    """The leader's entries from `prev_index` + 1 on; none of them: it only says that it lives.

    `round` and `sent_ms` are the leader's own, by its count and its steady clock, and come back with the answer. Every
    voter has acknowledged everything up to `held_index` to this leader.
    """

    term: _Number
    prev_index: _Number
    prev_term: _Number
    commit_index: _Number
    round: _Number
    sent_ms: _Number
    entries: Annotated[list[FrameEntry], Meta(max_length=ENTRIES_MAX)]
    held_index: _Number

    def __post_init__(self) -> None:
        before = self.prev_term
        for entry in self.entries:
            if entry.term < before:
                raise ValueError(f"an entry of term {entry.term} stands behind one of term {before}")
            before = entry.term
        if before > self.term:
            raise ValueError(f"an entry of term {before} comes from a leader of term {self.term}")


class Compacted(Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=2):
    """The leader lives, but what the receiver lacks is gone from its journal: only all rows can help."""

    term: _Number
    round: _Number
    sent_ms: _Number


class Ability(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What a follower can be relied on for: room on its disk, whether it takes entries now, and whether it may lead."""

    free_bytes: _Number
    takes_entries: bool
    may_lead: bool


class AppendAnswer(Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=3):
    """Everything below `next_index` is the leader's, durably; or it is not, and the leader should go on there.

    One that takes no entries says what it holds, and is sent none until it takes them.
    """

    term: _Number
    round: _Number
    sent_ms: _Number
    matches: bool
    next_index: _Number
    ability: Ability


class HigherTerm(Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=4):
    """Answer to a leader of an older term, which could otherwise go on for ever beside one who ignores it."""

    term: _Number


class PreVoteRequest(Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=5):
    """Would you vote for me in that term? Changes nothing. `attempt` comes back."""

    term: _Number
    attempt: _Number
    last_index: _Number
    last_term: _Number


class PreVote(Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=6):
    """Answer to `PreVoteRequest`, with the term of the one who answers."""

    term: _Number
    attempt: _Number
    granted: bool


class VoteRequest(Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=7):
    """Asks for the vote of that term. `transfer`: the leader of the term before has asked me to."""

    term: _Number
    last_index: _Number
    last_term: _Number
    transfer: bool


class Vote(Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=8):
    """The vote of that term."""

    term: _Number


class StandNow(Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=9):
    """The leader of that term wants the receiver to lead."""

    term: _Number


class Hello(Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=10):
    """A node that has begun with an empty directory asks what it may have promised before. Repeated until it knows."""

    incarnation: _Number


class HelloAnswer(Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=11):
    """Answer to `Hello`. `needed_index`: the leader's last index when it first heard of it; 0: I do not lead."""

    incarnation: _Number
    term: _Number
    needed_index: _Number


class AgeQuestion(Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=12):
    """How long ago was the batch of that hash decided?"""

    head_hash: _Hash


class AgeAnswer(Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=13):
    """Answer to `AgeQuestion`: by the steady clock (-1: not known), and the receiver's wall clock as it stands."""

    head_hash: _Hash
    age_ms: _Age
    wall_ms: _Number


Message: TypeAlias = (
    Append
    | Compacted
    | AppendAnswer
    | HigherTerm
    | PreVoteRequest
    | PreVote
    | VoteRequest
    | Vote
    | StandNow
    | Hello
    | HelloAnswer
    | AgeQuestion
    | AgeAnswer
)

encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Message).decode


def decode(content: bytes) -> Message:
    """Read a message.

    Raises:
        FrameUnreadable: It is too large, or none that this version knows.
    """
    if len(content) > FRAME_BYTES_MAX:
        raise FrameUnreadable(f"it has {len(content)} bytes; at most {FRAME_BYTES_MAX} are read")
    try:
        return _decode(content)
    except msgspec.DecodeError as error:
        raise FrameUnreadable(str(error)) from error
