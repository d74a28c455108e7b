"""The supervisor's rules and those of sessions: bounded, level-triggered, and told apart from what agents say."""

from __future__ import annotations

from stepward.server.core import keys, rows, sessions
from stepward.server.core.commands import (
    AttemptRef,
    AttemptReport,
    AttemptsReported,
    CancelJob,
    CloseStream,
    DrainSession,
    Failed,
    OpenSession,
    RenewSession,
    ReportAttempts,
    SessionRenewed,
    Started,
    Sweep,
    Swept,
)
from stepward.server.core.decide import Moment, decide
from stepward.server.core.limits import Limits
from stepward.server.core.rejections import Reason, Rejection
from stepward.server.core.rows import CancelReason, EventType
from stepward.server.store.live import LiveRows
from tests.core.world import DAY_MS, World, actions_of
from tests.scenarios.trips import DONE, SESSION_END_MS, TRIP, TTL_MS, pass_time, renew, single, sweep, world_with


def held(world: World, session_id: str = "agent-one") -> list[AttemptRef]:
    """What the rows say that a session holds."""
    found = [keys.parse_assignment(key) for key in world.reader.scan(keys.assignments(session_id))]
    return [AttemptRef(job_id, "pay", token) for _, token, job_id, _ in found]


def test_a_sweep_is_bounded_and_the_rest_follows() -> None:
    """Ten queue timeouts are due; a sweep of four takes four, says what is left, and the next ones go on."""
    world = World()
    world.define(single())
    for n in range(10):
        world.submit(f"j{n}", "single")
    world.now_ms = DAY_MS

    answers = [world.one(Sweep(4)) for _ in range(4)]

    assert [(a.handled, a.overdue) for a in answers if isinstance(a, Swept)] == [(4, 6), (4, 2), (2, 0), (0, 0)]
    assert {world.job_state(f"j{n}") for n in range(10)} == {"COMPENSATED"}
    failure = world.progress("j0").failure
    assert failure is not None
    assert failure.kind == "QUEUE_TIMEOUT"


def test_the_beat_is_written_once_a_second_and_otherwise_nothing() -> None:
    """A supervisor that finds nothing due costs one small batch a second."""
    world = World()
    batches = 0
    for world.now_ms in range(0, 10_000, 100):
        sweep(world)
        batches += bool(world.changes)

    assert batches == 10
    beat = world.reader.get(keys.BEAT)
    assert isinstance(beat, rows.Beat)
    assert (beat.beats, beat.led_ms) == (10, 9_000)


def test_a_sweep_says_when_to_come_back() -> None:
    """The earliest timer on each clock."""
    world = world_with(single())
    world.submit("j1", "single")

    answer = world.one(Sweep(100))

    assert isinstance(answer, Swept)
    assert (answer.next_due_led_ms, answer.next_due_log_ms) == (TTL_MS, None)


def test_heartbeats_are_recorded_now_and_then() -> None:
    """One that comes soon after the recorded one costs no batch; every ttl/6 is recorded."""
    world = world_with(single())
    recorded = 0
    for world.now_ms in range(0, 3_000, 100):
        renew(world, "agent-one")
        recorded += bool(world.changes)

    assert recorded == 7


def test_nothing_is_offered_to_a_session_that_went_silent() -> None:
    """Its stream may be open, but its last heartbeat is older than ttl/3."""
    world = world_with(single())
    world.now_ms = TTL_MS // 3 + 1
    world.submit("j1", "single")
    assert world.step_state("j1", "pay") == "READY"

    renew(world, "agent-one")

    assert world.step_state("j1", "pay") == "OFFERED"


def test_nothing_is_offered_to_a_closed_stream_or_a_draining_agent() -> None:
    """Until there is a newer stream; a drain is for good."""
    world = world_with(single())
    world.one(CloseStream("agent-one", 1))
    world.submit("j1", "single")
    assert world.step_state("j1", "pay") == "READY"
    generation = world.open("agent-one", actions_of(single()))
    assert (generation, world.step_state("j1", "pay")) == (2, "OFFERED")

    world.one(DrainSession("agent-one", 2))
    world.submit("j2", "single")

    assert world.step_state("j2", "pay") == "READY"


def test_a_drained_session_that_holds_nothing_ends_with_its_stream() -> None:
    """There is nothing to wait for: no lease has to run out."""
    world = world_with(single())
    world.one(DrainSession("agent-one", 1))
    world.one(CloseStream("agent-one", 1))

    assert world.reader.get(keys.session("agent-one")) is None
    assert world.reader.count(keys.TIMER) == 0


def test_an_older_stream_cannot_renew_or_close() -> None:
    """The generation tells streams of one session apart."""
    world = world_with(single())
    world.open("agent-one", actions_of(single()))

    answer = world.one(RenewSession("agent-one", 1, 0))
    world.one(CloseStream("agent-one", 1))

    assert isinstance(answer, Rejection)
    assert answer.reason is Reason.SESSION_ENDED
    session = world.reader.get(keys.session("agent-one"))
    assert isinstance(session, rows.Session)
    assert session.connected


def test_a_session_keeps_the_ttl_that_it_was_granted() -> None:
    """H006: another default applies to new sessions only."""
    world = world_with(single())
    world.limits = type(world.limits)(session_ttl_ms=60_000)
    world.one(OpenSession("agent-one", "default", "q", ("pay",), 4, "n", "l", "n1"))

    session = world.reader.get(keys.session("agent-one"))

    assert isinstance(session, rows.Session)
    assert session.ttl_ms == TTL_MS


def test_digests_that_differ_ask_for_the_whole_list() -> None:
    """And equal ones do not."""
    world = world_with(single())
    world.submit("j1", "single")
    digest = sessions.held_digest(held(world))

    assert world.one(RenewSession("agent-one", 1, digest)) == SessionRenewed(send_held=False)
    assert world.one(RenewSession("agent-one", 1, digest ^ 1)) == SessionRenewed(send_held=True)


def test_an_offer_that_the_agent_lacks_is_sent_again_with_its_token() -> None:
    """The assignment row is written again, which every node takes as something to send."""
    world = world_with(single())
    world.submit("j1", "single")
    world.now_ms = 600
    renew(world, "agent-one")
    before = held(world)

    world.one(RenewSession("agent-one", 1, 0, held=()))

    assert held(world) == before
    assert len([row for row in world.changes.values() if isinstance(row, rows.Assignment)]) == 1


def test_a_held_offer_that_starts_at_once_is_running() -> None:
    """A renewal that shows the token held is as good as a report that it started."""
    world = world_with(single())
    world.submit("j1", "single")

    world.one(RenewSession("agent-one", 1, 0, held=tuple(held(world))))

    assert world.step_state("j1", "pay") == "RUNNING"


def test_what_an_agent_holds_and_no_row_knows_is_to_stop() -> None:
    """The answer to the renewal names it, and the stream sends a cancel."""
    world = world_with(single())
    world.submit("j1", "single")
    stray = AttemptRef("j0", "pay", 5)

    answer = world.one(RenewSession("agent-one", 1, 0, held=(*held(world), stray)))

    assert answer == SessionRenewed(send_held=False, unknown=(stray,))


def test_a_started_attempt_that_the_agent_lacks_is_unknown() -> None:
    """Its outcome would have been held until it was acknowledged, so nobody will ever report it."""
    world = world_with(single())
    world.submit("j1", "single")
    world.report("agent-one", "j1", "pay", Started())
    world.now_ms = 600
    renew(world, "agent-one")

    world.one(RenewSession("agent-one", 1, 0, held=()))

    step = world.step("j1", "pay")
    assert step is not None
    assert (step.state.name, step.maybe_done, step.failure and step.failure.kind) == ("RETRY_WAIT", True, "NOT_HELD")
    assert held(world) == []


def test_a_session_that_is_over_is_not_made_anew() -> None:
    """Its agent would take the new one for the old and go on with what was given to others."""
    world = world_with(single())
    world.now_ms = SESSION_END_MS
    sweep(world)
    assert world.reader.get(keys.session("agent-one")) is None

    answer = world.one(OpenSession("agent-one", "default", "q", ("pay",), 4, "n", "l", "n1", known_generation=1))

    assert isinstance(answer, Rejection)
    assert answer.reason is Reason.SESSION_ENDED
    assert world.reader.get(keys.session("agent-one")) is None


def test_a_draining_agent_that_comes_back_is_still_draining() -> None:
    """A newer stream of it is offered nothing."""
    world = world_with(single())
    world.one(DrainSession("agent-one", 1))
    world.open("agent-one", actions_of(single()))
    world.submit("j1", "single")

    assert world.step_state("j1", "pay") == "READY"


def test_the_fence_follows_the_ttl_that_the_session_was_granted() -> None:
    """Its handlers go on for one more TTL of their own, whatever the node's default has become."""
    world = world_with(single())
    world.submit("j1", "single")
    world.report("agent-one", "j1", "pay", Started())
    world.limits = type(world.limits)(session_ttl_ms=1_000)
    world.now_ms = SESSION_END_MS
    sweep(world)

    step = world.step("j1", "pay")

    assert step is not None
    assert step.fence_at_led_ms == SESSION_END_MS + TTL_MS + world.limits.kill_grace_ms


def test_a_sweep_is_bounded_in_rows_too() -> None:
    """Sessions with many assignments share the bound; what is left follows with the next sweeps."""
    world = World(limits=Limits(session_ttl_ms=3_000, batch_writes_max=40, mass_loss_sessions_min=6))
    world.define(single())
    for n in range(5):
        world.open(f"agent-{n}", ("pay",), slots=20)
    for n in range(100):
        world.submit(f"j{n:03d}", "single")
    world.now_ms = SESSION_END_MS
    sizes = []
    while world.reader.count(keys.SESSION):
        sweep(world)
        sizes.append(len(world.changes))

    assert len(sizes) > 5
    assert max(sizes) < 80
    assert {world.step_state(f"j{n:03d}", "pay") for n in range(100)} == {"RETRY_WAIT"}


def test_reports_that_are_too_much_for_one_batch_are_asked_for_again() -> None:
    """They are answered INTERNAL, which an agent repeats; none is lost and none is recorded twice."""
    world = World(limits=type(World().limits)(session_ttl_ms=3_000, batch_writes_max=40))
    world.define(single())
    world.open("agent-one", ("pay",), slots=20)
    for n in range(20):
        world.submit(f"j{n:02d}", "single")
    reports = tuple(AttemptReport(ref, DONE) for ref in held(world))

    answer = world.one(ReportAttempts("agent-one", 1, reports))

    assert isinstance(answer, AttemptsReported)
    results = [result.result for result in answer.results]
    assert set(results) == {"RECORDED", "INTERNAL"}
    assert len(held(world)) == results.count("INTERNAL")


def test_an_offer_without_word_is_sent_again_then_withdrawn() -> None:
    """It may have started, so it never goes back by itself: only the agent's word or its end decides."""
    world = world_with(single())
    world.submit("j1", "single")
    token = held(world)[0].token

    pass_time(world, 10 * TTL_MS, alive=("agent-one",))

    kinds = [event.type for _, event in world.events("j1")]
    assert kinds.count(EventType.StepOfferResent) >= world.limits.resends_max
    assert kinds.count(EventType.StepOfferWithdrawn) == 1
    assert (world.step_state("j1", "pay"), held(world)[0].token) == ("OFFERED", token)
    row = next(world.reader.get(key) for key in world.reader.scan(keys.ASSIGNMENT))
    assert isinstance(row, rows.Assignment)
    assert row.cancel is CancelReason.STALE


def test_the_oldest_ready_step_goes_first_to_the_agent_with_most_room() -> None:
    """Across actions, and spread over agents."""
    world = World()
    world.define(TRIP)
    for n in range(4):
        world.submit(f"j{n}", "trip")
    world.open("small", actions_of(TRIP), slots=1)
    assert world.step_state("j0", "flight") == "OFFERED"

    world.open("large", actions_of(TRIP), slots=2)

    holders = {job_id: session_id for session_id, _, job_id, _ in map(keys.parse_assignment, world.reader.scan(b"A"))}
    assert holders == {"j0": "small", "j1": "large", "j2": "large"}


def test_an_agent_gets_only_what_it_can_run() -> None:
    """By queue, action and namespace."""
    world = World()
    world.define(single())
    world.submit("j1", "single")
    world.open("other-action", ("ship",))
    world.open("other-queue", ("pay",), queue="elsewhere")
    world.one(OpenSession("other-namespace", "blue", "q", ("pay",), 4, "n", "l", "n1"))
    assert world.step_state("j1", "pay") == "READY"

    world.open("right-one", ("pay",))

    assert world.step_state("j1", "pay") == "OFFERED"


def test_a_rule_that_raises_harms_its_own_command_only() -> None:
    """H064 in small: the command is rolled back and answered INTERNAL, the others of the batch stand."""
    world = world_with(single())
    world.submit("j1", "single")
    world.report("agent-one", "j1", "pay", Started())
    world.store.apply([], [keys.job("j1")])
    world.reader = LiveRows(world.store)
    moment = Moment(world.sequence + 1, 1, 0, 0, 0, 0, 0)

    decision = decide(
        world.reader, (CancelJob("j1", ""), CancelJob("nobody", ""), Sweep(10)), moment, world.limits, world.rng
    )

    internal, not_found, swept = decision.answers
    assert isinstance(internal, Rejection)
    assert isinstance(not_found, Rejection)
    assert (internal.reason, not_found.reason) == (Reason.INTERNAL, Reason.JOB_NOT_FOUND)
    assert isinstance(swept, Swept)
    assert len(decision.failures) == 1
    assert not any(key.startswith(keys.PROGRESS) for key in decision.changes)


def test_one_poisoned_timer_does_not_stop_the_others() -> None:
    """A subject whose rows are broken is rolled back alone; the sweep goes on behind it."""
    world = world_with(single())
    world.submit("j1", "single")
    world.submit("j2", "single")
    world.store.apply([], [keys.assignment("agent-one", held(world)[0].token, "j1", 0)])
    world.reader = LiveRows(world.store)
    late = SESSION_END_MS - 1
    moment = Moment(world.sequence + 1, 1, 0, late, late, late, late)

    decision = decide(world.reader, (Sweep(10),), moment, world.limits, world.rng)

    assert len(decision.failures) == 1
    assert any(key.startswith(keys.STEP + b"j2") for key in decision.changes)


def test_what_is_due_on_log_time_has_its_share_of_a_sweep() -> None:
    """Many sessions end at once, and a retry whose wait is over does not wait for the last of them."""
    world = world_with(single())
    for number in range(5):
        world.open(f"idle-{number}", ("nothing",))
    world.submit("j1", "single")
    world.report("agent-one", "j1", "pay", Failed("Busy", "", retryable=True))
    world.now_ms = 60_000

    world.one(Sweep(2))

    assert world.step_state("j1", "pay") == "READY"
