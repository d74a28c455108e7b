"""The definition of `order.yaml` in Python. Both give the same bytes, so they are one version to a cluster."""

from __future__ import annotations

from stepward.client import Definition, Retry, Timeouts, Verify, input_, text

QUEUE = "orders"
TIMEOUTS = Timeouts(start_to_close="30s")


def order() -> Definition:
    """Reserve, charge, ship, tell the customer."""
    definition = Definition(
        "order",
        description="Reserves the goods, charges the card, ships the parcel and tells the customer.",
        deadline="1d",
    )
    reserve = definition.step(
        "reserve",
        action="reserve-stock",
        queue=QUEUE,
        input={"wish": input_("goods")},
        retry=retry("SoldOut"),
        timeouts=TIMEOUTS,
        undo="release-stock",
    )
    charge = definition.step(
        "charge",
        action="charge-card",
        queue=QUEUE,
        needs=[reserve],
        input={"wish": input_("card"), "cents": input_("cents")},
        retry=retry("CardDeclined"),
        timeouts=TIMEOUTS,
        # The payment service takes every request for a new one, so it is asked before anything is repeated.
        effect="non_idempotent",
        verify=Verify("find-charge", timeouts=Timeouts(start_to_close="10s")),
        undo="refund-charge",
    )
    ship = definition.step(
        "ship",
        action="ship-parcel",
        queue=QUEUE,
        needs=[charge],
        input={"wish": input_("address")},
        retry=retry("NoCourier"),
        timeouts=TIMEOUTS,
        undo="recall-parcel",
    )
    definition.step(
        "notify",
        action="notify-customer",
        queue=QUEUE,
        needs=[ship],
        input={"wish": text("Dear ", input_("customer"), ", parcel ", ship.output("number"), " is on its way.")},
        retry=retry(),
        timeouts=TIMEOUTS,
    )
    definition.output({"charge": charge.output("number"), "parcel": ship.output("number")})
    return definition


def retry(*kinds: str) -> Retry:
    """How every step is repeated, but for these kinds of failures."""
    return Retry(initial="200ms", cap="5s", non_retryable_kinds=kinds)
