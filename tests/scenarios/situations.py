"""Every state that a step and its job can be in together, reached by what agents, clocks and people do.

The step is "pay" of flight -> pay -> tell; pay and flight can be undone, and pay may not be repeated by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stepward.server.core.commands import (
    Accepted,
    CancelJob,
    Failed,
    PauseJob,
    RetryStep,
    SkipStep,
    Started,
    Succeeded,
    TerminateJob,
    Unknown,
)
from stepward.server.core.rows import DefinitionBody, Effect, Payload, RetrySpec
from tests.core.world import World, actions_of, step_spec
from tests.scenarios.trips import DONE, GONE, SESSION_END_MS, sweep

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepward.server.core.commands import AnyCommand

JOB, STEP = "j1", "pay"
# Two agents, so that steps whose agent is missing stay ready.
FLIGHTS, PAYMENTS = "agent-flights", "agent-payments"
DOWN = Failed("Down", "503", retryable=True)
NO_ANSWER = Unknown("NoAnswer", "after sending")


def trip(**pay: Any) -> DefinitionBody:
    """The definition, with something special of the payment."""
    retry = RetrySpec(attempts_max=2)
    steps = (
        step_spec("flight", dependents=(1,)),
        step_spec(STEP, needs=(0,), dependents=(2,), effect=Effect.NON_IDEMPOTENT, retry=retry, **pay),
        step_spec("tell", needs=(1,), undo=False),
    )
    return DefinitionBody("trip", steps, b"", b"")


BODY: Final = trip()
# Somebody can be asked whether a payment went through.
ASKED: Final = trip(verify=True)
# A refund must not be made twice either.
ONCE: Final = trip(undo_effect=Effect.NON_IDEMPOTENT)
QUESTIONS = "agent-questions"


def do(world: World, command: AnyCommand) -> None:
    """A command that is not in question."""
    world.one(command)


def submitted(world: World) -> None:
    """The flight is offered, so the payment waits."""
    world.define(BODY)
    world.open(FLIGHTS, ("flight", "undo-flight", "tell"))
    world.submit(JOB, "trip")


def ready(world: World) -> None:
    """Nobody takes payments."""
    submitted(world)
    world.report(FLIGHTS, JOB, "flight", DONE)


def offered(world: World) -> None:
    """Somebody takes payments."""
    ready(world)
    world.open(PAYMENTS, ("pay", "undo-pay"))


def running(world: World) -> None:
    """The payment has begun."""
    offered(world)
    world.report(PAYMENTS, JOB, STEP, Started())


def waits_for_retry(world: World) -> None:
    """It failed once, and may be tried again."""
    running(world)
    world.report(PAYMENTS, JOB, STEP, DOWN)


def no_answer(world: World) -> None:
    """The remote service did not answer."""
    world.report(PAYMENTS, JOB, STEP, NO_ANSWER)


def escalated(world: World) -> None:
    """Nobody knows whether it went through."""
    running(world)
    no_answer(world)


def waits_for_fence(world: World) -> None:
    """Its agent was lost, and a person has it tried again: not before nothing of the lost attempt can act."""
    running(world)
    world.now_ms = SESSION_END_MS
    sweep(world)
    do(world, RetryStep(JOB, STEP, "", "bob"))


def succeeded(world: World) -> None:
    """It went through, and nobody tells."""
    running(world)
    world.report(PAYMENTS, JOB, STEP, DONE)


def skipped(world: World) -> None:
    """Somebody paid by hand."""
    ready(world)
    do(world, SkipStep(JOB, STEP, Payload(b"7"), False, "", "bob"))


def stopping(world: World) -> None:
    """The job was cancelled while it ran."""
    running(world)
    cancel(world)


def unknown(world: World) -> None:
    """The job was cancelled when its agent had been lost: the fence must pass before anything is undone."""
    running(world)
    world.now_ms = SESSION_END_MS
    sweep(world)
    cancel(world)


def cancel(world: World) -> None:
    """Nobody wants the job any more."""
    do(world, CancelJob(JOB, "changed my mind", "bob"))


def undo_offered(world: World) -> None:
    """It went through, and what follows failed for good."""
    succeeded(world)
    world.report(FLIGHTS, JOB, "tell", GONE)


def undo_ready(world: World) -> None:
    """Nobody refunds."""
    ready(world)
    world.open(PAYMENTS, ("pay",))
    world.report(PAYMENTS, JOB, STEP, DONE)
    world.report(FLIGHTS, JOB, "tell", GONE)


def undo_running(world: World) -> None:
    """The refund has begun."""
    undo_offered(world)
    world.report(PAYMENTS, JOB, STEP, Started())


def undo_waits_for_retry(world: World) -> None:
    """The refund failed once."""
    undo_running(world)
    world.report(PAYMENTS, JOB, STEP, DOWN)


def undo_failed(world: World) -> None:
    """The refund failed for good."""
    undo_offered(world)
    world.report(PAYMENTS, JOB, STEP, GONE)


def undone(world: World) -> None:
    """Refunded, and the flight is being cancelled."""
    undo_offered(world)
    world.report(PAYMENTS, JOB, STEP, DONE)


def undo_skipped(world: World) -> None:
    """Nobody refunds, and the flight is being cancelled."""
    undo_failed(world)
    do(world, SkipStep(JOB, STEP, Payload(b"null"), False, "", "bob"))


def taken_back(world: World) -> None:
    """The job was cancelled before it was offered, and the flight is being cancelled."""
    ready(world)
    cancel(world)


def failed(world: World) -> None:
    """It failed for good, and the flight is being cancelled."""
    offered(world)
    world.report(PAYMENTS, JOB, STEP, GONE)


def completed(world: World) -> None:
    """All is done."""
    succeeded(world)
    world.report(FLIGHTS, JOB, "tell", Succeeded(Payload(b"null")))


def compensated(world: World) -> None:
    """All is undone."""
    undone(world)
    world.report(FLIGHTS, JOB, "flight", DONE)


def cancelled(world: World) -> None:
    """All is undone, as somebody wanted."""
    taken_back(world)
    world.report(FLIGHTS, JOB, "flight", DONE)


def terminated(world: World) -> None:
    """Somebody ended it at once."""
    running(world)
    do(world, TerminateJob(JOB, "we give up", "bob"))


def remains(world: World) -> None:
    """The job has ended, and nobody refunds."""
    undo_skipped(world)
    world.report(FLIGHTS, JOB, "flight", DONE)


def having(body: DefinitionBody, reach: Callable[[World], None]) -> Callable[[World], None]:
    """The same with another definition. It is stored first, so that the usual one is no newer version."""

    def reach_with(world: World) -> None:
        world.define(body)
        reach(world)

    return reach_with


def ask_ready(world: World) -> None:
    """Nobody knows whether it went through, and nobody answers."""
    running(world)
    no_answer(world)


def ask_offered(world: World) -> None:
    """Somebody is asked."""
    ask_ready(world)
    world.open(QUESTIONS, ("ask-pay",))


def ask_running(world: World) -> None:
    """And looks."""
    ask_offered(world)
    world.report(QUESTIONS, JOB, STEP, Started())


def ask_waits_for_retry(world: World) -> None:
    """And could not."""
    ask_running(world)
    world.report(QUESTIONS, JOB, STEP, DOWN)


def undo_unknown(world: World) -> None:
    """Nobody knows whether the refund was made, and it must not be made twice."""
    undo_offered(world)
    world.report(PAYMENTS, JOB, STEP, Accepted())
    world.report(PAYMENTS, JOB, STEP, NO_ANSWER)


def paused(reach: Callable[[World], None]) -> Callable[[World], None]:
    """The same, and then the job was paused."""

    def reach_paused(world: World) -> None:
        reach(world)
        do(world, PauseJob(JOB, "", "bob"))

    return reach_paused


def in_paused(reach: Callable[[World], None], then: Callable[[World], None]) -> Callable[[World], None]:
    """Something that happens while the job is paused."""

    def reach_then(world: World) -> None:
        paused(reach)(world)
        then(world)

    return reach_then


# By the states of the job and the step, and what tells apart those that are equal in both.
SITUATIONS: Final[dict[str, Callable[[World], None]]] = {
    "RUNNING PENDING": submitted,
    "RUNNING READY": ready,
    "RUNNING OFFERED": offered,
    "RUNNING RUNNING": running,
    "RUNNING RETRY_WAIT": waits_for_retry,
    "RUNNING RETRY_WAIT fence": waits_for_fence,
    "RUNNING SUCCEEDED": succeeded,
    "RUNNING SKIPPED": skipped,
    "RUNNING VERIFY_READY": having(ASKED, ask_ready),
    "RUNNING VERIFY_OFFERED": having(ASKED, ask_offered),
    "RUNNING VERIFY_RUNNING": having(ASKED, ask_running),
    "RUNNING VERIFY_RETRY_WAIT": having(ASKED, ask_waits_for_retry),
    "ESCALATED ESCALATED": escalated,
    "PAUSED PENDING": paused(submitted),
    "PAUSED READY": paused(ready),
    "PAUSED OFFERED": paused(offered),
    "PAUSED RUNNING": paused(running),
    "PAUSED RETRY_WAIT": paused(waits_for_retry),
    "PAUSED VERIFY_READY": having(ASKED, paused(ask_ready)),
    "PAUSED VERIFY_RUNNING": having(ASKED, paused(ask_running)),
    "PAUSED ESCALATED": paused(escalated),
    "PAUSED ESCALATED since": in_paused(running, no_answer),
    "PAUSED SUCCEEDED": paused(succeeded),
    "PAUSED SKIPPED": paused(skipped),
    "COMPENSATING RUNNING": stopping,
    "COMPENSATING OUTCOME_UNKNOWN": unknown,
    "COMPENSATING CANCELLED": taken_back,
    "COMPENSATING FAILED": failed,
    "COMPENSATING UNDO_READY": undo_ready,
    "COMPENSATING UNDO_OFFERED": undo_offered,
    "COMPENSATING UNDO_RUNNING": undo_running,
    "COMPENSATING UNDO_RETRY_WAIT": undo_waits_for_retry,
    "COMPENSATING UNDO_SKIPPED": undo_skipped,
    "COMPENSATING COMPENSATED": undone,
    "ESCALATED UNDO_FAILED": undo_failed,
    "ESCALATED UNDO_OUTCOME_UNKNOWN": having(ONCE, undo_unknown),
    "COMPLETED SUCCEEDED": completed,
    "COMPENSATED COMPENSATED": compensated,
    "CANCELLED CANCELLED": cancelled,
    "FAILED CANCELLED terminated": terminated,
    "FAILED UNDO_SKIPPED": remains,
}


def agents_of_all(world: World, session_id: str) -> None:
    """An agent that can do all that is left."""
    world.open(session_id, tuple({*actions_of(BODY), *actions_of(ASKED)}), slots=10)
