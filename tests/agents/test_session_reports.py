"""Reports, their answers, and cancels."""

from __future__ import annotations

import pytest

from stepward.agents.attempts import AttemptKey
from stepward.agents.holdings import PROGRESS_INTERVAL_MS
from stepward.agents.memory import Memory
from stepward.agents.outbox import REPEATS_MAX, REST_MS_MAX
from stepward.agents.outcomes import Failed, Stopped, Succeeded, Unknown
from stepward.v1 import agent_service_pb2 as wire
from tests.agents.played import ON_ACCEPT, TTL_MS, Played, offer

REFUSALS = ["STALE_TOKEN", "NOT_FOUND", "CANCELLED", "TOO_LARGE"]


@pytest.mark.parametrize("result", REFUSALS)
def test_h023_refused_report_is_dropped_and_others_go_on(result: str) -> None:
    """H023: a report that is refused is not sent again; its slot is free and the other three work on."""
    played = Played(slots=4)
    played.open()
    played.offers(*(offer(step, 7) for step in "abcd"))
    played.ended("a", 7)
    played.answer("a", 7, result)
    played.lose_stream()

    assert played.open() == []
    assert played.offer("e", 8) == ["start e#8"]
    assert [played.ended(step, 7) for step in "bcd"] == [[f"report succeeded {step}#7"] for step in "bcd"]


def test_outcome_that_could_not_be_recorded_is_reported_again() -> None:
    """It exists nowhere else. It stays held, comes again later each time, and is done with when it is recorded."""
    played = Played()
    played.open()
    played.offer("flight", 7)
    played.ended("flight", 7)

    for rest_ms in (1_000, 2_000, 4_000):
        assert played.answer("flight", 7, "INTERNAL") == []
        assert [one.step_id for one in played.session.held] == ["flight"]
        assert played.passes(rest_ms - 50) == []
        assert played.passes(50) == ["report succeeded flight#7"]
    played.answer("flight", 7)
    assert played.session.held == []
    assert played.passes(60_000) == []


def test_outcome_that_can_never_be_recorded_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    played = Played()
    played.open()
    played.offer("flight", 7)
    played.ended("flight", 7)
    for _ in range(REPEATS_MAX):
        played.answer("flight", 7, "INTERNAL")
        assert played.passes(REST_MS_MAX - 50) in ([], ["report succeeded flight#7"])
        played.passes(50)
    assert played.session.held != []
    played.answer("flight", 7, "INTERNAL")

    assert played.session.held == []
    assert played.passes(10 * REST_MS_MAX) == []
    assert [one.message for one in caplog.records if one.levelname == "ERROR"] == [
        "report_dropped event=succeeded job=0-job step=flight token=7"
    ]


def test_outcome_that_rests_is_not_hurried_by_a_new_stream() -> None:
    """And a drain waits for it, as for every report, within its bound."""
    played = Played()
    played.open()
    played.offer("flight", 7)
    played.ended("flight", 7)
    played.answer("flight", 7, "INTERNAL")
    played.lose_stream()

    assert played.open() == []
    played.session.drain(played.now_ms)
    assert played.passes(1_000) == ["drain", "report succeeded flight#7"]
    played.answer("flight", 7)
    assert played.passes(1_000) == ["finish 0"]


def test_outcomes_of_the_moment_go_in_one_report() -> None:
    """One message, one batch of the cluster."""
    played = Played()
    played.open()
    played.offers(*(offer(step, 7) for step in "abc"))
    for step in "abc":
        played.session.handler_ended(next(one for one in played.session.held if one.step_id == step), Succeeded(b"1"))
    messages = played.session.take().messages

    assert len(messages) == 1
    assert [one.attempt.step_id for one in messages[0].report.attempts] == ["a", "b", "c"]


def test_report_is_sent_again_until_it_is_answered() -> None:
    played = Played()
    played.open()
    played.offer("flight", 7)
    played.ended("flight", 7)
    played.lose_stream()

    assert played.open() == ["report succeeded flight#7"]
    played.lose_stream()
    assert played.open() == ["report succeeded flight#7"]
    played.answer("flight", 7)
    played.lose_stream()
    assert played.open() == []


def test_start_is_not_reported_again_beside_the_outcome() -> None:
    played = Played()
    played.open()
    played.offer("flight", 7)
    played.passes(500)
    played.ended("flight", 7)
    played.lose_stream()

    assert played.open() == ["report succeeded flight#7"]


def test_answers_belong_to_the_reports_in_their_order() -> None:
    """The first answer is that of the start; the attempt is held until that of the outcome."""
    played = Played()
    played.open()
    played.offer("flight", 7)
    played.passes(500)
    played.ended("flight", 7)
    played.answer("flight", 7)
    held_after_start = played.session.held
    played.answer("flight", 7)

    assert [one.step_id for one in held_after_start] == ["flight"]
    assert played.session.held == []


@pytest.mark.parametrize("result", ["STALE_TOKEN", "NOT_FOUND"])
def test_stale_start_stops_the_handler(result: str) -> None:
    """The attempt no longer counts, so it is not held; that it has stopped is still said."""
    played = Played(slots=1)
    played.open()
    played.offer("flight", 7)
    played.passes(500)

    assert played.answer("flight", 7, result) == ["cancel flight#7 STALE"]
    assert played.session.held == []
    # It takes its slot as long as it runs.
    assert played.offer("hotel", 8) == ["report refused hotel#8 handed_back"]
    assert played.ended("flight", 7, Stopped()) == ["report stopped flight#7"]
    played.answer("flight", 7, "STALE_TOKEN")
    assert played.offer("car", 9) == ["start car#9"]


def test_start_that_could_not_be_recorded_changes_nothing() -> None:
    """We are wrong; the lease or a timeout decides."""
    played = Played()
    played.open()
    played.offer("flight", 7)
    played.passes(500)

    assert played.answer("flight", 7, "INTERNAL") == []
    assert played.ended("flight", 7) == ["report succeeded flight#7"]


@pytest.mark.parametrize(
    ("outcome", "line"),
    [
        (Succeeded(b"1"), "report succeeded flight#7"),
        (Failed("Full", "no seat"), "report failed flight#7 Full retryable=True"),
        (Failed("Full", "no seat", retryable=False), "report failed flight#7 Full retryable=False"),
        (Unknown("Timeout", "no answer"), "report unknown flight#7"),
        (Stopped(), "report stopped flight#7"),
    ],
)
def test_outcome_is_reported(outcome: Succeeded | Failed | Unknown | Stopped, line: str) -> None:
    played = Played()
    played.open()
    played.offer("flight", 7)

    assert played.ended("flight", 7, outcome) == [line]


@pytest.mark.parametrize(
    ("size", "line"),
    [
        (1_000, "report succeeded flight#7"),
        (1_001, "report failed flight#7 RESULT_TOO_LARGE retryable=False"),
    ],
)
def test_h057_output_above_the_limit_is_a_failure(size: int, line: str) -> None:
    """H057: checked before it is sent, else the stream would break on it again and again."""
    played = Played()
    played.connect()
    played.welcome(payload_bytes_max=1_000)
    played.out()
    played.acknowledge()
    played.offer("flight", 7)

    assert played.ended("flight", 7, Succeeded(b"x" * size)) == [line]
    if size > 1_000:
        message = played.messages[-1].report.attempts[0].failed.message
        assert "1001" in message
        assert "1000" in message


# Cancels.


def test_cancel_of_what_was_never_here_is_refused_and_remembered() -> None:
    """The cancel may have overtaken its offer."""
    played = Played()
    played.open()

    assert played.cancel("flight", 7) == ["report refused flight#7"]
    played.answer("flight", 7)
    assert played.offer("flight", 7) == ["report refused flight#7"]


def test_cancel_of_what_waits_for_its_accept_is_refused() -> None:
    """H027: also when the accept is recorded afterwards, nothing starts."""
    played = Played()
    played.open()
    played.offer("charge", 7, start=ON_ACCEPT)

    assert played.cancel("charge", 7) == ["report refused charge#7"]
    assert played.answer("charge", 7) == []
    assert played.answer("charge", 7) == []
    assert played.session.busy_slots == 0


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        (wire.CANCEL_REASON_JOB_ENDING, "JOB_ENDING"),
        (wire.CANCEL_REASON_TIMEOUT, "TIMEOUT"),
        (wire.CANCEL_REASON_STALE, "STALE"),
        # Of a newer protocol.
        (wire.CANCEL_REASON_UNSPECIFIED, "STALE"),
    ],
)
def test_cancel_of_a_running_handler_stops_it(reason: wire.CancelReason.ValueType, shown: str) -> None:
    """H024: it needs no progress report to hear of it. It says that it has stopped only when it has."""
    played = Played()
    played.open()
    played.offer("flight", 7)

    assert played.cancel("flight", 7, reason) == [f"cancel flight#7 {shown}"]
    assert played.cancel("flight", 7, reason) == []
    assert played.ended("flight", 7, Stopped()) == ["report stopped flight#7"]


def test_handler_that_finishes_in_spite_of_a_cancel_reports_its_outcome() -> None:
    played = Played()
    played.open()
    played.offer("flight", 7)
    played.cancel("flight", 7)

    assert played.ended("flight", 7) == ["report succeeded flight#7"]


def test_cancel_of_an_ended_attempt_waits_for_its_outcome() -> None:
    """H026: the two have crossed; the outcome is the answer."""
    played = Played()
    played.open()
    played.offer("flight", 7)
    played.ended("flight", 7)

    assert played.cancel("flight", 7) == []


def test_cancel_of_an_answered_attempt_is_never_refused() -> None:
    """It has started, so *never started* would be a lie that a compensation trusts."""
    played = Played()
    played.open()
    played.offer("flight", 7)
    played.ended("flight", 7)
    played.answer("flight", 7)

    assert played.cancel("flight", 7) == ["report stopped flight#7"]


def test_cancel_of_a_forgotten_attempt_is_never_refused() -> None:
    played = Played(memory=Memory(remembered_max=1))
    played.open()
    for token in (7, 8):
        played.offer("flight", token)
        played.ended("flight", token)
        played.answer("flight", token)

    assert played.cancel("flight", 7) == ["report stopped flight#7"]
    assert played.cancel("flight", 9) == ["report refused flight#9"]


@pytest.mark.parametrize(
    ("reason", "patient"),
    [
        # The job has agreed to wait for the attempt's own time.
        (wire.CANCEL_REASON_JOB_ENDING, True),
        # That time is over.
        (wire.CANCEL_REASON_TIMEOUT, False),
    ],
)
def test_deaf_handler_drains_the_process_and_ends_it(reason: wire.CancelReason.ValueType, patient: bool) -> None:
    """Its neighbours may finish; nobody else is given its work before it is gone, so there is time."""
    played = Played()
    played.open()
    played.offer("deaf", 7, start_to_close_ms=20_000)
    played.offer("other", 7)
    played.cancel("deaf", 7, reason)
    before = played.passes(500)
    for step in ("deaf", "other"):
        played.answer(step, 7)
    before += played.passes(19_450 if patient else 1_450)
    after = played.passes(50)
    played.ended("other", 7)
    played.answer("other", 7)

    assert "drain" not in before
    assert after == ["drain"]
    assert "end process 70" in played.passes(1_000)


# Progress.


def test_progress_is_sent_newest_only_and_not_too_often() -> None:
    played = Played()
    played.open()
    played.offer("flight", 7)
    key = played.session.held[0]
    # Nothing before the start is reported: the cluster would have no attempt to keep it with.
    played.session.progressed(key, b"1")
    assert played.passes(450) == []
    played.session.progressed(key, b"2")
    assert played.passes(50) == ["report progress flight#7 2", "report started flight#7"]
    played.session.progressed(key, b"3")
    assert played.passes(PROGRESS_INTERVAL_MS - 50) == []
    played.session.progressed(key, b"4")
    assert played.passes(50) == ["report progress flight#7 4"]
    assert played.passes(TTL_MS) == []


def test_signs_of_life_go_three_times_in_a_heartbeat_timeout() -> None:
    """However often the handler gives them. Two may be lost, and what travels is few."""
    played = Played()
    played.open()
    played.offer("flight", 7, start=ON_ACCEPT, heartbeat_timeout_ms=6_000)
    played.answer("flight", 7)
    key = played.session.held[0]
    lines = []
    for _ in range(6_000 // 50):
        played.session.progressed(key, b"")
        lines += played.passes(50)

    assert lines == ["report progress flight#7 alive"] * 3


def test_sign_of_life_keeps_what_was_said() -> None:
    """Details that wait are not overtaken by a word without any."""
    played = Played()
    played.open()
    played.offer("flight", 7)
    key = played.session.held[0]
    played.session.progressed(key, b"1")
    played.session.progressed(key, b"")

    assert played.passes(500) == ["report progress flight#7 1", "report started flight#7"]
    played.session.progressed(key, b"")
    assert played.passes(PROGRESS_INTERVAL_MS) == ["report progress flight#7 alive"]
    # Before an outcome a mere sign of life says nothing more.
    played.session.progressed(key, b"")
    assert played.ended("flight", 7, Failed("Full", "")) == ["report failed flight#7 Full retryable=True"]


@pytest.mark.parametrize(
    ("timeout_ms", "speaks", "said"),
    [(6_000, False, 1), (6_000, True, 0), (0, False, 0)],
)
def test_handler_that_gives_no_sign_of_life_is_told_of_once(
    caplog: pytest.LogCaptureFixture, timeout_ms: int, speaks: bool, said: int
) -> None:
    """While there is time: its author learns it before the first attempt is given up. Nobody speaks in its place."""
    played = Played()
    played.open()
    for token in (7, 8):
        played.offer("flight", token, heartbeat_timeout_ms=timeout_ms)
        if speaks:
            played.session.progressed(AttemptKey("0-job", "flight", token), b"")
        early = played.passes(2_950)
        told_early = caplog.text.count("heartbeat_missing")
        played.passes(50)
        played.ended("flight", token)

        assert told_early == (said if token == 8 else 0)
        assert any("alive" in line for line in early) is speaks

    assert caplog.text.count("heartbeat_missing action=work") == said


def test_last_progress_goes_before_a_failure() -> None:
    """It is what the next attempt may read."""
    played = Played()
    played.open()
    played.offer("flight", 7)
    played.session.progressed(played.session.held[0], b"9")

    assert played.ended("flight", 7, Failed("Full", "")) == [
        "report progress flight#7 9",
        "report failed flight#7 Full retryable=True",
    ]


def test_last_progress_is_not_worth_a_word_beside_a_success() -> None:
    played = Played()
    played.open()
    played.offer("flight", 7)
    played.session.progressed(played.session.held[0], b"9")

    assert played.ended("flight", 7) == ["report succeeded flight#7"]


def test_progress_needs_no_answer() -> None:
    """Answers are one for each report, except progress."""
    played = Played()
    played.open()
    played.offer("flight", 7)
    played.session.progressed(played.session.held[0], b"9")
    played.ended("flight", 7, Failed("Full", ""))
    played.answer("flight", 7)

    assert played.session.held == []
