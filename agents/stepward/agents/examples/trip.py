"""A trip: books a flight, a hotel and a car, sends the receipt, and gives back what was booked when one of them fails.

    stepward agent run stepward.agents.examples.trip
    stepward job run trip -i @agents/stepward/agents/examples/trip.json

The definition is `trip.yaml`; the agent brings it along. A handler does one call, with the key and the token of its
attempt; everything about order, repetition and undoing stands in the definition. The travel service is looked for at
port 7655 of this machine, and started there when there is none; `python -m stepward.agents.examples` can use another.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stepward.agents import Agent, Context
from stepward.agents.examples.http_call import running
from stepward.agents.examples.travel_client import Booking, Travel
from stepward.agents.examples.travel_service import MODULE, PORT_DEFAULT

DEFINITION = Path(__file__).with_name("trip.yaml")
TRAVEL_DEFAULT = f"127.0.0.1:{PORT_DEFAULT}"
SLOTS_DEFAULT = 16


def trip_agent(
    *, travel: str = TRAVEL_DEFAULT, slots: int = SLOTS_DEFAULT, name: str | None = None, starts_service: bool = True
) -> Agent:
    """An agent for trips.

    Args:
        travel: Address of the travel service.
        slots: Steps that it takes at once.
        name: Its name for people.
        starts_service: Whether it starts a travel service at that port when there is none. It ends with the agent.
    """
    service = Travel(travel)
    agent = Agent(
        queue="trip",
        slots=slots,
        name=name,
        definitions=[DEFINITION],
        lifespan=(lambda: running(service, MODULE, "travel service")) if starts_service else None,
    )

    @agent.action
    async def book_flight(ctx: Context, wish: str) -> Booking:
        return await service.book(ctx, "flights", wish)

    @agent.action
    async def cancel_flight(ctx: Context) -> Booking:
        return await service.cancel(ctx, "flights")

    @agent.action
    async def book_hotel(ctx: Context, wish: str) -> Booking:
        return await service.book(ctx, "hotels", wish)

    @agent.action
    async def cancel_hotel(ctx: Context) -> Booking:
        return await service.cancel(ctx, "hotels")

    @agent.action
    async def book_car(ctx: Context, wish: str) -> Booking:
        return await service.book(ctx, "cars", wish)

    @agent.action
    async def cancel_car(ctx: Context) -> Booking:
        return await service.cancel(ctx, "cars")

    @agent.action
    async def send_receipt(ctx: Context, traveller: str, bookings: Sequence[str]) -> Booking:
        return await service.book(ctx, "receipts", f"{traveller}: {', '.join(bookings)}")

    return agent


agent = trip_agent()
