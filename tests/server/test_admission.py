"""Who gets in front of a shard that is busy, and when the others are told to come back."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepward.server.admission import Admission, DrainRate
from stepward.server.clock import ManualClock
from stepward.server.config import NodeConfig
from stepward.server.core.rejections import Reason, Refused
from stepward.server.observe import Counters
from tests.server.host import admission

KIB = 1_024


class Door:
    """An admission under a clock that stands still until it is moved."""

    def __init__(self, **config: int) -> None:
        self.clock = ManualClock(steady_ms=0, wall_ms=0)
        self.counters = Counters()
        self.free_bytes = 1 << 40
        self.admission: Admission = admission(
            NodeConfig(data=Path("data"), **config),  # type: ignore[arg-type]  # whatever the test wants
            counters=self.counters,
            clock=self.clock,
            free_bytes=lambda: self.free_bytes,
        )

    def enter(self, namespace: str, count: int = 1, *, size_bytes: int = 0) -> int:
        """How many of so many got in before one was refused."""
        for number in range(count):
            if self.refusal(namespace, size_bytes=size_bytes) is not None:
                return number
        return count

    def refusal(self, namespace: str = "a", *, size_bytes: int = 0) -> Refused | None:
        """Why one more does not get in; None when it does."""
        try:
            self.admission.admit(namespace, size_bytes)
        except Refused as refused:
            return refused
        return None

    def leave(self, namespace: str, count: int = 1, *, size_bytes: int = 0) -> None:
        for _ in range(count):
            self.admission.decided(namespace, size_bytes)

    def retry_after_ms(self, namespace: str = "a") -> int:
        """When one who is refused now should come back."""
        refused = self.refusal(namespace)
        assert refused is not None
        assert refused.rejection.reason is Reason.OVERLOADED
        return refused.rejection.retry_after_ms


def test_one_namespace_alone_may_hold_half() -> None:
    """At the bound the last one gets in; one more is refused, counted, and told what waits against which bound."""
    door = Door(submissions_waiting_max=10)

    assert door.enter("a", 10) == 5
    refused = door.refusal("a")
    assert refused is not None
    assert "namespace a has 5 submissions of 0 bytes" in refused.rejection.message
    assert door.counters.shed == 2


def test_newcomers_get_in_until_all_is_taken() -> None:
    """Each may hold its share of the whole while others are there, and the whole is a wall for everybody."""
    door = Door(submissions_waiting_max=12)

    assert (door.enter("a", 12), door.enter("b", 12), door.enter("c", 12)) == (6, 4, 2)
    refused = door.refusal("d")
    assert refused is not None
    assert "12 submissions of 0 bytes wait for a decision; at most 12 of" in refused.rejection.message


def test_who_holds_more_than_a_share_waits_for_the_others() -> None:
    """Room that becomes free goes to those who hold less."""
    door = Door(submissions_waiting_max=12)
    door.enter("a", 6), door.enter("b", 4), door.enter("c", 2)
    door.leave("a")

    # A share is now a fourth of twelve; a holds five.
    assert (door.enter("a"), door.enter("b"), door.enter("c", 2)) == (0, 0, 1)


def test_below_half_nobody_is_held_to_a_share() -> None:
    """Room that nobody else asks for is there to be used."""
    door = Door(submissions_waiting_max=100)
    for number in range(20):
        door.enter(f"n{number}")

    assert door.enter("a", 100) == 30


@pytest.mark.parametrize(
    ("size_bytes", "entered"), [(KIB, 5), (KIB + 1, 4), (5 * KIB, 1), (10 * KIB, 1), (10 * KIB + 1, 0)]
)
def test_bytes_are_bounded_as_the_count_is(size_bytes: int, entered: int) -> None:
    """Of ten KiB a namespace alone may hold five; one submission that is larger than that still gets in by itself."""
    door = Door(submission_bytes_waiting_max=10 * KIB)

    assert door.enter("a", 10, size_bytes=size_bytes) == entered


def test_asking_for_room_takes_none() -> None:
    """It refuses what would be refused, and nothing else."""
    door = Door(submissions_waiting_max=10)
    for _ in range(20):
        door.admission.require_room("a", 0)
    entered = door.enter("a", 10)

    assert entered == 5
    with pytest.raises(Refused):
        door.admission.require_room("a", 0)
    door.admission.require_room("b", 0)


def test_room_is_given_back() -> None:
    """And a namespace of which nothing waits is forgotten."""
    door = Door(submissions_waiting_max=10, submission_bytes_waiting_max=10 * KIB)
    door.enter("a", 5, size_bytes=KIB)
    door.leave("a", 5, size_bytes=KIB)

    assert door.enter("a", 10, size_bytes=KIB) == 5
    assert door.admission._by_namespace.keys() == {"a"}


def decided_at(door: Door, per_s: int, *, seconds: int) -> None:
    """Keep the room full while so many are decided in a second."""
    for _ in range(seconds * 10):
        door.clock.advance(100)
        door.leave("a", per_s // 10)
        door.enter("a", per_s // 10)


@pytest.mark.parametrize(
    ("per_s", "middle_ms"),
    [
        # Half of the thousand that are in front, at what was measured.
        (100, 5_000),
        (1_000, 500),
        (5_000, 100),
    ],
)
def test_delay_follows_the_measured_rate(per_s: int, middle_ms: int) -> None:
    """Spread by half around the middle, so that those who were refused together do not come back together."""
    door = Door(submissions_waiting_max=2_000)
    door.enter("a", 1_000)
    decided_at(door, per_s, seconds=10)

    delays = {door.retry_after_ms() for _ in range(200)}

    assert len(delays) > 40
    assert middle_ms * 0.45 <= min(delays) <= middle_ms * 0.6
    assert middle_ms * 1.4 <= max(delays) <= middle_ms * 1.55


def test_delay_before_anything_was_measured() -> None:
    """The configured one."""
    door = Door(submissions_waiting_max=2, overload_retry_after_ms=400)
    door.enter("a", 1)

    assert 200 <= door.retry_after_ms() <= 600


def test_delay_is_bounded() -> None:
    """On both sides: a disk that stands still, and one that takes everything at once."""
    slow = Door(submissions_waiting_max=2, overload_retry_ms_max=3_000)
    slow.enter("a", 1)
    slow.clock.advance(60_000)
    fast = Door(submissions_waiting_max=2, overload_retry_ms_min=70)
    fast.enter("a", 1)
    for _ in range(100):
        fast.clock.advance(1)
        fast.leave("a")
        fast.enter("a")

    slow_delays = {slow.retry_after_ms() for _ in range(50)}
    assert max(slow_delays) == 3_000
    assert min(slow_delays) >= 1_500
    assert {fast.retry_after_ms() for _ in range(50)} == {70}


def test_idle_time_is_not_counted() -> None:
    """Nobody waited in it, so it says nothing of how fast those who wait are decided."""
    rate = DrainRate()
    for number in range(1, 11):
        rate.pass_time(number * 100, busy=True)
        rate.decide()
    rate.pass_time(10**9, busy=False)

    assert rate.wait_ms(10) == pytest.approx(1_000, rel=0.3)


def test_newer_time_counts_more() -> None:
    """A disk that has become slow is noticed within seconds."""
    rate = DrainRate()
    for number in range(1, 101):
        rate.pass_time(number * 100, busy=True)
        rate.decide()
    for number in range(101, 200):
        rate.pass_time(number * 100, busy=True)
        if number % 10 == 0:
            rate.decide()

    assert rate.wait_ms(1) == pytest.approx(1_000, rel=0.4)


@pytest.mark.parametrize(("free_bytes", "reason"), [(1_000, None), (999, Reason.DISK_FULL)])
def test_disk_that_is_nearly_full(free_bytes: int, reason: Reason | None) -> None:
    """What is left is for jobs that exist. The answer is asked for once a second."""
    door = Door(free_bytes_for_submissions_min=1_000)
    door.enter("a")
    door.free_bytes = free_bytes
    door.clock.advance(999)
    before = door.refusal("a")
    door.clock.advance(1)
    after = door.refusal("a")

    assert before is None
    assert (after.rejection.reason if after is not None else None) is reason
