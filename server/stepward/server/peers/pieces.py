"""Frames as messages: small ones share one, and a large one is cut, so that no call needs a larger bound for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepward.internal.v1 import peer_service_pb2 as pb
from stepward.server.core.rejections import Reason, Refused, Rejection

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Sequence

# Below the bound of any call, with room for what encoding adds. A frame on a slow line leaves in so many bites.
MESSAGE_BYTES_MAX: Final = 1 << 20


class Cutter:
    """Takes messages off a queue of frames, in order."""

    def __init__(self, waiting: deque[bytes]) -> None:
        self._waiting = waiting
        # How much of the first frame has left.
        self._left = 0

    def next_message(self) -> tuple[pb.ReplicateRequest, int]:
        """As much of what waits as fits into a message, and how many bytes of frames that is."""
        message, waiting = pb.ReplicateRequest(), self._waiting
        room = MESSAGE_BYTES_MAX
        while waiting and len(waiting[0]) - self._left <= room:
            frame = waiting.popleft()
            message.frames.append(frame[self._left :] if self._left else frame)
            room -= len(frame) - self._left
            self._left = 0
        if waiting and room == MESSAGE_BYTES_MAX:
            message.frames.append(waiting[0][self._left : self._left + room])
            message.unfinished = True
            self._left += room
            room = 0
        return message, MESSAGE_BYTES_MAX - room


class Joiner:
    """Makes frames of messages again."""

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._pieces: list[bytes] = []
        self._size_bytes = 0

    def frames(self, message: pb.ReplicateRequest) -> Sequence[bytes]:
        """The frames that are whole with this message.

        Raises:
            Refused: INVALID_ARGUMENT, when one is too large, or nothing goes on.
        """
        came = list(message.frames)
        if message.unfinished and not came:
            raise Refused(Rejection(Reason.INVALID_ARGUMENT, "a message without frames says that its last one goes on"))
        for index, piece in enumerate(came):
            size = len(piece) + (self._size_bytes if index == 0 else 0)
            if size > self._frame_bytes_max:
                text = f"a frame has {size} bytes or more; at most {self._frame_bytes_max} are taken"
                raise Refused(Rejection(Reason.INVALID_ARGUMENT, text))
        if not self._pieces and not message.unfinished:
            return came
        if not came:
            return ()
        return self._join(came, unfinished=message.unfinished)

    def _join(self, came: list[bytes], *, unfinished: bool) -> Sequence[bytes]:
        self._pieces.append(came[0])
        self._size_bytes += len(came[0])
        if len(came) == 1 and unfinished:
            return ()
        whole = [b"".join(self._pieces), *came[1:]]
        self._pieces, self._size_bytes = [], 0
        if unfinished:
            self._pieces, self._size_bytes = [whole[-1]], len(whole.pop())
        return whole
