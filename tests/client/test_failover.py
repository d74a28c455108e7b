"""What is repeated, when, and where: the pure part of the client."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from stepward.client import errors
from stepward.client.errors import StepwardError
from stepward.client.failover import (
    DEFAULT_ADDRESSES,
    NAME_MORE,
    TOLD_MAX,
    Addresses,
    Attempts,
    Patience,
    Repeat,
    backoff_s,
    may_repeat,
    parse_addresses,
)

READ, KEYED, IDEMPOTENT, UNSAFE = Repeat.READ, Repeat.KEYED, Repeat.IDEMPOTENT, Repeat.UNSAFE
ALL, SAFE, NONE = set(Repeat), {READ, KEYED, IDEMPOTENT}, set[Repeat]()

REPEATABLE: dict[type[StepwardError], set[Repeat]] = {
    # Nothing was proposed, and it may pass.
    errors.NotLeader: ALL,
    errors.NoLeader: ALL,
    errors.NoCluster: ALL,
    errors.NodeDraining: ALL,
    errors.Overloaded: ALL,
    # It may have been carried out: only where twice is once.
    errors.CommitUnknown: SAFE,
    errors.Unreachable: SAFE,
    errors.NoAnswerInTime: SAFE,
    # It stays as it is for longer than a call lasts.
    errors.DiskFull: NONE,
    # The answer is the answer.
    errors.InvalidArgument: NONE,
    errors.InvalidDefinition: NONE,
    errors.PayloadTooLarge: NONE,
    errors.PageTokenInvalid: NONE,
    errors.JobNotFound: NONE,
    errors.DefinitionNotFound: NONE,
    errors.StepNotFound: NONE,
    errors.IdempotencyConflict: NONE,
    errors.JobEnded: NONE,
    errors.StaleToken: NONE,
    errors.SessionEnded: NONE,
    errors.ProtocolVersionRefused: NONE,
    errors.RevisionCompacted: NONE,
    errors.WaitTimedOut: NONE,
    errors.JobStateRefused: NONE,
    errors.StepStateRefused: NONE,
    errors.WatchTooSlow: NONE,
    errors.ClusterExists: NONE,
    errors.NodeStateRefused: NONE,
    errors.IncidentNotFound: NONE,
    errors.IncidentCountRefused: NONE,
    errors.IncidentStateRefused: NONE,
    errors.NotAllowed: NONE,
    errors.InternalFault: NONE,
    errors.NotServed: NONE,
    errors.UnknownAnswer: NONE,
}

PATIENCE = Patience(timeout_s=10, attempt_s=3, backoff_initial_s=0.1, backoff_factor=2, backoff_max_s=1.0)


@pytest.mark.parametrize(("error", "repeats"), REPEATABLE.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_may_repeat(error: type[StepwardError], repeats: set[Repeat]) -> None:
    """A call is repeated only when repeating it is safe and may help."""
    assert {repeat for repeat in Repeat if may_repeat(repeat, error("x"))} == repeats


def test_every_answer_has_a_rule() -> None:
    """A new reason must be decided on."""
    assert set(errors.BY_REASON.values()) <= REPEATABLE.keys()


@pytest.mark.parametrize(
    ("given", "parsed"),
    [
        ("localhost:7654", ("localhost:7654",)),
        ("localhost", ("localhost:7654",)),
        ("a:1,b:2, c", ("a:1", "b:2", "c:7654")),
        (["a:1", "b:2,c:3"], ("a:1", "b:2", "c:3")),
        ("a:1,a:1", ("a:1",)),
        ("[::1]:9", ("[::1]:9",)),
        ("[::1]", ("[::1]:7654",)),
    ],
)
def test_parse_addresses(given: str | list[str], parsed: tuple[str, ...]) -> None:
    """Addresses come as people write them."""
    assert parse_addresses(given) == parsed


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("", "no address in ''"),
        (" , ", "no address"),
        (":7654", "':7654' is not an address"),
        ("::1", "'::1' is not an address"),
        ("http://a:1", "is not an address"),
        ("a:", "the port of 'a:' is ''"),
        ("a:x", "the port of 'a:x' is 'x'"),
        ("a:0", "it must be between 1 and 65535"),
        ("a:65536", "it must be between 1 and 65535"),
    ],
)
def test_parse_addresses_refuses(given: str, complaint: str) -> None:
    """An address that can never work is refused before it is tried."""
    with pytest.raises(ValueError, match=re.escape(complaint)):
        parse_addresses(given)


@pytest.mark.parametrize(
    ("round_number", "widest_s"),
    [
        # The first wait is below the initial one, and each round doubles that.
        (0, 0.1),
        (1, 0.2),
        (3, 0.8),
        # It stops at the cap, exactly and far beyond.
        (4, 1.0),
        (1_000_000, 1.0),
    ],
)
def test_backoff(round_number: int, widest_s: float) -> None:
    """Full jitter: drawn evenly from zero to a bound that doubles up to a cap."""
    rng = random.Random(1)
    drawn = [backoff_s(PATIENCE, round_number, rng) for _ in range(1000)]

    assert 0 <= min(drawn) < widest_s * 0.01
    assert widest_s * 0.99 < max(drawn) <= widest_s


def attempts_of(
    addresses: Addresses,
    repeat: Repeat = KEYED,
    *,
    patience: Patience = PATIENCE,
    waits: bool = False,
    ends_at_s: float | None = None,
) -> Attempts:
    rng = random.Random(1)
    return Attempts(
        repeat, addresses=addresses, patience=patience, rng=rng, now_s=0.0, waits=waits, ends_at_s=ends_at_s
    )


def test_asks_another_node_at_once() -> None:
    """A dead node costs no wait while there are others; when all have failed, the next round waits."""
    attempts = attempts_of(Addresses("a:1,b:1"))

    first = attempts.begin(0.0)
    to_second = attempts.failed(errors.Unreachable("x"), 0.0)
    second = attempts.begin(0.0)
    to_third = attempts.failed(errors.Unreachable("x"), 0.0)
    third = attempts.begin(to_third)

    assert (first.address, second.address, third.address) == ("a:1", "b:1", "a:1")
    assert to_second == 0.0
    assert 0.0 < to_third <= PATIENCE.backoff_initial_s


def test_a_cluster_without_leader_is_not_asked_in_a_hurry() -> None:
    """A node without a leader may be cut off from one; when all say the same the trouble is the cluster's."""
    attempts = attempts_of(Addresses("a:1,b:1"))

    attempts.begin(0.0)
    to_second = attempts.failed(errors.NoLeader("x"), 0.0)
    attempts.begin(0.0)
    to_third = attempts.failed(errors.NoLeader("x"), 0.0)

    assert to_second == 0.0
    assert 0.0 < to_third <= PATIENCE.backoff_initial_s


def test_h108_two_nodes_that_point_at_each_other() -> None:
    """H108: each hint is followed once a call; then rounds with growing waits go on until the time is over."""
    addresses = Addresses("a:1,b:1")
    attempts, clock = attempts_of(addresses), [0.0]

    def ask_for_ever() -> None:
        while len(clock) < 1_000:
            other = {"a:1": "b:1", "b:1": "a:1"}[attempts.begin(clock[-1]).address]
            error = errors.NotLeader("x", metadata={"leader_address": other})
            clock.append(clock[-1] + attempts.failed(error, clock[-1]))

    with pytest.raises(errors.NotLeader):
        ask_for_ever()

    assert 5 < len(clock) < 100


def test_follows_the_hint_to_the_leader_once() -> None:
    """A hint is worth one try; a wrong one does not keep the call in a circle."""
    attempts = attempts_of(Addresses("a:1,b:1"))
    hint = errors.NotLeader("x", metadata={"leader_address": "c:1"})

    attempts.begin(0.0)
    to_hint = attempts.failed(hint, 0.0)
    hinted = attempts.begin(0.0)
    attempts.failed(errors.Unreachable("x"), 0.0)
    behind = attempts.begin(0.0)
    attempts.failed(hint, 0.0)
    again = attempts.begin(0.0)

    assert to_hint == 0.0
    assert [hinted.address, behind.address, again.address] == ["c:1", "a:1", "b:1"]


def test_stays_with_the_node_that_answered() -> None:
    """The next call begins where the last one ended, except at a hinted address."""
    addresses = Addresses("a:1,b:1")
    attempts = attempts_of(addresses)
    attempts.begin(0.0)
    attempts.failed(errors.Unreachable("x"), 0.0)
    attempts.begin(0.0)
    attempts.answered()
    addresses.answered("c:1")

    assert addresses.preferred == "b:1"
    assert attempts_of(addresses).begin(0.0).address == "b:1"


def test_an_overloaded_server_is_left_alone_as_long_as_it_asks() -> None:
    """At least that long, with jitter on top, and no other node is bothered."""
    waits = set()
    for seed in range(50):
        attempts = Attempts(
            KEYED, addresses=Addresses("a:1,b:1"), patience=PATIENCE, rng=random.Random(seed), now_s=0.0
        )
        attempts.begin(0.0)
        waits.add(attempts.failed(errors.Overloaded("x", retry_delay_s=2.0), 0.0))
        assert attempts.begin(2.0).address == "a:1"

    assert min(waits) >= 2.0
    assert max(waits) <= 3.0
    assert len(waits) > 40


def test_gives_up_when_the_wait_would_last_too_long() -> None:
    """Better the answer now than the same answer later."""
    attempts = attempts_of(Addresses("a:1"))
    attempts.begin(0.0)

    with pytest.raises(errors.Overloaded, match=r"tried once in 0.0 s") as caught:
        attempts.failed(errors.Overloaded("busy", retry_delay_s=60.0), 0.0)
    assert caught.value.retry_delay_s == 60.0


def test_gives_up_at_the_deadline() -> None:
    """All attempts together last no longer than the timeout, and the last error says what was tried."""
    attempts = attempts_of(Addresses("a:1,b:1"))
    clock = [0.0]

    def fail_for_ever() -> None:
        while len(clock) < 10_000:
            attempts.begin(clock[-1])
            clock.append(clock[-1] + attempts.failed(errors.Unreachable("b:1: refused"), clock[-1]))

    with pytest.raises(errors.Unreachable) as caught:
        fail_for_ever()

    tried = len(clock)
    assert clock[-1] <= 10.0
    assert f"tried {tried} times" in str(caught.value)
    text = str(caught.value)
    assert text.startswith("no stepward server answers at a:1 (b:1: refused), b:1 (b:1: refused); tried ")
    assert "stepward dev" not in text


def given_up(addresses: Addresses, *failures: errors.StepwardError) -> str:
    """What is said after these."""
    attempts = attempts_of(addresses)
    for failure in failures[:-1]:
        attempts.begin(0.0)
        attempts.failed(failure, 0.0)
    attempts.begin(0.0)
    with pytest.raises(errors.StepwardError) as caught:
        attempts.failed(failures[-1], 100.0)
    return str(caught.value)


def unreachable(said: str) -> errors.Unreachable:
    return errors.Unreachable(f"x: {said}", metadata={errors.SAID: said})


def test_each_address_is_told_with_what_it_said() -> None:
    """One clause each; one that was never asked as well."""
    silent = errors.NoAnswerInTime("c:1 took the call", metadata={errors.SAID: "no answer in time"})

    assert given_up(Addresses("a:1,b:1,c:1"), unreachable("refused"), errors.NoLeader("it knows none"), silent) == (
        "no stepward server answers at a:1 (refused), b:1 (it knows none), c:1 (no answer in time); tried 3 times in "
        "100.0 s; look at it with: stepward cluster status"
    )
    assert "b:1 (not asked)" in given_up(Addresses("a:1,b:1"), unreachable("refused"))


@pytest.mark.parametrize(("addresses", "told"), [("a:1", True), (DEFAULT_ADDRESSES, False), ("a:1,b:1", False)])
def test_who_loses_the_only_node_that_was_named_is_told_to_name_more(addresses: str, told: bool) -> None:
    """Once it has answered: before that the address may be wrong, and with several it is not what is missing."""
    known, unknown = Addresses(addresses), Addresses(addresses)
    known.answered(known.preferred)

    assert (NAME_MORE in given_up(known, unreachable("refused"))) is told
    assert NAME_MORE not in given_up(unknown, unreachable("refused"))


@pytest.mark.parametrize(
    ("addresses", "told"),
    [(DEFAULT_ADDRESSES, True), ("localhost", True), ("localhost:7655", False), ("a.example.org:7654", False)],
)
def test_a_server_to_try_things_out_is_offered_where_nobody_named_another(addresses: str, told: bool) -> None:
    """Whose nodes have died does not want a new one that is empty."""
    assert ("start one with: stepward dev" in given_up(Addresses(addresses), unreachable("refused"))) is told


def test_of_many_addresses_some_are_told() -> None:
    """An error stays short."""
    addresses = [f"a{number}:1" for number in range(TOLD_MAX + 1)]

    text = given_up(Addresses(addresses), unreachable("refused"))

    assert f"a{TOLD_MAX - 1}:1 (not asked) and 1 more; tried once" in text


@pytest.mark.parametrize(
    ("addresses", "repeat", "now_s", "timeout_s"),
    [
        # Alone, a node gets all the time there is.
        ("a:1", READ, 0.0, 10.0),
        # A silent node must not use up what another could need.
        ("a:1,b:1", READ, 0.0, 3.0),
        ("a:1,b:1", READ, 8.0, 2.0),
        # What may not be asked twice has only this one chance.
        ("a:1,b:1", UNSAFE, 0.0, 10.0),
    ],
)
def test_time_of_one_attempt(addresses: str, repeat: Repeat, now_s: float, timeout_s: float) -> None:
    """How long one node may take to answer."""
    assert attempts_of(Addresses(addresses), repeat).begin(now_s).timeout_s == pytest.approx(timeout_s)


def test_a_client_that_never_reached_anybody_says_so_soon() -> None:
    """With `first_contact_s`, a missing server is told at once, and one that was there is waited for."""
    patience = replace(PATIENCE, first_contact_s=1.0)
    stranger, acquaintance = Addresses("a:1"), Addresses("a:1")
    acquaintance.answered("a:1")

    attempts = attempts_of(stranger, patience=patience)
    attempts.begin(1.5)
    with pytest.raises(errors.Unreachable):
        attempts.failed(errors.Unreachable("x"), 1.5)
    attempts = attempts_of(acquaintance, patience=patience)
    attempts.begin(1.5)

    assert attempts.failed(errors.Unreachable("x"), 1.5) >= 0.0


def test_a_wait_outlives_the_timeout() -> None:
    """A job may take longer than a call: only lost contact counts against the timeout."""
    addresses = Addresses("a:1")
    attempts = attempts_of(addresses, waits=True)
    now_s = 0.0
    for _ in range(100):
        attempt = attempts.begin(now_s)
        assert attempt.wait_s == PATIENCE.wait_chunk_s
        assert attempt.timeout_s == PATIENCE.wait_chunk_s + PATIENCE.timeout_s
        now_s += PATIENCE.wait_chunk_s
        assert attempts.failed(errors.WaitTimedOut("x"), now_s) == 0.0
    attempts.begin(now_s)
    now_s += 30.0
    attempts.failed(errors.Unreachable("x"), now_s)
    attempts.begin(now_s + 9.0)
    attempts.failed(errors.Unreachable("x"), now_s + 9.0)
    attempts.begin(now_s + 10.0)

    with pytest.raises(errors.Unreachable):
        attempts.failed(errors.Unreachable("x"), now_s + 10.0)


def test_a_wait_that_lasted_was_in_contact() -> None:
    """A failure behind a long attempt begins the time in which we may still try anew."""
    attempts = attempts_of(Addresses("a:1"), waits=True)
    attempts.begin(0.0)
    attempts.failed(errors.Unreachable("x"), 0.0)
    attempts.begin(1.0)
    attempts.failed(errors.Unreachable("x"), 31.0)
    attempts.begin(40.0)

    assert attempts.failed(errors.Unreachable("x"), 40.0) >= 0.0
    attempts.begin(41.0)
    with pytest.raises(errors.Unreachable):
        attempts.failed(errors.Unreachable("x"), 41.0)


def test_a_wait_ends_when_its_caller_said() -> None:
    """The last chunk is as long as what is left; then the server's word stands."""
    attempts = attempts_of(Addresses("a:1"), waits=True, ends_at_s=70.0)

    assert attempts.begin(0.0).wait_s == 60.0
    attempts.failed(errors.WaitTimedOut("x"), 60.0)
    assert attempts.begin(60.0).wait_s == pytest.approx(10.0)
    with pytest.raises(errors.WaitTimedOut):
        attempts.failed(errors.WaitTimedOut("x"), 70.0)


def test_a_server_that_ends_waits_at_once_is_not_asked_in_a_circle() -> None:
    """A wait that ended too soon is followed by a backoff."""
    attempts = attempts_of(Addresses("a:1"), waits=True)
    attempts.begin(0.0)

    assert attempts.failed(errors.WaitTimedOut("x"), 0.01) > 0.0


def test_errors_that_are_answers_come_out_as_they_are() -> None:
    """Nothing is added to them, and no second attempt is made."""
    attempts = attempts_of(Addresses("a:1,b:1"))
    attempts.begin(0.0)
    answer = errors.JobNotFound("no job x")

    with pytest.raises(errors.JobNotFound) as caught:
        attempts.failed(answer, 0.0)
    assert caught.value is answer


@pytest.mark.parametrize(
    ("named", "value"), [("timeout_s", 0), ("timeout_s", -1), ("first_contact_s", 0), ("first_contact_s", -0.5)]
)
def test_patience_refuses(named: str, value: float) -> None:
    """A time that leaves no time for any attempt is a mistake."""
    with pytest.raises(ValueError, match=f"{named} is {value}; it must be above 0"):
        Patience(**{named: value})
