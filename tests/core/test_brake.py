"""The brake: bounded remediations in any minute, canaries after a mass loss and under a new leader, else no cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from stepward.server.core import brake, epoch_rows, invariants, keys, rows
from stepward.server.core.brake_rows import Brake, Cause
from stepward.server.core.commands import CancelJob, Failed, Started, Sweep, Swept
from stepward.server.core.decide import decide
from stepward.server.core.limits import Limits
from stepward.server.core.rows import DefinitionBody, EventType, RetrySpec, Row
from tests.core.world import World, step_spec
from tests.scenarios.trips import SESSION_END_MS, renew

MINUTE_MS = 60_000
# Steps that are tried again at once and for ever, so that what is lost is all that matters.
RETRY = RetrySpec(attempts_max=10_000, initial_ms=1, factor=1.0, cap_ms=1)


def world_of(
    jobs: int, *, agents: int = 1, slots: int = 100, start_to_close_ms: int = 3_600_000, **bounds: int
) -> World:
    """A world in which every job's one step runs, spread over some agents."""
    world = World(limits=Limits(session_ttl_ms=3_000, lease_losses_max=1_000, **bounds))
    step = step_spec("pay", retry=RETRY, start_to_close_ms=start_to_close_ms)
    world.define(DefinitionBody("single", (step,), b"", b""))
    for number in range(agents):
        world.open(f"agent-{number:03}", ("pay",), slots=slots)
    for number in range(jobs):
        world.submit(f"j{number:04}", "single")
        world.report(holder(world, f"j{number:04}"), f"j{number:04}", "pay", Started())
    return world


def pass_alive(world: World, until_ms: int, *alive: str) -> None:
    """Let time pass with heartbeats, and without a look of the supervisor."""
    for world.now_ms in range(world.now_ms, until_ms, 500):  # noqa: B020 - the clock is what is moved
        renew(world, *alive)
    world.now_ms = until_ms
    renew(world, *alive)


def holder(world: World, job_id: str) -> str:
    """The session that holds a job's step."""
    step = world.step(job_id, "pay")
    assert step is not None
    return step.session_id


def swept(world: World) -> Swept:
    """One look of the supervisor. Now and then all rows are recounted, which takes long."""
    answer = world.one(Sweep(world.limits.sweep_subjects_max))
    assert isinstance(answer, Swept)
    if world.sequence % 16 == 0:
        assert invariants.violations(world.reader, led_ms=world.now_ms) == []
    return answer


def remedied(world: World, jobs: int) -> list[int]:
    """When each remediation of a running attempt was."""
    wanted = {EventType.StepAttemptLost, EventType.StepAttemptTimedOut}
    found = (world.events(f"j{number:04}") for number in range(jobs))
    return sorted(at_ms for events in found for at_ms, event in events if event.type in wanted)


def brake_row(world: World) -> Brake | None:
    """The row of the brake."""
    row = world.reader.get(keys.BRAKE)
    assert row is None or isinstance(row, Brake)
    return row


@pytest.mark.parametrize(
    ("burst_max", "per_minute_max"),
    [
        # As it is by default, and with other bounds.
        (100, 600),
        (1, 30),
        (7, 100),
    ],
)
def test_no_minute_sees_more_than_the_bound(burst_max: int, per_minute_max: int) -> None:
    """Three hundred attempts time out at once: at first so many as may at once, then the rest, at the stated rate."""
    bounds = {"remediations_burst_max": burst_max, "remediations_per_minute_max": per_minute_max}
    jobs = min(300, 4 * per_minute_max)
    world = world_of(jobs, slots=1_000, start_to_close_ms=10_000, **bounds)
    pass_alive(world, 10_000, "agent-000")
    looks = 0
    while (answer := swept(world)).held or answer.overdue:
        assert (answer.look_again_in_ms is not None) is (answer.held > 0)
        # What is left and not held is a retry without a wait.
        world.now_ms += answer.look_again_in_ms or 1
        renew(world, "agent-000")
        looks += 1

    found = remedied(world, jobs)
    assert len(found) == jobs
    assert found.count(10_000) == min(burst_max, jobs)
    busiest = max(sum(at_ms <= each < at_ms + MINUTE_MS for each in found) for at_ms in found)
    assert busiest <= per_minute_max
    # It is not slower than stated either.
    refill = per_minute_max - burst_max
    assert found[-1] - 10_000 <= -(-(jobs - burst_max) * MINUTE_MS // refill) + looks


def test_one_past_the_burst_is_held_and_says_until_when() -> None:
    """It stays due, is told in the answer and in the beat, and its row is as it was."""
    world = world_of(4, start_to_close_ms=10_000, remediations_burst_max=3, remediations_per_minute_max=63)
    pass_alive(world, 10_000, "agent-000")

    answer = swept(world)

    assert (answer.remedied, answer.overdue, answer.held) == (3, 1, 1)
    assert answer.look_again_in_ms == 1_000
    assert world.step_state("j0003", "pay") == "RUNNING"
    beat = world.reader.get(keys.BEAT)
    assert isinstance(beat, rows.Beat)
    assert (beat.remediations, beat.overdue, beat.held) == (3, 1, 1)
    stands = brake.standing(world.reader, led_ms=10_400, limits=world.limits)
    assert stands.on is not None
    assert (stands.on.ends_in_ms, stands.used) == (600, 3)
    assert brake.standing(world.reader, led_ms=11_000, limits=world.limits).on is None


def test_a_held_remediation_holds_up_nothing_that_goes_on() -> None:
    """More is held than a sweep looks at: the end of a wait behind it, and a job that is cancelled, go on at once."""
    bounds = {"remediations_burst_max": 1, "remediations_per_minute_max": 2, "sweep_subjects_max": 5}
    world = world_of(20, start_to_close_ms=10_000, **bounds)
    pass_alive(world, 10_000, "agent-000")
    assert swept(world).held >= 5
    first = next(number for number in range(20) if world.step_state(f"j{number:04}", "pay") == "RETRY_WAIT")
    world.now_ms += 1

    swept(world)

    assert world.step_state(f"j{first:04}", "pay") in ("READY", "OFFERED")
    world.one(CancelJob("j0019", "no longer wanted"))
    assert world.job_state("j0019") == "COMPENSATING"


def test_both_clocks_have_their_turn_while_the_brake_is_scarce() -> None:
    """Lost sessions on led time do not keep timeouts on log time waiting until the last of them is through."""
    bounds = {"remediations_burst_max": 2, "remediations_per_minute_max": 122, "mass_loss_sessions_min": 100}
    world = world_of(30, agents=2, slots=15, start_to_close_ms=SESSION_END_MS, **bounds)
    for world.now_ms in range(500, SESSION_END_MS, 500):
        renew(world, "agent-001")
    world.now_ms = SESSION_END_MS
    kinds: Counter[EventType] = Counter()
    while sum(kinds.values()) < 12:
        world.sequence += 1
        renew(world, "agent-001")
        swept(world)
        world.now_ms += 500
        kinds = Counter(event.type for n in range(30) for _, event in world.events(f"j{n:04}"))
        kinds = Counter(
            {k: c for k, c in kinds.items() if k in (EventType.StepAttemptLost, EventType.StepAttemptTimedOut)}
        )

    assert min(kinds[EventType.StepAttemptLost], kinds[EventType.StepAttemptTimedOut]) >= 3


@pytest.mark.parametrize(
    ("agents", "lost", "is_mass_loss"),
    [
        # Five of twenty are a quarter; of twenty-one they are not.
        (20, 5, True),
        (21, 5, False),
        # Four are never many, even if they are all.
        (4, 4, False),
        (5, 5, True),
        (40, 9, False),
        (40, 10, True),
    ],
)
def test_what_is_a_mass_loss(agents: int, lost: int, is_mass_loss: bool) -> None:
    """So many, and so many of those that were open: five canaries go first, and the others are held for 5 s."""
    world = world_of(agents * 2, agents=agents, slots=2)
    alive = [f"agent-{number:03}" for number in range(lost, agents)]
    for world.now_ms in range(500, SESSION_END_MS, 500):
        renew(world, *alive)
    world.now_ms = SESSION_END_MS

    answer = swept(world)

    row = brake_row(world)
    assert row is not None
    assert (row.cause is Cause.MASS_LOSS) is is_mass_loss
    assert (answer.remedied, answer.look_again_in_ms) == ((5, 5_000) if is_mass_loss else (2 * lost, None))
    # Nothing is lost to the brake: after the hold all of it is remedied.
    for world.now_ms in range(SESSION_END_MS + 500, SESSION_END_MS + 5_500, 500):
        renew(world, *alive)
        swept(world)
    assert len(remedied(world, agents * 2)) == 2 * lost


def test_losses_within_the_window_count_together_and_older_ones_do_not() -> None:
    """Two and three within ten seconds are five; with more time between them they are daily life."""
    for apart_ms, cause in ((9_000, Cause.MASS_LOSS), (11_000, Cause.NONE)):
        world = world_of(20, agents=20, slots=1)
        alive = [f"agent-{number:03}" for number in range(20)]
        for world.now_ms in range(500, apart_ms + SESSION_END_MS + 500, 500):
            renew(world, *(alive[2:] if world.now_ms <= apart_ms else alive[5:]))
            swept(world)
        row = brake_row(world)
        assert (Cause.NONE if row is None else row.cause) is cause, apart_ms


def test_a_mass_loss_is_seen_although_a_batch_takes_only_some_of_the_sessions() -> None:
    """All that are lost are looked at before the first is ended, and none is counted twice."""
    world = world_of(30, agents=30, slots=1, batch_writes_max=20)
    world.now_ms = SESSION_END_MS

    answers = [swept(world) for _ in range(10)]

    assert sum(answer.remedied for answer in answers) == world.limits.brake_canaries
    row = brake_row(world)
    assert row is not None
    assert row.hold_until_led_ms == SESSION_END_MS + world.limits.brake_hold_ms


def test_canaries_that_are_lost_again_prolong_the_hold() -> None:
    """As long as what goes first does not come back well, only a few more are tried."""
    world = world_of(20, agents=20, slots=1)
    world.now_ms = SESSION_END_MS
    swept(world)
    row = brake_row(world)
    assert row is not None
    canary = row.canaries[0]
    assert len(row.canaries) == world.limits.brake_canaries
    with world.batch() as batch:
        step = batch.require_step(canary.job_id, canary.ordinal)
        batch.keep(canary.job_id, canary.ordinal, step, lease_losses=step.lease_losses + 1)
    world.now_ms += world.limits.brake_hold_ms

    answer = swept(world)

    assert (answer.remedied, answer.look_again_in_ms) == (world.limits.brake_canaries, world.limits.brake_hold_ms)
    world.now_ms += world.limits.brake_hold_ms
    assert swept(world).remedied == 20 - 2 * world.limits.brake_canaries


def test_an_offer_without_word_is_sent_again_while_the_brake_holds() -> None:
    """Nothing is remedied by that. One whose time is over is held, and written once."""
    world = World(limits=Limits(session_ttl_ms=3_000))
    for name, over_all_ms in (("patient", 0), ("hurried", 2_000)):
        spec = step_spec(name, schedule_to_close_ms=over_all_ms)
        world.define(DefinitionBody(name, (spec,), b"", b""))
        world.open(f"agent-{name}", (name,))
        world.submit(f"j-{name}", name)
    tokens_before = [world.step(f"j-{name}", name).token for name in ("patient", "hurried")]  # type: ignore[union-attr]  # both were offered
    pass_alive(world, 3_000, "agent-patient", "agent-hurried")
    world.put(keys.BRAKE, Brake(spent=2 * world.limits.remediations_burst_max * brake.COST, led_ms=3_000))

    first = swept(world)
    world.now_ms += 100
    swept(world)

    assert (first.remedied, first.held) == (0, 1)
    resent = world.reader.get(keys.assignment("agent-patient", tokens_before[0], "j-patient", 0))
    assert isinstance(resent, rows.Assignment)
    assert resent.resends == 1
    assert world.step_state("j-hurried", "hurried") == "OFFERED"
    assert [key for key in world.changes if key[:1] in (keys.STEP, keys.TIMER)] == []


@pytest.mark.parametrize(
    ("epoch_began_ms", "heard_in", "expected"),
    [
        # The leader has only begun.
        (SESSION_END_MS - 9_999, 2, Cause.NEW_LEADER),
        (SESSION_END_MS - 10_000, 2, Cause.NONE),
        # It has led for long, and has never heard this session.
        (0, 1, Cause.NEW_LEADER),
    ],
)
def test_the_first_loss_under_a_new_leader_is_tried_with_canaries(
    epoch_began_ms: int, heard_in: int, expected: Cause
) -> None:
    """One agent with much to do is lost: perhaps it is the leader that hears nothing."""
    world = World(limits=Limits(session_ttl_ms=3_000))
    world.epoch = heard_in
    step = step_spec("pay", retry=RETRY, start_to_close_ms=3_600_000)
    world.define(DefinitionBody("single", (step,), b"", b""))
    world.open("agent-000", ("pay",), slots=20)
    for number in range(20):
        world.submit(f"j{number:04}", "single")
        world.report("agent-000", f"j{number:04}", "pay", Started())
    world.epoch = 2
    world.put(keys.EPOCH, epoch_rows.Epoch(2, epoch_began_ms))
    world.now_ms = SESSION_END_MS

    answer = swept(world)

    row = brake_row(world)
    assert row is not None
    assert row.cause is expected
    assert answer.remedied == (5 if expected is Cause.NEW_LEADER else 20)
    world.now_ms += world.limits.brake_hold_ms
    swept(world)
    assert len(remedied(world, 20)) == 20


def test_a_leader_is_new_once() -> None:
    """After its canaries have come back well, further sessions that it has never heard are ended as any other."""
    world = world_of(12, agents=2, slots=6)
    world.epoch = 2
    world.now_ms = SESSION_END_MS
    swept(world)
    world.now_ms += world.limits.brake_hold_ms
    assert len(remedied(world, 12)) == 5

    assert swept(world).remedied == 7


def test_there_is_no_row_while_all_is_well() -> None:
    """Nor while one step is tried again after a failure that its agent reports; and it goes when it says nothing."""
    world = world_of(2, agents=2, slots=1)
    for world.now_ms in range(500, 20_000, 500):
        renew(world, "agent-000", "agent-001")
        swept(world)
        assert brake_row(world) is None
    last_ms = world.now_ms
    for world.now_ms in range(last_ms + 500, last_ms + SESSION_END_MS + 500, 500):
        renew(world, "agent-000")
        swept(world)
    assert brake_row(world) is not None
    last_ms = world.now_ms
    for world.now_ms in range(last_ms + 500, last_ms + 12_000, 500):
        renew(world, "agent-000")
        swept(world)
    assert brake_row(world) is None


def test_a_rule_that_raises_takes_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is judged again and again, and would keep the brake on for all others."""
    world = world_of(1, start_to_close_ms=10_000, remediations_burst_max=2, remediations_per_minute_max=4)
    broken = keys.assignment("agent-000", next(iter(tokens(world))), "j0000", 0)
    pass_alive(world, 10_000, "agent-000")
    world.store.apply([], [broken])
    world.reader = type(world.reader)(world.store)

    decision = decide(world.reader, (Sweep(10),), world.moment(), world.limits, world.rng)

    assert len(decision.failures) == 1
    assert keys.BRAKE not in decision.changes


def rows_put(world: World, ms: int) -> Iterator[bytes]:
    """Keys of the rows that are written while a supervisor looks for so long, as often as it is told to."""
    until_ms = world.now_ms + ms
    while world.now_ms < until_ms:
        answer = swept(world)
        yield from (key for key, row in world.changes.items() if row is not None)
        goes_on = answer.unfinished or answer.overdue > answer.held
        world.now_ms += 20 if goes_on else min(answer.look_again_in_ms or 1_000, 1_000)


@pytest.mark.parametrize(("hold", "ends_one_each_ms"), [("rate", 120), ("locked", None)])
def test_retries_that_came_too_late_are_written_once_while_they_are_held(
    hold: str, ends_one_each_ms: int | None
) -> None:
    """A thousand waited while nobody led, until no attempt could start any more: each stands in line, once."""
    jobs = 1_000
    world = World(limits=Limits(session_ttl_ms=3_000, breaker_outcomes_min=2 * jobs))
    retry = RetrySpec(attempts_max=10, initial_ms=1_000, factor=1.0, time_ms_max=5_000)
    world.define(DefinitionBody("single", (step_spec("pay", retry=retry),), b"", b""))
    world.open("agent-000", ("pay",), slots=jobs)
    for number in range(jobs):
        world.submit(f"j{number:04}", "single")
        world.report("agent-000", f"j{number:04}", "pay", Failed("ServiceDown", "503", retryable=True))
    world.leaderless_ms = 20_000
    if hold == "locked":
        world.put(keys.EPOCH, epoch_rows.Epoch(1, 0, stays=True))
    else:
        world.put(keys.BRAKE, Brake(spent=world.limits.remediations_burst_max * brake.COST))
    # They are lined up: a step and a timer each, and what tells of it.
    lined_up = sum(key[:1] in (keys.STEP, keys.TIMER) for key in rows_put(world, 1_000))
    waiting = [f"j{number:04}" for number in range(jobs) if world.step_state(f"j{number:04}", "pay") == "RETRY_WAIT"]

    written = Counter(key[:1] for key in rows_put(world, 10_000))

    assert len(waiting) > 900
    assert 2 * len(waiting) <= lined_up <= 2 * jobs + 100
    given_up = len(waiting) - sum(world.step_state(job_id, "pay") == "RETRY_WAIT" for job_id in waiting)
    assert given_up == (0 if ends_one_each_ms is None else pytest.approx(10_000 / ends_one_each_ms, abs=2))
    # Those that are given up, each with its step and perhaps a timer; of those that are held no row at all.
    assert written[keys.STEP] == given_up
    assert written[keys.TIMER] <= given_up + 10
    beat = world.reader.get(keys.BEAT)
    assert isinstance(beat, rows.Beat)
    assert beat.held == beat.overdue == pytest.approx(len(waiting) - given_up, abs=10)


def tokens(world: World) -> Iterator[int]:
    """Tokens of all assignments."""
    for key in world.reader.scan(keys.ASSIGNMENT):
        yield keys.parse_assignment(key)[1]


class CountingReader:
    """Counts the rows and keys that are read of another reader."""

    def __init__(self, reader: object) -> None:
        self._reader = reader
        self.gets: list[bytes] = []
        self.scanned: list[bytes] = []

    def get(self, key: bytes) -> Row | None:
        """See `core.reader.Reader`."""
        self.gets.append(key)
        row: Row | None = self._reader.get(key)  # type: ignore[attr-defined]  # any reader will do
        return row

    def scan(self, prefix: bytes, *, after: bytes = b"", before: bytes = b"", reverse: bool = False) -> Iterator[bytes]:
        """See `core.reader.Reader`."""
        found = self._reader.scan(prefix, after=after, before=before, reverse=reverse)  # type: ignore[attr-defined]  # as above
        for key in found:
            self.scanned.append(key)
            yield key

    def count(self, prefix: bytes) -> int:
        """See `core.reader.Reader`."""
        counted: int = self._reader.count(prefix)  # type: ignore[attr-defined]  # any reader will do
        return counted


def reads_of_sweeps(waiting: int) -> tuple[CountingReader, CountingReader]:
    """What is read by a sweep that finds one attempt out of time, and by one that finds nothing."""
    world = world_of(1, start_to_close_ms=10_000)
    timers = [keys.step_timer(rows.Clock.LOG, keys.Duty.JUDGE, 86_400_000 + n, "z", n % 9) for n in range(waiting)]
    world.store.apply([(key, keys.encode_row(rows.Timer())) for key in timers], [])
    world.store.commit()
    pass_alive(world, 10_000, "agent-000")
    due = CountingReader(world.reader)
    decision = decide(due, (Sweep(500),), world.moment(), world.limits, world.rng)
    answer = decision.answers[0]
    assert isinstance(answer, Swept)
    # The session, which lives, and the attempt.
    assert (answer.handled, answer.remedied) == (2, 1)
    for _ in range(2):
        world.one(Sweep(500))
        world.now_ms += 10
    idle = CountingReader(world.reader)
    decide(idle, (Sweep(500),), world.moment(), world.limits, world.rng)
    return due, idle


def test_a_sweep_reads_what_is_due_and_not_what_waits() -> None:
    """Of a hundred thousand steps with distant deadlines it reads the same rows and keys as of ten, to the last one."""
    due, idle = reads_of_sweeps(100_000)
    due_of_few, idle_of_few = reads_of_sweeps(10)

    assert (due.gets, due.scanned) == (due_of_few.gets, due_of_few.scanned)
    assert (idle.gets, idle.scanned) == (idle_of_few.gets, idle_of_few.scanned)
    # The newest and the oldest entry of the ledger, which are one here, tell that none is too old.
    assert [key[:1] for key in idle.gets] == [keys.BRAKE, keys.EPOCH, keys.LEDGER, keys.BEAT]
    # The first of each queue, which is not due: once to see that nothing is to be judged, and once for what is next.
    timers_scanned = Counter(key[:3] for key in idle.scanned if key[:1] == keys.TIMER)
    assert timers_scanned == {b"T\x01\x01": 2, b"T\x01\x02": 2, b"T\x02\x03": 2}
    assert len(idle.scanned) == timers_scanned.total() + 2
