"""The outside world of the orders example: a shop's services, over HTTP, by a process of its own.

    python -m stepward.agents.examples.orders.shop_service --port 7657 --ledger shop.jsonl

`POST /stock/reserve`, `POST /payments/charge`, `POST /payments/find` and so on take a call as JSON; `shop` has the
rules.
"""

from __future__ import annotations

import argparse

from stepward.agents.examples import http_service
from stepward.agents.examples.ledger import Ledger, read_as
from stepward.agents.examples.orders.shop import Answer, Call, Entry, Shop

MODULE = "stepward.agents.examples.orders.shop_service"
PORT_DEFAULT = 7657


def parser() -> argparse.ArgumentParser:
    """The command line."""
    return http_service.parser(MODULE, __doc__, port=PORT_DEFAULT, ledger="stepward-shop.jsonl")


def entry(at_ms: int, call: Call, answer: Answer) -> Entry:
    """One line of the record."""
    return Entry(at_ms=at_ms, call=call, answer=answer)


def make(arguments: argparse.Namespace, record: Ledger) -> http_service.HttpService[Call, Answer]:
    """The shop, as the record left it."""
    shop = Shop()
    for line in read_as(arguments.ledger, Entry):
        shop.recall(line.call, line.answer)
    return http_service.HttpService(
        "the shop",
        world=shop.answer,
        kind=Call,
        record=record,
        entry=entry,
        slow_ms=arguments.slow_ms,
        hold_ms=shop.hold_ms,
    )


if __name__ == "__main__":
    http_service.main(parser(), make)
