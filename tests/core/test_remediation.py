"""What a policy says, from the trouble to the ledger and the incident, and what a person does then."""

from __future__ import annotations

import pytest

from stepward.server.core import incidents, invariants, keys, ledger_rows
from stepward.server.core.commands import CancelJob, Failed, ResolveIncident, Started, Succeeded, Sweep
from stepward.server.core.definition_source import DefinitionSource, RetrySource, UndoSource
from stepward.server.core.options import Approval, Effect, OnExhausted
from stepward.server.core.parts import By, Remedy, Resolution, Trouble
from stepward.server.core.rows import NO_OUTPUT, Payload
from tests.core.definitions import compiled, step, trip
from tests.core.world import World, actions_of

ONCE = RetrySource(attempts_max=1)


def world_of(source: DefinitionSource) -> World:
    """A world with one agent that does everything of a definition."""
    world, body = World(), compiled(source)
    world.define(body)
    world.open("crew", actions_of(body), queue="default")
    world.submit("0-a", body.name)
    return world


def resolve(number: int, how: Resolution) -> ResolveIncident:
    """What a person decides."""
    return ResolveIncident(number, how, NO_OUTPUT, undone=False, reason="seen", actor="ada")


def newest(world: World) -> ledger_rows.LedgerEntry:
    """The newest entry of the ledger."""
    entry = world.reader.get(list(world.reader.scan(keys.LEDGER))[-1])
    assert isinstance(entry, ledger_rows.LedgerEntry)
    return entry


def sound(world: World) -> None:
    """The rows are as they must be."""
    assert invariants.violations(world.reader, led_ms=world.now_ms) == []


@pytest.mark.parametrize(
    ("on_exhausted", "proposed", "job"),
    [
        (OnExhausted.COMPENSATE, Remedy.COMPENSATE, "COMPENSATING"),
        (OnExhausted.CONTINUE, Remedy.CONTINUE, "COMPLETED"),
        (OnExhausted.FAIL, Remedy.FAIL, "FAILED"),
    ],
)
def test_approval(on_exhausted: OnExhausted, proposed: Remedy, job: str) -> None:
    """What a policy says is proposed, stands in the ledger as that, and is done when a person approves it."""
    pay = step("pay", "book", retry=ONCE, on_exhausted=on_exhausted, approval=Approval.REQUIRED)
    world = world_of(trip(step("book", undo=UndoSource("unbook")), pay))
    world.report("crew", "0-a", "book", Succeeded(Payload(b"1")))
    world.report("crew", "0-a", "pay", Failed("NoFunds", "", retryable=True))

    found = incidents.find(world.reader, 1)
    assert found is not None
    assert (world.step_state("0-a", "pay"), found.trouble, found.proposed) == (
        "ESCALATED",
        Trouble.ATTEMPT_FAILED,
        proposed,
    )
    entry = newest(world)
    assert (entry.remedy, entry.proposed, entry.rule, entry.by) == (proposed, True, "exhausted", By.REPORT)
    sound(world)

    world.one(resolve(1, Resolution.APPROVE))

    assert world.job_state("0-a") == job
    assert (newest(world).by, newest(world).proposed) == (By.PERSON, False)
    sound(world)


@pytest.mark.parametrize(("how", "renewed"), [(Resolution.RETRY, True), (Resolution.SKIP, False)])
def test_a_late_job_behind_its_pivot(how: Resolution, renewed: bool) -> None:
    """It waits for a person while it goes on; he gives it all its time again, or lets it go on without a bound."""
    source = DefinitionSource("trip", (step("pay", effect=Effect.PIVOT), step("ship", "pay")), deadline_ms=5_000)
    world = world_of(source)
    world.report("crew", "0-a", "pay", Started())
    world.report("crew", "0-a", "pay", Succeeded(Payload(b"1")))
    world.now_ms = 5_000
    world.one(Sweep(10))

    found = incidents.find(world.reader, 1)
    assert found is not None
    assert (world.job_state("0-a"), found.ordinal, found.trouble) == ("ESCALATED", -1, Trouble.JOB_DEADLINE)
    assert (newest(world).remedy, newest(world).by) == (Remedy.ESCALATE, By.SUPERVISOR)
    sound(world)

    world.one(resolve(1, how))

    progress = world.progress("0-a")
    assert (progress.state.name, progress.failure, progress.deadline_passed) == ("RUNNING", None, not renewed)
    assert world.step_state("0-a", "ship") == "OFFERED"
    sound(world)


def test_nobody_is_told_of_a_pass_over_in_a_job_that_is_given_up() -> None:
    """The next sweep would tell the dependents; if the job is being undone by then, none of them begins."""
    lenient = step("pay", "book", on_exhausted=OnExhausted.CONTINUE, input='"${steps.book.output.price}"')
    world = world_of(trip(step("book", undo=UndoSource("unbook")), lenient, step("ship", "pay")))
    world.report("crew", "0-a", "book", Succeeded(Payload(b"{}")))
    assert (world.step_state("0-a", "pay"), world.step_state("0-a", "ship")) == ("SKIPPED", "PENDING")
    world.one(CancelJob("0-a", ""))

    world.one(Sweep(10))

    assert world.step_state("0-a", "ship") == "PENDING"
    sound(world)
