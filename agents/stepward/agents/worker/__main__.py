"""Entry of a worker process; see the package."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from typing import TYPE_CHECKING

from stepward.agents import worker

if TYPE_CHECKING:
    from stepward.client.tls import TlsFiles


def main() -> int:
    """Read the command line and run."""
    given = _parser().parse_args()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s %(message)s", stream=sys.stderr
    )
    addresses = [part.strip() for one in given.server for part in one.split(",") if part.strip()]
    return worker.run(
        given.target,
        addresses,
        slots=given.slots,
        queue=given.queue,
        drain_timeout_seconds=given.drain_timeout,
        drain_with_input=given.drain_with_input,
        tls=_tls(given),
    )


def _tls(given: argparse.Namespace) -> TlsFiles | None:
    if not (given.tls_ca or given.tls_cert or given.tls_key):
        return None
    if not given.tls_ca:
        sys.exit(
            "stepward agent: --tls-cert and --tls-key say who this is; --tls-ca says whom to trust, and is missing"
        )
    from stepward.client.tls import TlsFiles

    return TlsFiles(given.tls_ca, given.tls_cert, given.tls_key)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m stepward.agents.worker", description="Run one agent process.")
    server = os.environ.get("STEPWARD_SERVER", "localhost:7654")
    parser.add_argument("target", metavar="MODULE[:ATTR]", help="where the agent is; ATTR is `agent` by default")
    parser.add_argument("--server", nargs="+", default=[server], help="addresses of nodes (default: %(default)s)")
    parser.add_argument("--slots", type=int, help="how many steps run at once")
    parser.add_argument("--queue", help="the queue that it serves")
    parser.add_argument("--drain-timeout", type=float, metavar="SECONDS", help="how long handlers may finish")
    parser.add_argument("--drain-with-input", action="store_true", help="drain when standard input ends")
    for name, text in (
        ("ca", "speak TLS, and trust nodes that these authorities have signed"),
        ("cert", "certificate that says who this is"),
        ("key", "its key"),
    ):
        variable = f"STEPWARD_TLS_{name.upper()}"
        parser.add_argument(f"--tls-{name}", default=os.environ.get(variable), metavar="FILE", help=text)
    return parser


if __name__ == "__main__":
    sys.exit(main())
