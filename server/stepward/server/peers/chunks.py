"""Rows as they travel from one node to another: some at a time, each piece with its checksum."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

import msgspec

from stepward.internal.v1 import peer_service_pb2 as pb
from stepward.server.store.interface import KEY_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[bytes]).decode


class ChunkUnreadable(Exception):  # noqa: N818 - a state of what came, named as such
    """What came is not what was sent, or was not sent by a node of this version. `why` says what is wrong with it."""

    def __init__(self, why: str) -> None:
        super().__init__(f"rows that came cannot be read: {why}")
        self.why = why


def encode(rows: Sequence[tuple[bytes, bytes]]) -> pb.ExportChunk:
    """A piece: keys and values in turns."""
    encoded = _encode([part for row in rows for part in row])
    return pb.ExportChunk(rows=encoded, checksum=zlib.crc32(encoded))


def decode(chunk: pb.ExportChunk, *, after: bytes) -> list[tuple[bytes, bytes]]:
    """The rows of a piece, which come in the order of their keys, behind `after`.

    Raises:
        ChunkUnreadable: They do not, or it is no such piece.
    """
    if zlib.crc32(chunk.rows) != chunk.checksum:
        raise ChunkUnreadable("a checksum does not fit")
    try:
        parts = _decode(chunk.rows)
    except msgspec.DecodeError as error:
        raise ChunkUnreadable(str(error)) from error
    if not parts or len(parts) % 2:
        raise ChunkUnreadable(f"{len(parts)} keys and values in one piece")
    for key in parts[::2]:
        if not after < key or len(key) > KEY_BYTES_MAX:
            raise ChunkUnreadable(f"a key of {len(key)} bytes that is too long, or out of order")
        after = key
    return list(zip(parts[::2], parts[1::2], strict=True))
