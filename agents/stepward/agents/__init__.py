"""Write agents: processes that take steps of jobs and do the work.

    from stepward.agents import Agent, Context, Permanent

    agent = Agent(queue="trip", slots=8, definitions=[Path("trip.yaml")])

    @agent.action("book-flight")
    async def book_flight(ctx: Context, input: FlightRequest) -> FlightBooked: ...

    @agent.action                       # named "cancel-flight"
    def cancel_flight(booking_id: str) -> None: ...

    @agent.action(process=True)         # in a process of its own
    def find_route(ctx: Context, towns: list[str]) -> list[str]: ...

    agent.run(["localhost:7654"])       # or: stepward agent run trip_agent

The one thing to know: a handler may run more than once. All attempts of one action carry the same
`ctx.idempotency_key`; pass it, and `ctx.token`, to the service that does the work.

Reading order: `errors` and `context` are what a handler sees, `action` calls it, `agent` is what people write.
`session` is what the agent promises to the cluster, a pure state machine on top of `lease`, `attempts`, `outbox` and
`memory`; `runner` drives it over a `connection` on a thread of its own, and `handlers` runs handlers elsewhere,
those of `handler_process` in processes of their own. `worker` is one process, `parent` starts it again.
"""

from stepward.agents.agent import Agent
from stepward.agents.context import Context
from stepward.agents.errors import (
    ActionError,
    AgentError,
    AgentRefused,
    Cancelled,
    DefinitionRefused,
    LeaseLost,
    Permanent,
    RetryAfter,
    StepFailed,
    TargetError,
    Unknown,
)

__all__ = [
    "ActionError",
    "Agent",
    "AgentError",
    "AgentRefused",
    "Cancelled",
    "Context",
    "DefinitionRefused",
    "LeaseLost",
    "Permanent",
    "RetryAfter",
    "StepFailed",
    "TargetError",
    "Unknown",
]
