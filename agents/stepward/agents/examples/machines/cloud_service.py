"""The outside world of the machines example: a cloud, served over HTTP by a process of its own.

    python -m stepward.agents.examples.machines.cloud_service --port 7656 --ledger cloud.jsonl

`POST /volumes/create`, `POST /machines/install`, `POST /volumes/unlock` and so on take a call as JSON; `cloud` has the
rules.
"""

from __future__ import annotations

import argparse

from stepward.agents.examples import http_service
from stepward.agents.examples.ledger import Ledger, read_as
from stepward.agents.examples.machines.cloud import Answer, Call, Cloud, Entry

MODULE = "stepward.agents.examples.machines.cloud_service"
PORT_DEFAULT = 7656


def parser() -> argparse.ArgumentParser:
    """The command line."""
    return http_service.parser(MODULE, __doc__, port=PORT_DEFAULT, ledger="stepward-cloud.jsonl")


def entry(at_ms: int, call: Call, answer: Answer) -> Entry:
    """One line of the record."""
    return Entry(at_ms=at_ms, call=call, answer=answer)


def make(arguments: argparse.Namespace, record: Ledger) -> http_service.HttpService[Call, Answer]:
    """The cloud, as the record left it."""
    cloud = Cloud()
    for line in read_as(arguments.ledger, Entry):
        cloud.recall(line.call, line.answer)
    return http_service.HttpService(
        "the cloud", world=cloud.answer, kind=Call, record=record, entry=entry, slow_ms=arguments.slow_ms
    )


if __name__ == "__main__":
    http_service.main(parser(), make)
