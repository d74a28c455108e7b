"""Run a trip agent in this one process: `python -m stepward.agents.examples --server localhost:7654`.

Unlike `stepward agent run`, nothing starts it again when it is killed, and its travel service may be anywhere.
"""

from __future__ import annotations

import argparse
import os
import sys

from stepward.agents import worker
from stepward.agents.examples.trip import SLOTS_DEFAULT, TRAVEL_DEFAULT, trip_agent


def main() -> int:
    """Entry of the command line."""
    options = argparse.ArgumentParser(prog="python -m stepward.agents.examples", description=__doc__)
    server = os.environ.get("STEPWARD_SERVER", "localhost:7654")
    travel = os.environ.get("STEPWARD_TRAVEL", TRAVEL_DEFAULT)
    options.add_argument("--server", default=server, help="addresses, with commas between (default: %(default)s)")
    options.add_argument("--travel", default=travel, help="address of the travel service (default: %(default)s)")
    options.add_argument("--slots", type=int, default=SLOTS_DEFAULT, help="steps at once (default: %(default)s)")
    options.add_argument("--name", help="for people")
    options.add_argument("--no-service", dest="starts_service", action="store_false", help="never start one")
    options.add_argument("--drain-with-input", action="store_true", help="drain when standard input ends")
    given = options.parse_args()
    agent = trip_agent(travel=given.travel, slots=given.slots, name=given.name, starts_service=given.starts_service)
    if given.drain_with_input:
        worker.drain_when_input_ends(agent)
    return agent.run(given.server.split(","))


if __name__ == "__main__":
    sys.exit(main())
