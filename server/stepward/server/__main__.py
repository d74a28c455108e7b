"""`python -m stepward.server`: runs a node. Only here the server reads the command line and the environment.

stdout gets one line of JSON when the node is ready; logs go to stderr. Exit codes: 0 after a request to stop, 1 when
the node could not start, 70 when it could not go on, 71 when its disk hangs, 78 when it is not installed or not
started as it must be.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from stepward.server.config import ClusterConfig, NodeConfig
    from stepward.server.node import Node

EXIT_CANNOT_START = 1
EXIT_CANNOT_GO_ON = 70
EXIT_UNFIT = 78

# A cluster of one node has no election to outlive, so a lost agent may be noticed sooner than in a larger one.
DEV_SESSION_TTL_MS = 3_000
# What is read from stdin means nothing; only its end does.
_STDIN_BYTES = 4_096
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
LOG_LEVELS = ("debug", "info", "warning", "error")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a node until it is asked to stop; the exit code."""
    if not __debug__:
        return _unfit("python runs with -O, which switches off the checks that stop a broken node; run it without")
    options = _parser().parse_args(arguments)
    try:
        import stepward.server.node  # noqa: F401 - tried here, so that what is missing is told in one line
    except ModuleNotFoundError as error:
        return _unfit(f"{error.name} is not installed; install the node with: pip install 'stepward[server]'")
    return _run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m stepward.server", description="Runs a stepward node.")
    commands = parser.add_subparsers(dest="command", required=True)
    dev = commands.add_parser("dev", help="run a cluster of one node, which is made when the directory has none")
    run = commands.add_parser("run", help="run a node of a cluster that exists")
    for command in (dev, run):
        command.add_argument("--data", type=Path, required=True, help="directory that holds what must not be lost")
        command.add_argument("--host", default="127.0.0.1", help="where to listen (default: %(default)s)")
        command.add_argument("--port", type=int, default=7654, help="0: any free one (default: %(default)s)")
        command.add_argument(
            "--http-host", default="127.0.0.1", help="where /metrics, /healthz and /readyz are (default: %(default)s)"
        )
        command.add_argument("--http-port", type=int, default=0, help="0: any free one (default: %(default)s)")
        command.add_argument("--no-http", action="store_true", help="serve no pages for monitoring")
        command.add_argument("--ready-fd", type=int, help="also write the ready line to this file descriptor")
        command.add_argument(
            "--retention",
            type=_duration_ms,
            default="7d",
            help="how long ended jobs are kept, as in 7d, 36h, 90m, 30s or 1500ms (default: %(default)s)",
        )
        command.add_argument(
            "--log-level", choices=LOG_LEVELS, default=None, help="default: $STEPWARD_LOG_LEVEL or info"
        )
    dev.add_argument(
        "--session-ttl-ms",
        type=int,
        default=DEV_SESSION_TTL_MS,
        help="after so long without a heartbeat an agent's lease is over (default: %(default)s)",
    )
    dev.add_argument(
        "--exit-with-parent",
        action="store_true",
        help="stop when the other end of stdin is closed, as it is when who started this has ended in any way",
    )
    run.add_argument("--session-ttl-ms", type=int, default=10_000, help="as for dev (default: %(default)s)")
    return parser


def _duration_ms(text: str) -> int:
    """A duration of the command line in milliseconds."""
    found = re.fullmatch(r"([0-9]{1,18})(ms|s|m|h|d)", text)
    if found is None:
        msg = f"{text!r} is not a duration: write a whole number and ms, s, m, h or d, as in 36h"
        raise argparse.ArgumentTypeError(msg)
    return int(found[1]) * _UNITS_MS[found[2]]


def _run(options: argparse.Namespace) -> int:
    from stepward.server import config, observe
    from stepward.server.core.limits import Limits
    from stepward.server.logbook.identity import ensure_cluster
    from stepward.server.node import AddressTaken
    from stepward.server.probes import ProbesAddressTaken
    from stepward.server.store.errors import ServerError

    observe.configure_logging(_log_level(options.log_level))
    cluster = config.ClusterConfig(limits=Limits(session_ttl_ms=options.session_ttl_ms, retention_ms=options.retention))
    node = config.NodeConfig(
        data=options.data,
        host=options.host,
        port=options.port,
        http_host=options.http_host,
        http_port=None if options.no_http else options.http_port,
    )
    try:
        config.check(cluster, node)
        if options.command == "dev":
            ensure_cluster(options.data, "n1")
        return _loop_runner()(_serve(cluster, node, options))
    except (config.ConfigError, ServerError, AddressTaken, ProbesAddressTaken) as error:
        return _failed(str(error), EXIT_CANNOT_START)
    except OSError as error:
        place = error.filename or "a pipe or file that the node was given"
        return _failed(f"{place} cannot be used ({error.strerror}); mend that, then start again", EXIT_CANNOT_START)


def _log_level(asked: str | None) -> str:
    level = asked or os.environ.get("STEPWARD_LOG_LEVEL", "info").lower()
    return level if level in LOG_LEVELS else "info"


def _loop_runner() -> Callable[[Coroutine[None, None, int]], int]:
    """What runs a coroutine: uvloop's loop where it is installed, which is faster, else asyncio's."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.run
    return uvloop.run


async def _serve(cluster: ClusterConfig, config: NodeConfig, options: argparse.Namespace) -> int:
    """Run a node until a signal, or until it cannot go on."""
    from stepward.server.node import Node

    node = Node(cluster, config)
    asked_to_stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked_to_stop.set)
    if options.command == "dev" and options.exit_with_parent and _is_pipe(sys.stdin.fileno()):
        _on_end_of_pipe(loop, sys.stdin.fileno(), asked_to_stop.set)
    fatal = asyncio.create_task(node.fatal())
    stop = asyncio.create_task(asked_to_stop.wait())
    try:
        await node.start()
        if not fatal.done():
            _tell_ready(node, options.ready_fd)
        await asyncio.wait((fatal, stop), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.cancel()
        await node.stop()
    if fatal.done():
        return _failed(fatal.result(), EXIT_CANNOT_GO_ON)
    fatal.cancel()
    return 0


def _is_pipe(descriptor: int) -> bool:
    """Whether the end of another process would close it. asyncio makes sockets instead of pipes on some platforms."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _on_end_of_pipe(loop: asyncio.AbstractEventLoop, descriptor: int, ended: Callable[[], object]) -> None:
    """Call `ended` once, when nobody holds the other end any more. The kernel closes it also after kill -9."""

    def readable() -> None:
        try:
            if os.read(descriptor, _STDIN_BYTES):
                return
        except ConnectionError:
            pass
        loop.remove_reader(descriptor)
        ended()

    loop.add_reader(descriptor, readable)


def _tell_ready(node: Node, ready_fd: int | None) -> None:
    line = json.dumps(
        {
            "event": "ready",
            "address": node.address,
            "pid": os.getpid(),
            "node_id": node.identity.node_id,
            "cluster_id": node.identity.cluster_id,
            "http": node.http_address,
        }
    )
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
    if ready_fd is not None:
        os.write(ready_fd, line.encode() + b"\n")
        os.close(ready_fd)


def _unfit(reason: str) -> int:
    return _failed(reason, EXIT_UNFIT)


def _failed(reason: str, code: int) -> int:
    """Say why, as the last line on stderr."""
    sys.stderr.write(json.dumps({"event": "node_failed", "level": "critical", "reason": reason, "code": code}) + "\n")
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    sys.exit(main())
