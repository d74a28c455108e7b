"""Reports that wait, what is remembered of attempts, and how much goes into one message."""

from __future__ import annotations

import pytest

from stepward.agents.attempts import AttemptKey
from stepward.agents.memory import Memory, Past
from stepward.agents.outbox import REPORT_ATTEMPTS_MAX, REPORT_BYTES_MAX, Outbox
from stepward.agents.outcomes import Succeeded, report


def key(token: int, job: str = "0-job") -> AttemptKey:
    return AttemptKey(job, "a", token)


def filled(sizes: list[int]) -> Outbox:
    outbox = Outbox()
    for token, size in enumerate(sizes, start=1):
        outbox.add(report(key(token), Succeeded(b"x" * size), draining=False))
    return outbox


@pytest.mark.parametrize(
    ("count", "messages"),
    [
        (REPORT_ATTEMPTS_MAX, [REPORT_ATTEMPTS_MAX]),
        (REPORT_ATTEMPTS_MAX + 1, [REPORT_ATTEMPTS_MAX, 1]),
    ],
)
def test_message_holds_a_bounded_number_of_reports(count: int, messages: list[int]) -> None:
    assert [len(message.attempts) for message in filled([1] * count).take()] == messages


@pytest.mark.parametrize(
    ("sizes", "messages"),
    [
        # gRPC would refuse them together.
        ([REPORT_BYTES_MAX // 2, REPORT_BYTES_MAX // 2], [1, 1]),
        ([REPORT_BYTES_MAX // 4] * 3, [3]),
        # One alone may be larger; its own limit was checked before.
        ([1, REPORT_BYTES_MAX * 2, 1], [1, 1, 1]),
    ],
)
def test_message_holds_a_bounded_number_of_bytes(sizes: list[int], messages: list[int]) -> None:
    assert [len(message.attempts) for message in filled(sizes).take()] == messages


def test_report_is_taken_once_a_stream() -> None:
    outbox = filled([1])

    assert len(list(outbox.take())) == 1
    assert list(outbox.take()) == []
    outbox.stream_closed()
    assert len(list(outbox.take())) == 1


def test_unknown_answer_is_no_answer() -> None:
    outbox = filled([1])

    assert outbox.answered(key(1)) is None
    list(outbox.take())
    assert outbox.answered(key(2)) is None
    answered = outbox.answered(key(1))
    assert answered is not None
    assert answered.event == "succeeded"
    assert outbox.answered(key(1)) is None
    assert len(outbox) == 0


@pytest.mark.parametrize(
    ("token", "past"),
    [
        # The two newest are remembered,
        (4, Past.STARTED),
        (3, Past.NEVER_STARTED),
        # older ones have left their mark,
        (2, Past.FORGOTTEN),
        (1, Past.FORGOTTEN),
        # and above the mark nothing is forgotten.
        (5, None),
    ],
)
def test_memory_is_bounded_and_never_claims_what_it_forgot(token: int, past: Past | None) -> None:
    memory = Memory(remembered_max=2)
    for number, what in enumerate([Past.STARTED, Past.STARTED, Past.NEVER_STARTED, Past.STARTED], start=1):
        memory.remember(key(number), what)

    assert memory.recall(key(token)) is past


def test_what_has_started_stays_started() -> None:
    memory = Memory()
    memory.remember(key(1), Past.STARTED)
    memory.remember(key(1), Past.NEVER_STARTED)

    assert memory.recall(key(1)) is Past.STARTED


def test_tokens_are_compared_within_their_shard() -> None:
    """Another shard counts on its own, so a high token there says nothing here."""
    memory = Memory(remembered_max=1)
    memory.remember(key(1_000, "0-job"), Past.STARTED)
    memory.remember(key(1_001, "0-job"), Past.STARTED)

    assert memory.recall(key(5, "1-job")) is None
    assert memory.recall(key(5, "0-job")) is Past.FORGOTTEN
