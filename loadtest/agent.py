"""The agent of the benchmark: handlers that do nothing, and a count of what they did.

It says in one JSON line when it starts, and in another, when it ends, how many handlers ran and for how many keys: with
nothing failing, both are as many for each job as its shape has steps.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from loadtest.files import add_tls_options, tls_of
from loadtest.shapes import ACTIONS, OUTPUT, QUEUE, REFUSE, trip
from stepward.agents import Agent, Context, Permanent


class Count:
    """What ran."""

    def __init__(self) -> None:
        self.runs = 0
        self.keys: set[str] = set()

    def note(self, ctx: Context) -> None:
        """A handler runs."""
        self.runs += 1
        self.keys.add(ctx.idempotency_key)


def bench_agent(slots: int) -> tuple[Agent, Count]:
    """An agent that counts."""
    agent = Agent(queue=QUEUE, slots=slots, definitions=[trip()])
    count = Count()

    async def succeed(ctx: Context) -> dict[str, Any]:
        count.note(ctx)
        return OUTPUT

    async def refuse(ctx: Context) -> None:
        count.note(ctx)
        raise Permanent("there is none left", kind="NoneLeft")

    for action in ACTIONS:
        agent.action(action)(refuse if action == REFUSE else succeed)
    return agent, count


def say(**fields: Any) -> None:
    """One JSON line on standard output."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Entry of the command line."""
    options = argparse.ArgumentParser(prog="python -m loadtest.agent", description=__doc__)
    options.add_argument("--server", required=True, help="where; several behind commas")
    options.add_argument("--slots", type=int, default=512)
    add_tls_options(options)
    given = options.parse_args()
    agent, count = bench_agent(given.slots)
    say(event="ready", pid=os.getpid())
    code = agent.run(given.server.split(","), tls=tls_of(given))
    say(event="count", runs=count.runs, keys=len(count.keys))
    return code


if __name__ == "__main__":
    sys.exit(main())
