"""Commands and answers as nodes hand them to each other: msgpack arrays that begin with the name of their class.

Strict both ways: what this software does not know is refused as a whole, never read in part.
"""

from __future__ import annotations

from typing import Final

import msgspec

from stepward.server.core.commands import Answer, AnyCommand
from stepward.server.peers.errors import MessageUnreadable

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_command: Final = msgspec.msgpack.Decoder(AnyCommand).decode
_decode_answer: Final = msgspec.msgpack.Decoder(Answer).decode


def encode_command(command: AnyCommand) -> bytes:
    """The bytes of a command."""
    return _encode(command)


def decode_command(encoded: bytes) -> AnyCommand:
    """The command of another node.

    Raises:
        MessageUnreadable: This software knows no such command.
    """
    try:
        return _decode_command(encoded)
    except msgspec.DecodeError as error:
        raise MessageUnreadable("a command", len(encoded), str(error)) from error


def encode_answer(answer: Answer) -> bytes:
    """The bytes of an answer."""
    return _encode(answer)


def decode_answer(encoded: bytes) -> Answer:
    """The answer of another node.

    Raises:
        MessageUnreadable: This software knows no such answer.
    """
    try:
        return _decode_answer(encoded)
    except msgspec.DecodeError as error:
        raise MessageUnreadable("an answer", len(encoded), str(error)) from error
