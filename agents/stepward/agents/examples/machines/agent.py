"""Provisions machines, and gives back what is there when one cannot be had.

    stepward agent run stepward.agents.examples.machines.agent
    stepward job run machine -i @agents/stepward/agents/examples/machines/machine.json

The definition is `machine.yaml`; the agent brings it along. The cloud is looked for at port 7656 of this machine, and
started there when there is none; `python -m stepward.agents.examples.machines` can use another.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from stepward.agents import Agent, Context
from stepward.agents.examples.http_call import running
from stepward.agents.examples.machines.cloud_client import CloudClient, Created
from stepward.agents.examples.machines.cloud_service import MODULE, PORT_DEFAULT

DEFINITION = Path(__file__).with_name("machine.yaml")
CLOUD_DEFAULT = f"127.0.0.1:{PORT_DEFAULT}"
SLOTS_DEFAULT = 16


class Installed(Struct, frozen=True):
    """How far an attempt has come, for the next one to go on from."""

    part: int
    of: int


def machines_agent(
    *, cloud: str = CLOUD_DEFAULT, slots: int = SLOTS_DEFAULT, name: str | None = None, starts_service: bool = True
) -> Agent:
    """An agent for machines.

    Args:
        cloud: Address of the cloud.
        slots: Steps that it takes at once.
        name: Its name for people.
        starts_service: Whether it starts a cloud at that port when there is none. It ends with the agent.
    """
    service = CloudClient(cloud)
    agent = Agent(
        queue="machines",
        slots=slots,
        name=name,
        definitions=[DEFINITION],
        lifespan=(lambda: running(service, MODULE, "cloud")) if starts_service else None,
    )

    @agent.action
    async def allocate_address(ctx: Context, wish: str) -> Created:
        return await service.create(ctx, "addresses", wish)

    @agent.action
    async def release_address(ctx: Context, idempotency_keys: list[str]) -> None:
        await service.delete(ctx, "addresses", idempotency_keys)

    @agent.action
    async def create_volume(ctx: Context, wish: str) -> Created:
        return await service.create(ctx, "volumes", wish)

    @agent.action
    async def delete_volume(ctx: Context, idempotency_keys: list[str]) -> None:
        await service.delete(ctx, "volumes", idempotency_keys)

    @agent.action
    async def create_machine(ctx: Context, address: str, volume: str, image: str, parts: int) -> Created:
        return await install(service, ctx, wish=f"{image} at {address} with {volume}", parts=parts)

    @agent.action
    async def delete_machine(ctx: Context, idempotency_keys: list[str]) -> None:
        await service.delete(ctx, "machines", idempotency_keys)

    @agent.action
    async def issue_keys(ctx: Context, wish: str) -> Created:
        return await service.create(ctx, "keys", wish)

    @agent.action
    async def revoke_keys(ctx: Context, idempotency_keys: list[str]) -> None:
        await service.delete(ctx, "keys", idempotency_keys)

    @agent.action
    async def register_name(ctx: Context, wish: str) -> Created:
        return await service.create(ctx, "names", wish)

    @agent.action
    async def unregister_name(ctx: Context, idempotency_keys: list[str]) -> None:
        await service.delete(ctx, "names", idempotency_keys)

    return agent


async def install(service: CloudClient, ctx: Context, *, wish: str, parts: int) -> Created:
    """Create a machine and install it part by part, from where the attempt before this one had come to."""
    machine = await service.create(ctx, "machines", wish)
    done = (ctx.last_progress or {}).get("part", 0)
    for part in range(done + 1, parts + 1):
        await service.install(ctx, part, wish)
        # A sign of life, and what the next attempt begins with should this one not end.
        ctx.heartbeat(Installed(part, parts))
    return machine


agent = machines_agent()
