"""Rows as they travel: what is read is what was sent, or is refused."""

import zlib

import pytest

from stepward.internal.v1 import peer_service_pb2 as pb
from stepward.server.peers import chunks
from stepward.server.peers.chunks import ChunkUnreadable
from stepward.server.store.interface import KEY_BYTES_MAX


@pytest.mark.parametrize(
    ("rows", "after", "why"),
    [
        # As it should be; the longest key.
        ([(b"a", b"1"), (b"b", b"")], b"", ""),
        ([(b"a" * KEY_BYTES_MAX, b"1")], b"", ""),
        ([(b"b", b"1")], b"a", ""),
        # One byte more; out of order, within and behind what came before; twice; nothing at all.
        ([(b"a" * (KEY_BYTES_MAX + 1), b"1")], b"", "a key of 512 bytes"),
        ([(b"b", b"1"), (b"a", b"2")], b"", "out of order"),
        ([(b"a", b"1")], b"b", "out of order"),
        ([(b"a", b"1")], b"a", "out of order"),
        ([(b"", b"1")], b"", "out of order"),
        ([], b"", "0 keys and values"),
    ],
)
def test_piece(rows: list[tuple[bytes, bytes]], after: bytes, why: str) -> None:
    """What is read is what was sent, or is refused."""
    chunk = chunks.encode(rows)
    if not why:
        assert chunks.decode(chunk, after=after) == rows
        return
    with pytest.raises(ChunkUnreadable, match=why):
        chunks.decode(chunk, after=after)


@pytest.mark.parametrize("encoded", [b"\x91\xc4\x01a", b"\x92\xa1a\xa1b", b"\xc1", b"", b"\xdd\xff\xff\xff\xff"])
def test_piece_of_something_else(encoded: bytes) -> None:
    """A key without a value, text, no message, nothing, four thousand million of nothing."""
    with pytest.raises(ChunkUnreadable):
        chunks.decode(pb.ExportChunk(rows=encoded, checksum=zlib.crc32(encoded)), after=b"")
