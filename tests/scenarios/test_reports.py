"""Reports: what is late, repeated or from somebody else changes nothing; what ends stays ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stepward.server.core import advance, keys
from stepward.server.core.commands import (
    Accepted,
    AttemptRef,
    AttemptReport,
    AttemptsReported,
    CancelJob,
    Declined,
    DrainSession,
    Failed,
    OpenSession,
    RenewSession,
    ReportAttempts,
    Started,
    Stopped,
    Succeeded,
    Sweep,
    Unknown,
)
from stepward.server.core.decide import decide
from stepward.server.core.limits import Limits
from stepward.server.core.rows import DefinitionBody, Effect, EventType, OnUnknown, Payload, RetrySpec
from tests.core.world import World, actions_of, step_spec
from tests.scenarios.test_timers import new_leader
from tests.scenarios.trips import (
    BROKEN,
    DONE,
    GONE,
    SESSION_END_MS,
    TRIP,
    cancel,
    pass_time,
    single,
    sweep,
    world_with,
)

if TYPE_CHECKING:
    from stepward.server.core.batch import Batch
    from stepward.server.core.rows import Step


def chain(*, retry: RetrySpec | None = None) -> DefinitionBody:
    """Two steps, one after the other."""
    steps = (step_spec("first", dependents=(1,), retry=retry), step_spec("second", needs=(0,)))
    return DefinitionBody("chain", steps, b"", b"")


def observed(world: World, job_id: str) -> list[str]:
    """What late reports said."""
    return [event.detail for _, event in world.events(job_id) if event.type is EventType.StaleReportObserved]


def test_h019_the_late_first_attempt_does_not_move_the_job_again() -> None:
    """H019: attempt 1 is timed out, attempt 2 succeeds, then attempt 1 reports: the next step starts once, from 2."""
    world = world_with(chain(retry=RetrySpec(attempts_max=3, initial_ms=1, cap_ms=1)))
    world.submit("j1", "chain")
    world.report("agent-one", "j1", "first", Started())
    token = world.step("j1", "first").token  # type: ignore[union-attr]  # it was offered
    pass_time(world, 11_000, alive=("agent-one",))
    world.report("agent-one", "j1", "first", Succeeded(Payload(b"2")))
    offered_before = world.step("j1", "second")

    late = world.report("agent-one", "j1", "first", Succeeded(Payload(b"1")), token=token)

    assert late == "STALE_TOKEN"
    assert world.step("j1", "second") == offered_before
    output = world.reader.get(keys.output("j1", 0))
    assert output is not None
    assert output.payload.data == b"2"  # type: ignore[attr-defined]  # an Output row


def test_h019_the_timed_out_attempt_is_told_to_stop() -> None:
    """H019: its assignment is cancelled and keeps its slot until the agent says that it has stopped."""
    world = world_with(single())
    world.submit("j1", "single")
    world.report("agent-one", "j1", "pay", Started())
    pass_time(world, 10_000, alive=("agent-one",))

    cancels = [world.reader.get(key) for key in world.reader.scan(keys.assignments("agent-one"))]

    assert [row.cancel.name for row in cancels] == ["TIMEOUT"]  # type: ignore[union-attr]  # Assignment rows


@pytest.mark.parametrize(
    "event", [DONE, BROKEN, Unknown("u", "m"), Started(), Accepted(), Declined(False), Stopped(True)]
)
@pytest.mark.parametrize("ending", ["completed", "compensated", "cancelled", "failed"])
def test_h021_terminal_is_terminal(event: object, ending: str) -> None:
    """H021: no report, sweep, cancel, lost session or new leader moves a job that has ended."""
    world = ended_world(ending)
    before = world.progress("j1").state, world.progress("j1").ended_wall_ms
    states = [world.step_state("j1", spec.id) for spec in TRIP.steps]

    for spec in TRIP.steps:
        step = world.step("j1", spec.id)
        if step is not None:
            for session_id in ("agent-one", "stranger-agent-01"):
                world.report(session_id, "j1", spec.id, event)  # type: ignore[arg-type]  # one of the events above
    world.one(CancelJob("j1", "again"))
    for _ in range(3):
        pass_time(world, world.now_ms + 200_000)
        new_leader(world)

    assert (world.progress("j1").state, world.progress("j1").ended_wall_ms) == before
    assert [world.step_state("j1", spec.id) for spec in TRIP.steps] == states


def ended_world(ending: str) -> World:
    """A trip that has ended in one of the four ways."""
    body = TRIP if ending != "failed" else without_undo(TRIP)
    world = world_with(body)
    world.submit("j1", "trip")
    world.report("agent-one", "j1", "flight", DONE)
    if ending == "cancelled":
        cancel(world, "j1")
    if ending in ("compensated", "failed"):
        world.report("agent-one", "j1", "car", GONE)
    for _ in range(8):
        for key in list(world.reader.scan(keys.ASSIGNMENT)):
            _, token, job_id, ordinal = keys.parse_assignment(key)
            world.report("agent-one", job_id, TRIP.steps[ordinal].id, DONE, token=token)
    assert world.job_state("j1") == ending.upper()
    return world


def without_undo(body: DefinitionBody) -> DefinitionBody:
    """The same graph, but nothing can be undone."""
    steps = tuple(step_spec(s.id, needs=s.needs, dependents=s.dependents, undo=False) for s in body.steps)
    return DefinitionBody(body.name, steps, b"", b"")


def test_h022_a_result_after_the_timeout_is_kept_as_an_observation() -> None:
    """H022: it is refused and recorded once, where people and compensation can read it."""
    world = world_with(single())
    world.submit("j1", "single")
    world.report("agent-one", "j1", "pay", Started())
    token = world.step("j1", "pay").token  # type: ignore[union-attr]  # it was offered
    pass_time(world, 10_000, alive=("agent-one",))
    before = world.step_state("j1", "pay")

    assert world.report("agent-one", "j1", "pay", DONE, token=token) == "STALE_TOKEN"
    assert world.report("agent-one", "j1", "pay", DONE, token=token) == "STALE_TOKEN"

    assert world.step_state("j1", "pay") == before
    assert observed(world, "j1") == ["success"]


def test_h022_a_result_after_the_session_was_lost_is_kept_too() -> None:
    """H022: also when the same process reports it through a new session."""
    world = world_with(single())
    world.submit("j1", "single")
    world.report("agent-one", "j1", "pay", Started())
    token = world.step("j1", "pay").token  # type: ignore[union-attr]  # it was offered
    world.now_ms = SESSION_END_MS
    sweep(world)
    world.open("agent-one-again", actions_of(single()), queue="elsewhere")

    assert world.report("agent-one-again", "j1", "pay", DONE, token=token) == "STALE_TOKEN"
    assert observed(world, "j1") == ["success"]


def test_h023_one_stale_report_leaves_the_others_standing() -> None:
    """H023: reports that come together are answered one by one."""
    world = world_with(single())
    world.submit("j1", "single")
    world.submit("j2", "single")
    token = world.step("j2", "pay").token  # type: ignore[union-attr]  # it was offered
    refs = [AttemptRef("j1", "pay", 12_345), AttemptRef("no-such-job", "pay", 1), AttemptRef("j2", "pay", token)]

    answer = world.one(ReportAttempts("agent-one", 1, tuple(AttemptReport(ref, DONE) for ref in refs)))

    assert isinstance(answer, AttemptsReported)
    assert [result.result for result in answer.results] == ["STALE_TOKEN", "NOT_FOUND", "RECORDED"]


def test_h032_every_cause_waits_by_the_same_policy() -> None:
    """H032: a reported failure, a timeout and a lost lease wait alike; a drain, which is nobody's fault, not at all.

    Nor does a result that is too large: it would be that again, so there is no other attempt.
    """
    retry = RetrySpec(attempts_max=5, initial_ms=60_000, cap_ms=60_000)
    waits: dict[str, bool] = {}
    for cause in ("report", "unknown", "timeout", "lost", "drain", "too large"):
        world = world_with(single(retry=retry))
        world.limits = Limits(session_ttl_ms=3_000, payload_bytes_max=1_000)
        world.submit("j1", "single")
        world.report("agent-one", "j1", "pay", Started())
        if cause == "report":
            world.report("agent-one", "j1", "pay", BROKEN)
        elif cause == "unknown":
            world.report("agent-one", "j1", "pay", Unknown("Silence", "after sending"))
        elif cause == "timeout":
            pass_time(world, 10_000, alive=("agent-one",))
        elif cause == "lost":
            world.now_ms = SESSION_END_MS
            sweep(world)
        elif cause == "too large":
            world.report("agent-one", "j1", "pay", Succeeded(Payload(b"x" * 1_001)))
        else:
            world.one(DrainSession("agent-one", 1))
            world.report("agent-one", "j1", "pay", Stopped(draining=True))
        step = world.step("j1", "pay")
        assert step is not None
        waits[cause] = step.state.name == "RETRY_WAIT" and step.timer_at_ms - world.now_ms <= 60_000

    without = {"drain": False, "too large": False}
    assert waits == {"report": True, "unknown": True, "timeout": True, "lost": True, **without}


def test_h033_renewing_the_lease_never_extends_the_step() -> None:
    """H033: start-to-close ends the attempt at its time, whatever happened in between."""
    world = world_with(single())
    world.submit("j1", "single")
    world.report("agent-one", "j1", "pay", Started())
    pass_time(world, 5_000, alive=("agent-one",))
    world.one(OpenSession("agent-one", "default", "q", actions_of(single()), 4, "n", "l", "n2"))

    while world.now_ms < 9_500:
        world.now_ms += 500
        sweep(world)
    assert world.step_state("j1", "pay") == "RUNNING"
    world.now_ms = 10_000
    sweep(world)

    assert world.step_state("j1", "pay") == "RETRY_WAIT"


def test_h055_a_sweep_between_any_two_commands_completes_nothing_early() -> None:
    """H055: successors are derived in the batch of the success, so no sweep ever sees a job with nothing to do."""
    world = world_with(TRIP)
    world.submit("j1", "trip")
    for step_id in ("flight", "car", "hotel"):
        world.one(Sweep(100))
        assert world.job_state("j1") == "RUNNING"
        world.report("agent-one", "j1", step_id, DONE)
    world.one(Sweep(100))
    assert (world.job_state("j1"), world.step_state("j1", "receipt")) == ("RUNNING", "OFFERED")

    world.report("agent-one", "j1", "receipt", DONE)

    assert world.job_state("j1") == "COMPLETED"


def test_h057_an_output_over_the_limit_fails_at_once() -> None:
    """H057: it is not sent again for ever: the step fails for good, with size and limit, and the slot is free."""
    world = World(limits=Limits(session_ttl_ms=3_000, payload_bytes_max=1_000))
    world.define(single())
    world.open("agent-one", actions_of(single()), slots=1)
    world.submit("j1", "single")
    world.submit("j2", "single")
    # What becomes ready later stands behind: an undo of the first must not take the slot.
    world.now_ms += 1

    assert world.report("agent-one", "j1", "pay", Succeeded(Payload(b"x" * 1_001))) == "TOO_LARGE"

    failure = world.progress("j1").failure
    assert failure is not None
    assert failure.kind == "RESULT_TOO_LARGE"
    assert "1001" in failure.message
    assert "1000" in failure.message
    assert world.report("agent-one", "j2", "pay", Succeeded(Payload(b"x" * 1_000, "text"))) == "RECORDED"


@pytest.mark.parametrize(
    "event",
    [
        Succeeded(Payload(b"x" * 300_000)),
        Succeeded(Payload(b"not json")),
        Failed("RESULT_TOO_LARGE", "found by the agent", retryable=False, may_have_happened=True),
    ],
)
def test_what_gave_nothing_that_can_be_kept_is_undone_all_the_same(event: object) -> None:
    """The handler ended well, so what it did is done: the step has failed, and its undo runs."""
    world = world_with(single())
    world.submit("j1", "single")

    world.report("agent-one", "j1", "pay", event)  # type: ignore[arg-type]  # one of the events above

    step = world.step("j1", "pay")
    assert step is not None
    assert (step.state.name, step.maybe_done) == ("UNDO_OFFERED", True)


def test_h070_what_a_draining_agent_hands_back_is_ready_at_once() -> None:
    """H070: no attempt is used, no wait is made, and another agent has it in the same batch."""
    world = world_with(single(), agents=("agent-one", "agent-two"), slots=3)
    for n in range(3):
        world.submit(f"j{n}", "single")
    held = [keys.parse_assignment(key) for key in world.reader.scan(keys.assignments("agent-one"))]
    world.one(DrainSession("agent-one", 1))
    for _, token, job_id, _ in held:
        world.report("agent-one", job_id, "pay", Declined(handed_back=True), token=token)

    for _, _, job_id, _ in held:
        step = world.step(job_id, "pay")
        assert step is not None
        assert (step.state.name, step.attempts, step.session_id) == ("OFFERED", 0, "agent-two")


def test_h071_work_killed_by_a_drain_is_never_a_success() -> None:
    """H071: it is ready again with a new token, and no attempt is used; a step that must not be repeated escalates."""
    world = world_with(single(), agents=("agent-one",))
    world.submit("j1", "single")
    world.report("agent-one", "j1", "pay", Started())
    token = world.step("j1", "pay").token  # type: ignore[union-attr]  # it was offered
    world.open("agent-two", actions_of(single()))

    world.one(DrainSession("agent-one", 1))
    world.report("agent-one", "j1", "pay", Stopped(draining=True))

    step = world.step("j1", "pay")
    assert step is not None
    assert (step.state.name, step.attempts, step.maybe_done) == ("OFFERED", 0, True)
    assert (step.session_id, step.token > token) == ("agent-two", True)

    careful = world_with(single(effect=Effect.NON_IDEMPOTENT))
    careful.submit("j1", "single")
    careful.report("agent-one", "j1", "pay", Started())
    careful.one(DrainSession("agent-one", 1))
    careful.report("agent-one", "j1", "pay", Stopped(draining=True))
    assert careful.step_state("j1", "pay") == "ESCALATED"


def test_a_failure_that_may_hide_a_success_is_not_repeated_blindly() -> None:
    """An unknown outcome of a step that must not be repeated waits for a person, or undoes the job if told to."""
    for policy, expected in ((OnUnknown.ESCALATE, "ESCALATED"), (OnUnknown.COMPENSATE, "COMPENSATING")):
        spec = step_spec("pay", effect=Effect.NON_IDEMPOTENT, on_unknown=policy)
        world = world_with(DefinitionBody("single", (spec,), b"", b""))
        world.submit("j1", "single")
        world.report("agent-one", "j1", "pay", Unknown("Silence", "after sending"))

        assert world.job_state("j1") == expected


def test_a_failure_of_a_kind_that_is_not_retried_ends_the_step() -> None:
    """Kinds named in the policy are final, and so is a failure that the agent calls final."""
    for event in (Failed("SoldOut", "none", retryable=True), Failed("Other", "none", retryable=False)):
        world = world_with(single(retry=RetrySpec(attempts_max=5, non_retryable_kinds=("SoldOut",))))
        world.submit("j1", "single")
        world.report("agent-one", "j1", "pay", event)

        assert world.job_state("j1") == "COMPENSATED"


def test_an_exception_that_nobody_classified_may_hide_an_effect() -> None:
    """It is tried again like any failure where that is harmless; when the job is undone, so is this step."""
    broken = Failed("ConnectionResetError", "after sending", retryable=True, may_have_happened=True)
    world = world_with(single(retry=RetrySpec(attempts_max=2, initial_ms=1, cap_ms=1)))
    world.submit("j1", "single")
    world.report("agent-one", "j1", "pay", broken)
    assert world.step_state("j1", "pay") == "RETRY_WAIT"
    pass_time(world, world.now_ms + 500, alive=("agent-one",))

    world.report("agent-one", "j1", "pay", broken)

    assert (world.job_state("j1"), world.step_state("j1", "pay")) == ("COMPENSATING", "UNDO_OFFERED")

    careful = world_with(single(effect=Effect.NON_IDEMPOTENT))
    careful.submit("j1", "single")
    careful.report("agent-one", "j1", "pay", broken)
    assert careful.step_state("j1", "pay") == "ESCALATED"


def test_only_a_draining_session_is_believed_that_it_drains() -> None:
    """H071: an agent that stops everything and takes new work all the same uses up attempts like any other failure."""
    world = world_with(single(retry=RetrySpec(attempts_max=2, initial_ms=1, cap_ms=1)))
    world.submit("j1", "single")
    for _ in range(2):
        world.report("agent-one", "j1", "pay", Started())
        world.report("agent-one", "j1", "pay", Stopped(draining=True))
        pass_time(world, world.now_ms + 500, alive=("agent-one",))

    assert world.step_state("j1", "pay") == "ESCALATED"


def test_an_agent_without_room_is_offered_nothing_until_a_renewal_shows_room() -> None:
    """It hands back what its busy slots cannot take; without this it would be offered the same step at once again."""
    world = world_with(single(retry=RetrySpec(initial_ms=1, cap_ms=1)))
    world.submit("j1", "single")
    world.report("agent-one", "j1", "pay", Declined(handed_back=True))
    for world.now_ms in range(500, 5_000, 500):
        world.one(RenewSession("agent-one", 1, 0, busy_slots=4))
        sweep(world)
    assert world.step_state("j1", "pay") == "READY"

    world.one(RenewSession("agent-one", 1, 0, busy_slots=3))

    assert world.step_state("j1", "pay") == "OFFERED"


def test_h064_a_report_that_raises_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """H064: a rule of ours raises when it has written something; that is rolled back, and the other report counts."""
    world = world_with(single())
    world.submit("j1", "single")
    world.submit("j2", "single")
    succeed = advance.succeed

    def half(batch: Batch, job_id: str, ordinal: int, step: Step, output: Payload, *, attempts: int) -> None:
        succeed(batch, job_id, ordinal, step, output, attempts=attempts)
        assert job_id != "j1"

    monkeypatch.setattr(advance, "succeed", half)
    reports = tuple(AttemptReport(ref, DONE) for ref in (ref_of(world, "j1"), ref_of(world, "j2")))
    decision = decide(world.reader, (ReportAttempts("agent-one", 1, reports),), world.moment(), world.limits, world.rng)

    assert isinstance(decision.answers[0], AttemptsReported)
    assert [result.result for result in decision.answers[0].results] == ["INTERNAL", "RECORDED"]
    assert len(decision.failures) == 1
    assert {key[:1] for key in decision.changes if b"j1" in key} == set()
    assert keys.output("j2", 0) in decision.changes


def ref_of(world: World, job_id: str) -> AttemptRef:
    """The newest assignment of a job's only step."""
    step = world.step(job_id, "pay")
    assert step is not None
    return AttemptRef(job_id, "pay", step.token)
