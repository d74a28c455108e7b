"""Every remedy stands in the ledger with its evidence, for as long and as many as are kept, and nothing else does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stepward.server.core import invariants, keys, ledger, ledger_rows
from stepward.server.core.batch import Cause
from stepward.server.core.commands import ProgressMade, Started, Succeeded, Sweep, Swept
from stepward.server.core.draft import Draft
from stepward.server.core.limits import Limits
from stepward.server.core.parts import By, Part, Remedy, Trouble
from stepward.server.core.rows import Clock, DefinitionBody, Failure, JobState, Payload, StepState
from tests.core.world import DAY_MS, WALL_MS, World, actions_of, step_spec

if TYPE_CHECKING:
    from stepward.server.core.ledger_rows import LedgerEntry

AGENT = "agent-one"
PAIR = DefinitionBody(
    "pair", (step_spec("a", dependents=(1,), heartbeat_ms=5_000), step_spec("b", needs=(0,))), b"", b""
)


def world_of(**bounds: int) -> World:
    """One job whose first step is at work; the session outlives every test."""
    world = World(limits=Limits(**{"session_ttl_ms": 40 * DAY_MS, "retention_ms": DAY_MS, **bounds}))
    world.define(PAIR)
    world.open(AGENT, actions_of(PAIR))
    world.submit("0-a", "pair")
    world.report(AGENT, "0-a", "a", Started())
    return world


def record(world: World, *, count: int = 1) -> None:
    """A batch in which so many remedies of one step are proposed."""
    with world.batch() as batch:
        for _ in range(count):
            ledger.record(batch, "0-a", 0, Trouble.HEARTBEAT, Remedy.REASSIGN, rule="loss", proposed=True)
        ledger.complete(batch)


def entries(world: World) -> list[LedgerEntry]:
    found = [world.reader.get(key) for key in list(world.reader.scan(keys.LEDGER))]
    return [row for row in found if isinstance(row, ledger_rows.LedgerEntry)]


def serials(world: World) -> list[int]:
    return [entry.serial for entry in entries(world)]


def sweep(world: World) -> Swept:
    answer = world.one(Sweep(world.limits.sweep_subjects_max))
    assert isinstance(answer, Swept)
    return answer


def test_an_entry_says_what_was_known() -> None:
    """As it was known: attempt, token, session, what was due, the last sign of life; and then what came of it."""
    world = world_of()
    world.now_ms = 3_000
    world.report(AGENT, "0-a", "a", ProgressMade(Payload(b"1")))
    step = world.step("0-a", "a")
    assert step is not None
    world.now_ms = 8_200
    with world.batch() as batch:
        batch.cause = Cause(By.PERSON, "ann", "because")
        failure = Failure("HEARTBEAT_TIMEOUT", "x" * 1_000)
        ledger.record(batch, "0-a", 0, Trouble.HEARTBEAT, Remedy.RETRY, rule="silent", failure=failure)
        batch.draft.delete(keys.assignment(AGENT, step.token, "0-a", 0))
        batch.move("0-a", 0, batch.require_step("0-a", 0), StepState.RETRY_WAIT, batch.log_in(9))
        ledger.complete(batch)

    (entry,) = entries(world)
    assert entry.evidence == ledger_rows.Evidence(
        attempts=1,
        lease_losses=0,
        token=step.token,
        session_id=AGENT,
        failure="HEARTBEAT_TIMEOUT: " + "x" * (256 - 19),
        due_clock=Clock.LOG,
        due_at_ms=5_000,
        heard_clock=Clock.LOG,
        heard_at_ms=3_000,
    )
    assert (entry.job_id, entry.step_id, entry.ordinal, entry.part) == ("0-a", "a", 0, Part.ACTION)
    assert (entry.namespace, entry.definition_name, entry.definition_version) == ("default", "pair", 1)
    assert (entry.trouble, entry.remedy, entry.rule) == (Trouble.HEARTBEAT, Remedy.RETRY, "silent")
    assert (entry.by, entry.actor, entry.reason) == (By.PERSON, "ann", "because")
    assert (entry.wall_ms, entry.led_ms, entry.log_ms, entry.epoch) == (WALL_MS + 8_200, 8_200, 8_200, 1)
    assert (entry.step_before, entry.step_after) == (StepState.RUNNING, StepState.RETRY_WAIT)
    assert (entry.job_before, entry.job_after) == (JobState.RUNNING, JobState.RUNNING)


def test_a_lost_lease_is_told_with_that_of_its_session() -> None:
    """What had passed is the end of the lease, on led time, and its last sign of life is that of the session."""
    world = world_of(session_ttl_ms=3_000)
    world.now_ms = 7_000
    with world.batch() as batch:
        ledger.record(batch, "0-a", 0, Trouble.LEASE_LOST, Remedy.REASSIGN)

    (entry,) = entries(world)
    # TTL, a third of it, the grace in which a handler is killed, and 1% with 500 ms for clocks.
    assert (entry.evidence.due_clock, entry.evidence.due_at_ms) == (Clock.LED, 3_000 + 1_000 + 2_000 + 530)
    assert (entry.evidence.heard_clock, entry.evidence.heard_at_ms) == (Clock.LED, 0)


def test_an_entry_of_a_job_has_no_step() -> None:
    """Its evidence is the deadline of the job."""
    world = world_of()
    with world.batch() as batch:
        batch.put_progress("0-a", batch.progress("0-a"), deadline_log_ms=77, deadline_passed=True)
        ledger.record(batch, "0-a", -1, Trouble.JOB_DEADLINE, Remedy.COMPENSATE)
        ledger.complete(batch)

    (entry,) = entries(world)
    assert (entry.step_id, entry.part, entry.step_before, entry.step_after) == ("", None, None, None)
    assert (entry.evidence.due_clock, entry.evidence.due_at_ms) == (Clock.LOG, 77)


def test_serials_go_on_over_batches_and_rollbacks() -> None:
    """Each remedy has the next; one that was rolled back leaves no gap and no entry."""
    world = world_of()
    record(world, count=2)
    with world.batch() as batch:
        savepoint = batch.draft.savepoint()
        ledger.record(batch, "0-a", 0, Trouble.HEARTBEAT, Remedy.REASSIGN)
        batch.draft.rollback(savepoint)
        ledger.record(batch, "0-a", 0, Trouble.HEARTBEAT, Remedy.RETRY)
        ledger.complete(batch)

    assert serials(world) == [1, 2, 3]
    assert [keys.parse_ledger(key)[0] for key in world.reader.scan(keys.LEDGER)] == [5, 5, 6]
    assert ledger.recorded(world.reader) == 3


def test_a_job_that_goes_well_is_in_no_ledger() -> None:
    """Not a row, whatever it does."""
    world = world_of()
    world.report(AGENT, "0-a", "a", Succeeded(Payload(b"1")))
    world.report(AGENT, "0-a", "b", Succeeded(Payload(b"1")))

    assert world.job_state("0-a") == "COMPLETED"
    assert world.store.count(keys.LEDGER) == 0
    assert ledger.recorded(world.reader) == 0


@pytest.mark.parametrize(("age_ms", "left"), [(DAY_MS - 1, [1, 2, 3]), (DAY_MS, [3])])
def test_entries_go_by_their_age(age_ms: int, left: list[int]) -> None:
    """At the bound they go, a millisecond before it they stay, and so does the newest, which counts them all."""
    world = world_of(ledger_retention_ms=DAY_MS)
    record(world, count=3)
    world.now_ms = age_ms
    # Whatever is due then is another matter.
    with world.batch() as batch:
        ledger.purge_due(batch)

    assert serials(world) == left
    assert ledger.recorded(world.reader) == 3


@pytest.mark.parametrize(("count", "left"), [(5, [1, 2, 3, 4, 5]), (6, [2, 3, 4, 5, 6])])
def test_entries_go_by_their_number(count: int, left: list[int]) -> None:
    """At the bound all stay, one past it the oldest goes."""
    world = world_of(ledger_entries_max=5)
    record(world, count=count)
    sweep(world)

    assert serials(world) == left


def test_they_go_some_in_each_sweep() -> None:
    """What one sweep leaves, the next one takes, and it is told to come at once."""
    world = world_of(ledger_entries_max=2, ledger_purges_max=3)
    record(world, count=9)

    assert [(sweep(world).unfinished, serials(world)[0]) for _ in range(3)] == [(True, 4), (True, 7), (False, 8)]
    assert serials(world) == [8, 9]
    assert invariants.violations(world.reader, led_ms=world.now_ms) == []


def test_entries_outlive_their_job() -> None:
    """A job is removed with all that is its own; why it was undone can be read for as long as the ledger is kept."""
    world = world_of()
    record(world)
    world.report(AGENT, "0-a", "a", Succeeded(Payload(b"1")))
    world.report(AGENT, "0-a", "b", Succeeded(Payload(b"1")))
    world.now_ms = DAY_MS
    for _ in range(3):
        sweep(world)

    assert world.store.count(keys.JOB) == 0
    assert serials(world) == [1]


def test_the_last_key_of_a_draft() -> None:
    """As the batch leaves it: with what it added, without what it removed."""
    world = world_of()
    record(world, count=2)
    first, second = list(world.reader.scan(keys.LEDGER))
    draft = Draft(world.reader)
    assert draft.last(keys.LEDGER) == second
    draft.remove(second)
    assert draft.last(keys.LEDGER) == first
    draft.remove(first)
    assert draft.last(keys.LEDGER) is None
    entry = world.reader.get(first)
    assert entry is not None
    draft.put(keys.ledger(1, 0), entry)
    assert draft.last(keys.LEDGER) == keys.ledger(1, 0)
    draft.put(keys.ledger(900, 7), entry)
    assert draft.last(keys.LEDGER) == keys.ledger(900, 7)
