"""What an agent and the process of a handler say to each other, over a pair of sockets.

Payloads travel as the bytes that they are, and everything else as MessagePack of the types below: nothing is pickled,
so neither side can make the other run anything.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any, Final, Generic, TypeVar

import msgspec

from stepward.agents.outcomes import Outcome

# An offer comes in a message of at most 16 MiB, and an output that is larger travels nowhere; a frame adds little.
OUTPUT_BYTES_MAX: Final = 16 * 1024 * 1024
FRAME_BYTES_MAX: Final = OUTPUT_BYTES_MAX + 65_536

_LENGTH: Final = struct.Struct(">I")
_READ_BYTES: Final = 65_536


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """To a new process: where modules are looked for, and from which level on it logs."""

    path: list[str]
    log_level: int


class Call(msgspec.Struct, frozen=True, tag="call"):
    """To a process: run a handler."""

    action: str
    module: str
    qualname: str
    offer: bytes
    """The offer, as the contract encodes it."""
    deadline_ms: int


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """To a process: the handler is to stop."""

    reason: str


class LeaseLost(msgspec.Struct, frozen=True, tag="lease_lost"):
    """To a process: whether the agent's lease is over."""

    lost: bool


class Began(msgspec.Struct, frozen=True, tag="began"):
    """From a process: from now on the handler may have done something."""


class Said(msgspec.Struct, frozen=True, tag="said"):
    """From a process: the handler gives a sign of life."""

    details: bytes


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """From a process: what became of the handler."""

    outcome: Outcome


ToHandler = Begin | Call | Cancel | LeaseLost
FromHandler = Began | Said | Ended

Frame = TypeVar("Frame")


class FrameError(Exception):
    """What came is no frame: something else writes into the socket."""


class Frames(Generic[Frame]):
    """Frames that come out of a socket, of the types of one direction."""

    def __init__(self, types: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(types)
        self._buffer = bytearray()

    def take(self, data: bytes) -> Iterator[Frame]:
        """What is complete with these bytes.

        Raises:
            FrameError: It is no frame, or too long for one.
        """
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > FRAME_BYTES_MAX:
                raise FrameError(f"a frame of {length} bytes was announced; at most {FRAME_BYTES_MAX} can come")
            if len(self._buffer) < _LENGTH.size + length:
                return
            frame = bytes(self._buffer[_LENGTH.size : _LENGTH.size + length])
            del self._buffer[: _LENGTH.size + length]
            try:
                yield self._decoder.decode(frame)
            except msgspec.DecodeError as error:
                raise FrameError(f"a frame cannot be read: {error}") from None


def send(to: socket.socket, frame: ToHandler | FromHandler) -> None:
    """Write a frame; waits while the other side does not read."""
    encoded = msgspec.msgpack.encode(frame)
    to.sendall(_LENGTH.pack(len(encoded)) + encoded)


def receive(source: socket.socket) -> bytes:
    """Some bytes, as soon as there are any. Empty: the other side has ended."""
    try:
        return source.recv(_READ_BYTES)
    except ConnectionResetError:
        return b""
