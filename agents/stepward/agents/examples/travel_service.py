"""The outside world of the trip example: flights, hotels, cars and receipts, sold over HTTP by a process of its own.

    python -m stepward.agents.examples.travel_service --port 7655 --ledger travel.jsonl

`POST /flights/book`, `POST /flights/cancel` and so on take a call as JSON; `bookings` has the rules and `ledger` the
record. It can be told to forget its good manners, so that a test sees what the caller's own care is worth.
"""

from __future__ import annotations

import argparse

from stepward.agents.examples import http_service
from stepward.agents.examples.bookings import Answer, Bookings, Call
from stepward.agents.examples.ledger import Entry, Ledger, read

MODULE = "stepward.agents.examples.travel_service"
PORT_DEFAULT = 7655


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = http_service.parser(MODULE, __doc__, port=PORT_DEFAULT, ledger="stepward-travel.jsonl")
    options.add_argument("--no-deduplication", dest="deduplication", action="store_false", help="remember no keys")
    options.add_argument("--no-fencing", dest="fencing", action="store_false", help="take old tokens, too")
    return options


def entry(at_ms: int, call: Call, answer: Answer) -> Entry:
    """One line of the record."""
    return Entry(at_ms=at_ms, call=call, answer=answer)


def make(arguments: argparse.Namespace, record: Ledger) -> http_service.HttpService[Call, Answer]:
    """The travel service, as the record left it."""
    bookings = Bookings(deduplication=arguments.deduplication, fencing=arguments.fencing)
    for line in read(arguments.ledger):
        bookings.recall(line.call, line.answer)
    return http_service.HttpService(
        "the travel service", world=bookings.answer, kind=Call, record=record, entry=entry, slow_ms=arguments.slow_ms
    )


if __name__ == "__main__":
    http_service.main(parser(), make)
