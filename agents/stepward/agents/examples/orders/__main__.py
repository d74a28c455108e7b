"""Run an orders agent in this one process: `python -m stepward.agents.examples.orders --server localhost:7654`.

Unlike `stepward agent run`, nothing starts it again when it is killed, and its shop may be anywhere.
"""

from __future__ import annotations

import os
import sys

from stepward.agents.examples.agent_process import AgentOptions, run
from stepward.agents.examples.orders.agent import SHOP_DEFAULT, orders_agent


def main() -> int:
    """Entry of the command line."""
    options = AgentOptions(
        prog="python -m stepward.agents.examples.orders",
        description=__doc__,
        server=os.environ.get("STEPWARD_SERVER", "localhost:7654"),
        flag="--shop",
        service=os.environ.get("STEPWARD_SHOP", SHOP_DEFAULT),
    )
    return run(
        options,
        lambda given: orders_agent(
            shop=given.service, slots=given.slots, name=given.name, starts_service=given.starts_service
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
