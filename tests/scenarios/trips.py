"""The trip that the scenarios tell of: flight, then hotel and car in parallel, then a receipt."""

from __future__ import annotations

from stepward.server.core import keys, rows
from stepward.server.core.commands import CancelJob, Failed, RenewSession, Succeeded, Sweep
from stepward.server.core.leases import fence_led_ms, session_end_led_ms
from stepward.server.core.rows import DefinitionBody, Effect, Payload, RetrySpec, StartMode
from tests.core.world import World, actions_of, step_spec

DONE = Succeeded(Payload(b'{"id":1}'))
BROKEN = Failed("ServiceDown", "503", retryable=True)
GONE = Failed("SoldOut", "no seats", retryable=False)
TTL_MS = 3_000
KILL_GRACE_MS = 2_000
# When a session that was last heard of at 0 may be ended.
SESSION_END_MS = session_end_led_ms(renewed_led_ms=0, ttl_ms=TTL_MS, kill_grace_ms=KILL_GRACE_MS)
# How long an undo waits after that, for an attempt that nobody confirmed stopped.
FENCE_MS = fence_led_ms(led_ms=0, ttl_ms=TTL_MS, kill_grace_ms=KILL_GRACE_MS)

TRIP = DefinitionBody(
    "trip",
    (
        step_spec("flight", dependents=(1, 2)),
        step_spec("hotel", needs=(0,), dependents=(3,)),
        step_spec("car", needs=(0,), dependents=(3,)),
        step_spec("receipt", needs=(1, 2), undo=False),
    ),
    b"",
    b"",
)


def single(
    *, start: StartMode = StartMode.ON_OFFER, effect: Effect = Effect.IDEMPOTENT, retry: RetrySpec | None = None
) -> DefinitionBody:
    """A job of one step, "pay"."""
    return DefinitionBody("single", (step_spec("pay", start=start, effect=effect, retry=retry),), b"", b"")


def world_with(body: DefinitionBody, *, agents: tuple[str, ...] = ("agent-one",), slots: int = 4) -> World:
    """A world with a definition and some agents that can run all of it."""
    world = World()
    world.define(body)
    for session_id in agents:
        world.open(session_id, actions_of(body), slots=slots)
    return world


def sweep(world: World) -> None:
    """One look of the supervisor."""
    world.one(Sweep(100))


def renew(world: World, *session_ids: str) -> None:
    """Heartbeats, now."""
    for session_id in session_ids:
        world.one(RenewSession(session_id, 1, 0))


def pass_time(world: World, until_ms: int, *, alive: tuple[str, ...] = ()) -> None:
    """Let time pass as it does in a node: heartbeats of those alive every ttl/6, sweeps in between."""
    while world.now_ms < until_ms:
        world.now_ms = min(until_ms, world.now_ms + TTL_MS // 6)
        renew(world, *alive)
        sweep(world)


def cancel(world: World, job_id: str) -> None:
    """Somebody no longer wants the job."""
    world.one(CancelJob(job_id, "changed my mind"))


def free_slots(world: World, session_id: str) -> int:
    """Slots minus assignments, from rows."""
    session = world.reader.get(keys.session(session_id))
    assert isinstance(session, rows.Session)
    return session.slots - world.reader.count(keys.assignments(session_id))
