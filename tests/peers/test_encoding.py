"""Commands and answers reach another node as they are, or are refused as a whole."""

from __future__ import annotations

import msgspec
import pytest

from stepward.server.core.commands import CloseStream, ReportAttempts, StreamClosed
from stepward.server.peers import encoding
from stepward.server.peers.errors import MessageUnreadable
from tests.peers.samples import ANSWERS, COMMANDS, samples


@pytest.mark.parametrize("type_", COMMANDS)
def test_every_command_comes_back_as_it_was(type_: type[msgspec.Struct]) -> None:
    """Its kind and each of its fields, with every kind of what may stand in them."""
    for command in samples(type_):
        found = encoding.decode_command(encoding.encode_command(command))

        assert (type(found), found) == (type_, command)


@pytest.mark.parametrize("type_", ANSWERS)
def test_every_answer_comes_back_as_it_was(type_: type[msgspec.Struct]) -> None:
    """The same of answers."""
    for answer in samples(type_):
        found = encoding.decode_answer(encoding.encode_answer(answer))

        assert (type(found), found) == (type_, answer)


def test_samples_hold_every_event_of_an_attempt() -> None:
    """The tests above would say nothing of an event that no sample has."""
    events = {type(report.event).__name__ for command in samples(ReportAttempts) for report in command.reports}

    assert events >= {"Accepted", "Started", "Succeeded", "Failed", "Unknown", "Declined", "Stopped", "ProgressMade"}


@pytest.mark.parametrize(
    "encoded",
    [
        # Nothing, and what is no msgpack.
        b"",
        b"\xc1",
        # A pickle.
        b"\x80\x04K\x01.",
        # Of another shape; of a kind that nobody knows; of a kind that is an answer; and a row.
        msgspec.msgpack.encode({"type": "CloseStream"}),
        msgspec.msgpack.encode(["Explode", "s", 1]),
        encoding.encode_answer(StreamClosed()),
        msgspec.msgpack.encode([1, "s", 1]),
        # Cut, with a field of a wrong type, with one too few, and with one that this software does not know.
        encoding.encode_command(CloseStream("s", 1))[:-1],
        msgspec.msgpack.encode(["CloseStream", "s", "1"]),
        msgspec.msgpack.encode(["CloseStream", "s"]),
        msgspec.msgpack.encode(["CloseStream", "s", 1, "more"]),
        # With something behind it.
        encoding.encode_command(CloseStream("s", 1)) + b"\x00",
        # Text that is not UTF-8.
        msgspec.msgpack.encode(["CloseStream", "s", 1]).replace(b"\xa1s", b"\xa1\xff"),
    ],
)
def test_what_is_no_command_is_refused(encoded: bytes) -> None:
    """With how large it was, and what to do."""
    with pytest.raises(MessageUnreadable, match=f"a command of {len(encoded)} bytes .* same release on all nodes"):
        encoding.decode_command(encoded)


@pytest.mark.parametrize("encoded", [b"", b"\xc1", encoding.encode_command(CloseStream("s", 1))])
def test_what_is_no_answer_is_refused(encoded: bytes) -> None:
    """A command is none."""
    with pytest.raises(MessageUnreadable, match=f"an? answer of {len(encoded)} bytes"):
        encoding.decode_answer(encoded)
