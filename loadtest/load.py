"""The load alone, for a cluster that runs already: trips at a pace for a while, and in one JSON line what came of them.

python -m loadtest.load --server localhost:7654 --inflight 64
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from dataclasses import asdict
from typing import Any

from loadtest import rates
from loadtest.files import add_tls_options, tls_of
from loadtest.stage import THROUGH, Stage
from loadtest.submitters import MODES


async def load(given: argparse.Namespace) -> dict[str, Any]:
    """The whole run."""
    async with Stage.open(given.server.split(","), tls_of(given), mode=given.mode, through=given.through) as stage:
        stage.pids = {"load": os.getpid()}
        window = (await rates.trip(stage, given)).window
        judged = await stage.judged()
    figures = {"jobs": window.jobs, "seconds": window.seconds, "counters": window.counters}
    return {**asdict(judged), **figures, "latencies_ms": window.latencies_ms}


def main() -> None:
    """Entry of the command line."""
    options = argparse.ArgumentParser(prog="python -m loadtest.load", description=__doc__)
    options.add_argument("--server", required=True, help="where jobs are submitted, and behind commas the other nodes")
    add_pace_options(options)
    options.add_argument("--mode", choices=MODES, default="run", help="how jobs are submitted (default: %(default)s)")
    add_tls_options(options)
    sys.stdout.write(json.dumps(asyncio.run(load(options.parse_args()))) + "\n")


def add_pace_options(parser: argparse.ArgumentParser) -> None:
    """How jobs are begun, and for how long."""
    parser.add_argument(
        "--through", choices=THROUGH, default="leader", help="nodes that are called in turn (default: %(default)s)"
    )
    parser.add_argument("--inflight", type=int, default=64, help="jobs at once (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=0.0, help="begin so many jobs a second, whatever is in flight")
    parser.add_argument("--warmup", type=float, default=2.0, help="seconds before (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds measured (default: %(default)s)")


if __name__ == "__main__":
    main()
