"""Fulfils orders, and undoes what was done when one cannot be.

    stepward agent run stepward.agents.examples.orders.agent
    stepward job run order -i @agents/stepward/agents/examples/orders/order.json

The definition is `order.yaml`; the agent brings it along. The shop is looked for at port 7657 of this machine, and
started there when there is none; `python -m stepward.agents.examples.orders` can use another.
"""

from __future__ import annotations

from pathlib import Path

from stepward.agents import Agent, Context
from stepward.agents.examples.http_call import running
from stepward.agents.examples.orders.shop_client import Done, Found, ShopClient
from stepward.agents.examples.orders.shop_service import MODULE, PORT_DEFAULT

DEFINITION = Path(__file__).with_name("order.yaml")
SHOP_DEFAULT = f"127.0.0.1:{PORT_DEFAULT}"
SLOTS_DEFAULT = 16


def orders_agent(
    *, shop: str = SHOP_DEFAULT, slots: int = SLOTS_DEFAULT, name: str | None = None, starts_service: bool = True
) -> Agent:
    """An agent for orders.

    Args:
        shop: Address of the shop's services.
        slots: Steps that it takes at once.
        name: Its name for people.
        starts_service: Whether it starts a shop at that port when there is none. It ends with the agent.
    """
    service = ShopClient(shop)
    agent = Agent(
        queue="orders",
        slots=slots,
        name=name,
        definitions=[DEFINITION],
        lifespan=(lambda: running(service, MODULE, "shop")) if starts_service else None,
    )

    @agent.action
    async def reserve_stock(ctx: Context, wish: str) -> Done:
        return await service.do(ctx, "stock", "reserve", wish)

    @agent.action
    async def release_stock(ctx: Context, idempotency_keys: list[str]) -> None:
        await service.undo(ctx, "stock", "release", idempotency_keys)

    @agent.action
    async def charge_card(ctx: Context, wish: str, cents: int) -> Done:
        return await service.charge(ctx, wish, cents)

    @agent.action
    async def find_charge(ctx: Context) -> Found:
        return await service.find_charge(ctx)

    @agent.action
    async def refund_charge(ctx: Context, idempotency_keys: list[str]) -> None:
        await service.undo(ctx, "payments", "refund", idempotency_keys)

    @agent.action
    async def ship_parcel(ctx: Context, wish: str) -> Done:
        return await service.do(ctx, "shipments", "ship", wish)

    @agent.action
    async def recall_parcel(ctx: Context, idempotency_keys: list[str]) -> None:
        await service.undo(ctx, "shipments", "recall", idempotency_keys)

    @agent.action
    async def notify_customer(ctx: Context, wish: str) -> Done:
        return await service.do(ctx, "notices", "send", wish)

    return agent


agent = orders_agent()
