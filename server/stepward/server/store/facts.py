"""The small values that stand beside the rows, by name, and how the head is read."""

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
# The index of the last journal entry applied: batches and the engine's own.
APPLIED: Final = b"applied"
# The engine's term, and whom this node has voted for in it.
TERM: Final = b"term"
# What a node that began with an empty directory has learnt so far. Absent: it takes part in full.
QUARANTINE: Final = b"quarantine"

encode_head: Final = msgspec.msgpack.Encoder().encode
_decode_head: Final = msgspec.msgpack.Decoder(rows.Head).decode


def read_head(source: Rows) -> rows.Head:
    """The last batch that `source` holds.

    Raises:
        StoreCorrupt: There is none, or it is not one.
    """
    value = source.fact(HEAD)
    if value is None:
        raise StoreCorrupt("the head is missing beside the rows; restore this node from a backup")
    try:
        return _decode_head(value)
    except msgspec.DecodeError as error:
        raise StoreCorrupt(f"the head cannot be read ({error}); was it written by a newer version?") from error
