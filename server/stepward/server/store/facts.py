"""The small values that stand beside the rows, by name, and how those are read that the rows stand and fall with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from stepward.server.core import rows
from stepward.server.store.errors import StoreCorrupt

if TYPE_CHECKING:
    from stepward.server.store.interface import Rows

# Who the node is.
IDENTITY: Final = b"identity"
# The last batch applied.
HEAD: Final = b"head"
# Index and term of the last journal entry applied: batches and the engine's own.
APPLIED: Final = b"applied"
# The engine's term, and whom this node has voted for in it.
TERM: Final = b"term"
# What a node that began with an empty directory has learnt so far. Absent: it takes part in full.
QUARANTINE: Final = b"quarantine"
# Which other nodes have begun with an empty directory, and the newest incarnation of each. Absent: none has.
NEWCOMERS: Final = b"newcomers"

# Which log is ahead of the data. The store's own: nobody else puts it. Absent: none is.
LOG: Final = b"log"

encode_head: Final = msgspec.msgpack.Encoder().encode
_decode_head: Final = msgspec.msgpack.Decoder(rows.Head).decode
_decode_applied: Final = msgspec.msgpack.Decoder(tuple[int, int]).decode


def read_head(source: Rows) -> rows.Head:
    """The last batch that `source` holds.

    Raises:
        StoreCorrupt: There is none, or it is not one.
    """
    return decode_head(raw_head(source))


def decode_head(value: bytes) -> rows.Head:
    """The head that stands in `value`.

    Raises:
        StoreCorrupt: It is not one.
    """
    try:
        return _decode_head(value)
    except msgspec.DecodeError as error:
        raise StoreCorrupt(f"the head cannot be read ({error}); was it written by a newer version?") from error


def raw_head(source: Rows) -> bytes:
    """The last batch that `source` holds, as it stands there.

    Raises:
        StoreCorrupt: There is none.
    """
    value = source.fact(HEAD)
    if value is None:
        raise StoreCorrupt("the head is missing beside the rows; restore this node from a backup")
    return value


def encode_applied(index: int, term: int) -> bytes:
    """The last journal entry applied, as it stands beside the rows."""
    return msgspec.msgpack.encode((index, term))


def read_applied(source: Rows) -> tuple[int, int]:
    """Index and term of the last journal entry that the rows of `source` hold.

    Raises:
        StoreCorrupt: It is missing, or cannot be read.
    """
    try:
        return _decode_applied(source.fact(APPLIED) or b"")
    except msgspec.DecodeError as error:
        raise StoreCorrupt(
            f"which entry was applied last cannot be read ({error}); was it written by another version?"
        ) from error
