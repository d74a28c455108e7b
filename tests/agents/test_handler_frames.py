"""What an agent and the process of a handler say to each other."""

from __future__ import annotations

import msgspec
import pytest

from stepward.agents import handler_frames, outcomes


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_frames_come_out_as_they_went_in(size: int) -> None:
    """However the bytes are cut."""
    sent = [
        handler_frames.Began(),
        handler_frames.Said(b'{"percent":1}'),
        handler_frames.Ended(outcomes.Succeeded(b"\x00\xff", outcomes.BYTES)),
        handler_frames.Ended(outcomes.Failed("Full", "no seat", retry_after_ms=5)),
        handler_frames.Ended(outcomes.Unknown("Timeout", "no answer")),
        handler_frames.Ended(outcomes.Stopped()),
    ]
    encoded = [msgspec.msgpack.encode(one) for one in sent]
    stream = b"".join(len(one).to_bytes(4, "big") + one for one in encoded)
    frames: handler_frames.Frames[handler_frames.FromHandler] = handler_frames.Frames(handler_frames.FromHandler)
    came = [one for at in range(0, len(stream), size) for one in frames.take(stream[at : at + size])]

    assert came == sent


@pytest.mark.parametrize("length", [handler_frames.FRAME_BYTES_MAX, handler_frames.FRAME_BYTES_MAX + 1])
def test_frame_has_a_bound(length: int) -> None:
    frames: handler_frames.Frames[handler_frames.FromHandler] = handler_frames.Frames(handler_frames.FromHandler)
    head = length.to_bytes(4, "big")
    if length > handler_frames.FRAME_BYTES_MAX:
        with pytest.raises(handler_frames.FrameError, match=f"a frame of {length} bytes"):
            list(frames.take(head))
    else:
        assert list(frames.take(head)) == []
