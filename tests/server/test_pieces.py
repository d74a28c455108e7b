"""Frames that are cut into messages are the same when they are joined."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepward.internal.v1 import peer_service_pb2 as pb
from stepward.server.core.rejections import Refused
from stepward.server.peers import pieces
from stepward.server.peers.pieces import Cutter, Joiner

FRAME_BYTES_MAX = 64


@given(frames=st.lists(st.binary(max_size=FRAME_BYTES_MAX), max_size=30), room=st.integers(1, 20))
def test_cut_and_joined(frames: list[bytes], room: int) -> None:
    """In order, whatever their sizes, and no message is larger than it may be."""
    waiting, joiner, joined = deque(frames), Joiner(FRAME_BYTES_MAX), list[bytes]()
    cutter = Cutter(waiting)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pieces, "MESSAGE_BYTES_MAX", room)
        sizes = []
        while waiting:
            message, size_bytes = cutter.next_message()
            assert size_bytes == sum(map(len, message.frames)) <= room
            sizes.append(size_bytes)
            joined += joiner.frames(pb.ReplicateRequest.FromString(message.SerializeToString()))

    assert joined == frames
    assert sum(sizes) == sum(map(len, frames))


@pytest.mark.parametrize(
    ("messages", "good"),
    [
        ([([b"x" * 10], False)], True),
        ([([b"x" * 11], False)], False),
        ([([b"x" * 5], True), ([b"x" * 5], False)], True),
        ([([b"x" * 5], True), ([b"x" * 6], False)], False),
        ([([b"x" * 5], True), ([b"x" * 5], True), ([b"x"], False)], False),
        # The second frame of a message does not go on with the first one.
        ([([b"x" * 5], True), ([b"x" * 5, b"x" * 10], False)], True),
        ([([], True)], False),
        # A beat between two pieces changes nothing.
        ([([b"x" * 5], True), ([], False), ([b"x" * 6], False)], False),
    ],
)
def test_frame_at_its_bound_and_past_it(messages: list[tuple[list[bytes], bool]], good: bool) -> None:
    """No more than one frame is ever kept."""
    joiner = Joiner(10)
    try:
        for frames, unfinished in messages:
            joiner.frames(pb.ReplicateRequest(frames=frames, unfinished=unfinished))
    except Refused:
        assert not good
    else:
        assert good
