"""H035: every state that is not final has something that leaves it, or waits for a person.

Each is brought about in a world and then left alone: no agent says anything more, nobody calls, the supervisor sweeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from stepward.server.core import keys, states
from stepward.server.core.commands import Failed, RenewSession, Started, Succeeded, Sweep, Swept, Unknown
from stepward.server.core.rows import (
    JOB_STATES_FINAL,
    DefinitionBody,
    Effect,
    JobState,
    Payload,
    RetrySpec,
    StepState,
)
from stepward.server.core.states import Mover
from tests.core.world import DAY_MS, World, actions_of, step_spec

if TYPE_CHECKING:
    from collections.abc import Callable

AGENT: Final = "agent-one"
DONE: Final = Succeeded(Payload(b"1"))
BROKEN: Final = Failed("Broken", "", retryable=True)
GONE: Final = Failed("Gone", "", retryable=False)
NOBODY_KNOWS: Final = Unknown("NoAnswer", "")
# A ready step waits for an agent for a day, and nothing waits for longer.
LONGEST_MS: Final = DAY_MS + 60_000
# The action, a question, the undo with a question before it: each of them may wait for a day.
ALL_MS: Final = 5 * DAY_MS


def world_with(*, effect: Effect, undo_effect: Effect = Effect.IDEMPOTENT, verify: bool = False) -> World:
    """A world in which "pay" waits for an agent, and "ship" for "pay"."""
    retry = RetrySpec(attempts_max=2)
    pay = step_spec("pay", dependents=(1,), effect=effect, undo_effect=undo_effect, verify=verify, retry=retry)
    body = DefinitionBody("order", (pay, step_spec("ship", needs=(0,), undo=False)), b"", b"")
    world = World()
    world.define(body)
    world.submit("j1", "order")
    return world


def idempotent(*events: Succeeded | Failed | Unknown | Started, verify: bool = False) -> World:
    """A world in which an agent has said this of "pay"."""
    world = world_with(effect=Effect.IDEMPOTENT, verify=verify)
    world.open(AGENT, actions_of_order(world))
    for event in events:
        world.report(AGENT, "j1", "pay", event)
    return world


def actions_of_order(world: World) -> tuple[str, ...]:
    """All that an agent of this order can run."""
    body = world.reader.get(next(iter(world.reader.scan(keys.DEFINITION_BODY))))
    assert isinstance(body, DefinitionBody)
    return actions_of(body)


def undoing(*events: Succeeded | Failed | Unknown | Started, undo_effect: Effect = Effect.IDEMPOTENT) -> World:
    """A world in which "ship" has failed for good, and an agent has said this of the undo of "pay"."""
    world = world_with(effect=Effect.IDEMPOTENT, undo_effect=undo_effect)
    world.open(AGENT, actions_of_order(world))
    world.report(AGENT, "j1", "pay", DONE)
    world.report(AGENT, "j1", "ship", GONE)
    for event in events:
        world.report(AGENT, "j1", "pay", event)
    return world


def escalated() -> World:
    """An outcome that nobody knows, of a step that may not be repeated."""
    world = world_with(effect=Effect.NON_IDEMPOTENT)
    world.open(AGENT, ("pay",))
    world.report(AGENT, "j1", "pay", NOBODY_KNOWS)
    return world


def unknown_while_its_job_is_stopped() -> World:
    """An attempt has run out of time, and its agent, which lives, does not say that it has stopped."""
    from tests.scenarios.trips import cancel  # noqa: PLC0415 - that module is made of worlds, too

    world = idempotent(Started())
    cancel(world, "j1")
    while world.step_state("j1", "pay") == "RUNNING":
        world.now_ms += 500
        world.do(RenewSession(AGENT, 1, 0), Sweep(100))
    return world


def undo_without_agent() -> World:
    """The only agent cannot run the undo."""
    world = world_with(effect=Effect.IDEMPOTENT)
    world.open(AGENT, ("pay", "ship"))
    world.report(AGENT, "j1", "pay", DONE)
    world.report(AGENT, "j1", "ship", GONE)
    return world


def question_without_agent() -> World:
    """The only agent cannot be asked."""
    world = world_with(effect=Effect.IDEMPOTENT, verify=True)
    world.open(AGENT, ("pay",))
    world.report(AGENT, "j1", "pay", NOBODY_KNOWS)
    return world


STATES: Final[dict[StepState, Callable[[], World]]] = {
    StepState.READY: lambda: world_with(effect=Effect.IDEMPOTENT),
    StepState.OFFERED: idempotent,
    StepState.RUNNING: lambda: idempotent(Started()),
    StepState.RETRY_WAIT: lambda: idempotent(BROKEN),
    StepState.OUTCOME_UNKNOWN: unknown_while_its_job_is_stopped,
    StepState.ESCALATED: escalated,
    StepState.UNDO_READY: undo_without_agent,
    StepState.UNDO_OFFERED: undoing,
    StepState.UNDO_RUNNING: lambda: undoing(Started()),
    StepState.UNDO_RETRY_WAIT: lambda: undoing(BROKEN),
    StepState.UNDO_OUTCOME_UNKNOWN: lambda: undoing(Started(), NOBODY_KNOWS, undo_effect=Effect.NON_IDEMPOTENT),
    StepState.UNDO_FAILED: lambda: undoing(GONE),
    StepState.VERIFY_READY: question_without_agent,
    StepState.VERIFY_OFFERED: lambda: idempotent(NOBODY_KNOWS, verify=True),
    StepState.VERIFY_RUNNING: lambda: idempotent(NOBODY_KNOWS, Started(), verify=True),
    StepState.VERIFY_RETRY_WAIT: lambda: idempotent(NOBODY_KNOWS, BROKEN, verify=True),
}


def leave_alone(world: World, *, until_ms: int) -> None:
    """Nothing but sweeps, when the supervisor says that something falls due."""
    while world.now_ms < until_ms:
        answer = world.one(Sweep(100))
        assert isinstance(answer, Swept)
        due = [at for at in (answer.next_due_led_ms, answer.next_due_log_ms) if at is not None]
        world.now_ms = min([until_ms, *(max(at, world.now_ms + 1) for at in due)])
    world.one(Sweep(100))


def test_no_state_is_left_out() -> None:
    """A new state has to be brought about here, too. PENDING has no row: what it needs moves it."""
    assert set(STATES) == {state for state, mover in states.MOVERS.items() if mover not in (Mover.NOTHING, Mover.NEEDS)}


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
def test_h035_a_state_that_is_left_alone(state: StepState) -> None:
    """It is left in its time, with its job on its way to an end; what waits for a person waits for ever."""
    world = STATES[state]()
    assert world.step_state("j1", "pay") == state.name

    leave_alone(world, until_ms=world.now_ms + LONGEST_MS)
    after = world.step_state("j1", "pay")
    leave_alone(world, until_ms=world.now_ms + ALL_MS)

    if states.MOVERS[state] is Mover.PERSON:
        assert (after, world.step_state("j1", "pay"), world.job_state("j1")) == (state.name, state.name, "ESCALATED")
    else:
        assert after != state.name
        assert world.progress("j1").state in JOB_STATES_FINAL | {JobState.ESCALATED}
