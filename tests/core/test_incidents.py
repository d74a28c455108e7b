"""An incident is open for each step that waits for a person; whatever ends the wait resolves it, with who and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stepward.server.core import incidents, invariants, keys, ledger_rows, notices
from stepward.server.core.batch import NO_TIMER
from stepward.server.core.commands import (
    CancelJob,
    Failed,
    IncidentResolved,
    MarkNotices,
    NoticesMarked,
    PauseJob,
    ResolveIncident,
    RetryStep,
    SkipStep,
    Started,
    Succeeded,
    Sweep,
    TerminateJob,
    Unknown,
)
from stepward.server.core.limits import Limits
from stepward.server.core.parts import By, Remedy, Resolution, Trouble
from stepward.server.core.rejections import Reason, Rejection
from stepward.server.core.rows import (
    NO_OUTPUT,
    DefinitionBody,
    Effect,
    EventType,
    JobState,
    OnDeadline,
    Payload,
    StepState,
)
from tests.core.test_patrol import beat, lose_timer
from tests.core.world import DAY_MS, World, actions_of, step_spec

if TYPE_CHECKING:
    from stepward.server.core.commands import AnyCommand
    from stepward.server.core.ledger_rows import Incident

AGENT = "agent-one"
ONCE = Effect.NON_IDEMPOTENT
TRIP = DefinitionBody(
    "trip", (step_spec("flight", dependents=(1,)), step_spec("hotel", needs=(0,), effect=ONCE)), b"", b""
)
SHORT = DefinitionBody("short", TRIP.steps, b"", b"", deadline_ms=1_000, on_deadline=OnDeadline.COMPENSATE)
FAN = DefinitionBody("fan", tuple(step_spec(f"s{n}", effect=ONCE) for n in range(30)), b"", b"")


def world_of(body: DefinitionBody = TRIP, **bounds: int) -> World:
    world = World(limits=Limits(**{"session_ttl_ms": 40 * DAY_MS, **bounds}))
    world.define(body)
    world.open(AGENT, actions_of(body), slots=100)
    return world


def escalate(world: World, job_id: str, *, body: DefinitionBody = TRIP) -> None:
    """The flight is booked, and nobody knows whether the hotel is."""
    world.submit(job_id, body.name)
    world.report(AGENT, job_id, "flight", Succeeded(Payload(b"1")))
    world.report(AGENT, job_id, "hotel", Started())
    world.report(AGENT, job_id, "hotel", Unknown("NoAnswer", "the hotel hung up"))


def fail_undo(world: World, job_id: str) -> None:
    """The undo of the flight fails for good."""
    escalate(world, job_id)
    world.one(CancelJob(job_id, ""))
    world.report(AGENT, job_id, "hotel", Succeeded(Payload(b"1")))
    world.report(AGENT, job_id, "flight", Failed("Closed", "no refund", retryable=False))


def incident(world: World, number: int) -> Incident:
    found = incidents.find(world.reader, number)
    assert found is not None
    return found


def check(world: World) -> None:
    assert invariants.violations(world.reader, led_ms=world.now_ms) == []


def resolve(number: int, how: Resolution, *, undone: bool = False) -> ResolveIncident:
    return ResolveIncident(number, how, NO_OUTPUT, undone, "because", "ann")


def entries(world: World) -> list[ledger_rows.LedgerEntry]:
    found = [world.reader.get(key) for key in list(world.reader.scan(keys.LEDGER))]
    return [row for row in found if isinstance(row, ledger_rows.LedgerEntry)]


def test_an_incident_is_opened_with_the_wait() -> None:
    """It says where, since when and why; until then there is none."""
    world = world_of()
    world.submit("0-a", "trip")
    assert incidents.counts(world.reader) == ledger_rows.IncidentCounts()
    world.now_ms = 500

    escalate(world, "0-b")

    opened = incident(world, 1)
    assert (opened.job_id, opened.step_id, opened.ordinal, opened.trouble) == (
        "0-b",
        "hotel",
        1,
        Trouble.ATTEMPT_UNKNOWN,
    )
    assert opened.failure is not None
    assert opened.failure.message == "the hotel hung up"
    assert (opened.resolved_wall_ms, opened.how, opened.by) == (0, Remedy.NONE, None)
    assert incidents.id_of(1, "0-b") == "i0-1"
    assert incidents.counts(world.reader).open == 1
    check(world)


VERBS: list[tuple[AnyCommand, Remedy, str, str]] = [
    (RetryStep("0-a", "hotel", "because", "ann"), Remedy.RETRY, "OFFERED", "RUNNING"),
    (SkipStep("0-a", "hotel", NO_OUTPUT, False, "because", "ann"), Remedy.CONTINUE, "SKIPPED", "COMPLETED"),
    (CancelJob("0-a", "because", "ann"), Remedy.CANCEL, "UNDO_OFFERED", "COMPENSATING"),
    (TerminateJob("0-a", "because", "ann"), Remedy.FAIL, "FAILED", "FAILED"),
    (resolve(1, Resolution.RETRY), Remedy.RETRY, "OFFERED", "RUNNING"),
    (resolve(1, Resolution.SKIP), Remedy.CONTINUE, "SKIPPED", "COMPLETED"),
    (resolve(1, Resolution.COMPENSATE), Remedy.COMPENSATE, "UNDO_OFFERED", "COMPENSATING"),
    (resolve(1, Resolution.FAIL), Remedy.FAIL, "FAILED", "FAILED"),
]


@pytest.mark.parametrize(("verb", "how", "step", "job"), VERBS, ids=lambda value: str(value)[:40])
def test_whatever_ends_the_wait_resolves_it(verb: AnyCommand, how: Remedy, step: str, job: str) -> None:
    """With what was done, who did it and why; in the ledger it stands with the states before and after."""
    world = world_of()
    escalate(world, "0-a")
    before = len(entries(world))
    world.now_ms = 700

    answer = world.one(verb)

    assert not isinstance(answer, Rejection), answer
    resolved = incident(world, 1)
    assert (resolved.how, resolved.by, resolved.actor, resolved.reason) == (how, By.PERSON, "ann", "because")
    assert resolved.resolved_wall_ms == resolved.opened_wall_ms + 700
    assert incidents.counts(world.reader).open == 0
    assert (world.step_state("0-a", "hotel"), world.job_state("0-a")) == (step, job)
    entry = entries(world)[before]
    assert (entry.remedy, entry.by, entry.actor, entry.reason) == (how, By.PERSON, "ann", "because")
    assert (entry.step_before, entry.job_before.name, entry.job_after.name) == (StepState.ESCALATED, "ESCALATED", job)
    check(world)


def test_a_deadline_resolves_it_without_a_person() -> None:
    """The supervisor did it; no person is named."""
    world = world_of(SHORT)
    escalate(world, "0-a", body=SHORT)
    world.now_ms = 1_000
    world.one(Sweep(100))

    resolved = incident(world, 1)
    assert (resolved.how, resolved.by, resolved.actor) == (Remedy.COMPENSATE, By.SUPERVISOR, "")
    assert not [entry for entry in entries(world) if entry.by is By.PERSON]
    # That of the deadline is told of the job; its step adds none of its own.
    assert not [entry for entry in entries(world) if entry.remedy is Remedy.COMPENSATE and entry.step_id]
    check(world)


@pytest.mark.parametrize(
    ("resolution", "undone", "state", "how"),
    [
        (Resolution.RETRY, False, "UNDO_OFFERED", Remedy.RETRY),
        (Resolution.SKIP, True, "COMPENSATED", Remedy.CONTINUE),
        (Resolution.SKIP, False, "UNDO_SKIPPED", Remedy.CONTINUE),
        (Resolution.FAIL, False, "UNDO_SKIPPED", Remedy.FAIL),
    ],
)
def test_an_undo_that_failed_is_resolved(resolution: Resolution, undone: bool, state: str, how: Remedy) -> None:
    """Its incident is a second one of the job; the first was resolved by the cancel."""
    world = world_of()
    fail_undo(world, "0-a")
    assert incident(world, 1).how is Remedy.CANCEL
    assert incident(world, 2).trouble is Trouble.UNDO_FAILED
    check(world)

    answer = world.one(resolve(2, resolution, undone=undone))

    assert answer == IncidentResolved("0-a", already=False)
    assert world.step_state("0-a", "flight") == state
    assert incident(world, 2).how is how
    check(world)


def test_what_cannot_be_done_is_refused_and_says_what_can() -> None:
    """The incident stays open, and nothing has changed."""
    world = world_of()
    fail_undo(world, "0-a")
    for resolution, text in (
        (Resolution.COMPENSATE, "it is its undo that waits"),
        (Resolution.APPROVE, "waits for appr"),
    ):
        answer = world.one(resolve(2, resolution))
        assert isinstance(answer, Rejection)
        assert answer.reason is Reason.INCIDENT_STATE
        assert text in answer.message
        assert answer.metadata == {"incident_id": "i0-2", "job_id": "0-a"}
    assert incidents.counts(world.reader).open == 1
    check(world)


@pytest.mark.parametrize("number", [0, 3, 1 << 63])
def test_there_is_no_such_incident(number: int) -> None:
    """Also for a number that no incident can have."""
    world = world_of()
    escalate(world, "0-a")

    answer = world.one(resolve(number, Resolution.RETRY))

    assert isinstance(answer, Rejection)
    assert answer.reason is Reason.INCIDENT_NOT_FOUND


def test_what_was_resolved_is_resolved_once() -> None:
    """The second decision does nothing, not even to a newer incident of the same step."""
    world = world_of()
    escalate(world, "0-a")
    world.one(resolve(1, Resolution.RETRY))
    world.report(AGENT, "0-a", "hotel", Started())
    world.report(AGENT, "0-a", "hotel", Unknown("NoAnswer", "again"))
    assert incidents.counts(world.reader) == ledger_rows.IncidentCounts(newest=2, open=1, newest_notice=3)

    assert world.one(resolve(1, Resolution.FAIL)) == IncidentResolved("0-a", already=True)

    assert incident(world, 1).how is Remedy.RETRY
    assert world.step_state("0-a", "hotel") == "ESCALATED"
    check(world)


@pytest.mark.parametrize(
    ("proposed", "state", "job"),
    [
        (Remedy.COMPENSATE, "UNDO_OFFERED", "COMPENSATING"),
        (Remedy.CONTINUE, "SKIPPED", "COMPLETED"),
        (Remedy.FAIL, "FAILED", "FAILED"),
    ],
)
def test_a_person_approves_what_was_proposed(proposed: Remedy, state: str, job: str) -> None:
    """And it is done as if it had been asked for by name."""
    world = world_of()
    escalate(world, "0-a")
    world.one(resolve(1, Resolution.RETRY))
    with world.batch() as batch:
        step = batch.require_step("0-a", 1)
        batch.draft.delete(keys.assignment(step.session_id, step.token, "0-a", 1))
        batch.move("0-a", 1, step, StepState.ESCALATED, NO_TIMER, trouble=Trouble.HEARTBEAT, proposed=proposed)
        batch.put_progress("0-a", batch.progress("0-a"), state=JobState.ESCALATED)
    assert (incident(world, 2).proposed, incident(world, 2).trouble) == (proposed, Trouble.HEARTBEAT)

    world.one(resolve(2, Resolution.APPROVE))

    assert (world.step_state("0-a", "hotel"), world.job_state("0-a")) == (state, job)
    assert incident(world, 2).how is proposed
    check(world)


def test_a_paused_job_keeps_its_incident() -> None:
    """Pausing answers nobody's question; a skip in a paused job does."""
    world = world_of()
    escalate(world, "0-a")
    world.one(PauseJob("0-a", "", "ann"))
    assert incidents.counts(world.reader).open == 1
    check(world)

    world.one(resolve(1, Resolution.SKIP))

    assert incidents.counts(world.reader).open == 0
    check(world)


def test_who_ended_a_wide_job_is_told_at_its_last_step() -> None:
    """What a person began and sweeps went on with is his, in every incident and in the ledger."""
    world = world_of(FAN, activation_slice=7)
    world.submit("0-a", "fan")
    for _ in range(5):
        world.one(Sweep(100))
    for number in range(30):
        world.report(AGENT, "0-a", f"s{number}", Started())
        world.report(AGENT, "0-a", f"s{number}", Unknown("NoAnswer", ""))
    assert incidents.counts(world.reader).open == 30
    check(world)

    world.one(TerminateJob("0-a", "because", "ann"))
    assert 0 < incidents.counts(world.reader).open < 30
    while world.job_state("0-a") != "FAILED":
        world.one(Sweep(100))

    assert incidents.counts(world.reader).open == 0
    resolved = [incident(world, number) for number in range(1, 31)]
    assert {(one.how, one.by, one.actor, one.reason) for one in resolved} == {
        (Remedy.FAIL, By.PERSON, "ann", "because")
    }
    assert [entry.by for entry in entries(world)[-30:]] == [By.PERSON] * 30
    check(world)


def test_what_a_person_began_is_not_taken_for_what_a_sweep_does_next() -> None:
    """The same sweep goes on with his walk, and meets a deadline, which is nobody's doing."""
    world = world_of(SHORT, activation_slice=7)
    world.define(FAN)
    escalate(world, "0-b", body=SHORT)
    world.submit("0-a", "fan")
    for _ in range(5):
        world.one(Sweep(100))
    world.now_ms = 1_000
    world.one(TerminateJob("0-a", "because", "ann"))
    assert world.job_state("0-a") == "COMPENSATING"

    world.one(Sweep(100))

    assert (incident(world, 1).how, incident(world, 1).by) == (Remedy.COMPENSATE, By.SUPERVISOR)
    assert incident(world, 1).actor == ""


def test_behind_the_point_of_no_return_nothing_is_undone() -> None:
    """What was decided there can be tried again, passed over or ended."""
    body = DefinitionBody(
        "pivot",
        (
            step_spec("flight", dependents=(1,), effect=Effect.PIVOT, undo=False),
            step_spec("hotel", needs=(0,), effect=ONCE),
        ),
        b"",
        b"",
    )
    world = world_of(body)
    escalate(world, "0-a", body=body)

    answer = world.one(resolve(1, Resolution.COMPENSATE))

    assert isinstance(answer, Rejection)
    assert answer.reason is Reason.JOB_STATE
    assert "point of no return" in answer.message
    assert incidents.counts(world.reader).open == 1
    assert world.one(resolve(1, Resolution.SKIP)) == IncidentResolved("0-a", already=False)
    check(world)


@pytest.mark.parametrize(
    ("verb", "how"),
    [
        (resolve(1, Resolution.COMPENSATE), Remedy.COMPENSATE),
        (resolve(1, Resolution.FAIL), Remedy.FAIL),
        (CancelJob("0-a", "because", "ann"), Remedy.CANCEL),
    ],
    ids=["compensate", "fail", "cancel"],
)
def test_h054_a_stuck_job_is_an_incident_of_its_own(verb: AnyCommand, how: Remedy) -> None:
    """It names the job and no step; it can be undone, ended or cancelled, and nothing else."""
    world = world_of()
    world.submit("0-a", "trip")
    lose_timer(world, "0-a", "flight")
    with world.batch() as batch:
        batch.draft.delete(keys.step("0-a", 0))
    assert beat(world) == ("0-a",)
    found = incident(world, 1)
    assert (found.trouble, found.step_id, found.ordinal) == (Trouble.STUCK, "", -1)
    assert [(entry.trouble, entry.remedy) for entry in entries(world)] == [(Trouble.STUCK, Remedy.ESCALATE)]
    for refused in (Resolution.RETRY, Resolution.SKIP, Resolution.APPROVE):
        answer = world.one(resolve(1, refused))
        assert isinstance(answer, Rejection)
        assert answer.reason is Reason.INCIDENT_STATE

    answer = world.one(verb)

    assert not isinstance(answer, Rejection), answer
    assert (incident(world, 1).how, incident(world, 1).actor) == (how, "ann")
    assert incidents.counts(world.reader).open == 0


def test_every_act_stands_in_the_history_of_its_job() -> None:
    """Who had it undone, and why, is told where a person looks first."""
    world = world_of()
    escalate(world, "0-a")
    world.one(resolve(1, Resolution.COMPENSATE))

    told = [event for _, event in world.events("0-a") if event.type is EventType.IncidentResolved]
    assert [(event.ordinal, event.actor, event.detail) for event in told] == [(1, "ann", "because")]


def test_incidents_go_with_their_job_and_numbers_never_come_back() -> None:
    """After the time for which an ended job is kept nothing of it is left, and the next one has a new number."""
    world = world_of(retention_ms=DAY_MS)
    escalate(world, "0-a")
    world.one(TerminateJob("0-a", "because", "ann"))
    assert incidents.find(world.reader, 1) is not None
    world.now_ms = DAY_MS
    for _ in range(3):
        world.one(Sweep(100))

    assert [world.store.count(kind) for kind in (keys.INCIDENT, keys.INCIDENT_OF, keys.INCIDENT_OPEN)] == [0, 0, 0]
    escalate(world, "0-b")
    assert incident(world, 2).job_id == "0-b"
    check(world)


def test_a_step_that_waited_before_there_were_incidents() -> None:
    """Rows of an older version have none; whatever ends the wait does so all the same."""
    world = world_of()
    escalate(world, "0-a")
    with world.batch() as batch:
        batch.keep("0-a", 1, batch.require_step("0-a", 1), incident=0)

    assert not isinstance(world.one(RetryStep("0-a", "hotel", "", "ann")), Rejection)


def told(world: World) -> list[tuple[int, int, bool]]:
    return [(number, row.incident, row.resolved) for number, row in notices.behind(world.reader, 0, 100)]


def test_each_opening_and_each_resolution_is_a_notice() -> None:
    """In order, each with the next number."""
    world = world_of()
    escalate(world, "0-a")
    escalate(world, "0-b")
    world.one(resolve(1, Resolution.RETRY))

    assert told(world) == [(1, 1, False), (2, 2, False), (3, 1, True)]
    assert [number for number, _ in notices.behind(world.reader, 1, 1)] == [2]


def test_notices_are_kept_up_to_their_bound() -> None:
    """At the bound the first is there, one past it is gone."""
    world = world_of(notices_max=3)
    for job_id in ("0-a", "0-b", "0-c"):
        escalate(world, job_id)
    assert [number for number, _, _ in told(world)] == [1, 2, 3]

    escalate(world, "0-d")

    assert [number for number, _, _ in told(world)] == [2, 3, 4]
    check(world)


def test_the_cursor_never_goes_back() -> None:
    """Who marks late, after a change of leaders, changes nothing; what was given up is counted once."""
    world = world_of()
    assert notices.cursor(world.reader) is None
    assert world.one(MarkNotices(0, 0)) == NoticesMarked(0)
    assert world.one(MarkNotices(5, 2)) == NoticesMarked(5)
    assert world.one(MarkNotices(4, 3)) == NoticesMarked(5)
    assert world.one(MarkNotices(5, 1)) == NoticesMarked(5)

    assert notices.cursor(world.reader) == ledger_rows.NoticeCursor(done=5, given_up=2)
