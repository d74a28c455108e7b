"""`python -m stepward.server`: runs a node. Only here the server reads the command line and the environment.

stdout gets one line of JSON when the node is ready; logs go to stderr. Exit codes: 0 after a request to stop, 1 when
the node could not start, 70 when it could not go on, 71 when its disk hangs, 78 when it is not installed or not
started as it must be.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Coroutine, Iterable, Sequence

EXIT_CANNOT_START = 1
EXIT_CANNOT_GO_ON = 70
EXIT_UNFIT = 78


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a node until it is asked to stop; the exit code."""
    if not __debug__:
        return _unfit("python runs with -O, which switches off the checks that stop a broken node; run it without")
    try:
        # Tried here, so that what is missing is told in one line.
        import stepward.server.arguments
        import stepward.server.node
    except ModuleNotFoundError as error:
        return _unfit(f"{error.name} is not installed; install the node with: pip install 'stepward[server]'")
    options = stepward.server.arguments.parser().parse_args(arguments)
    match options.command:
        case "check":
            return _check(options)
        case "found":
            return _found(options)
        case _:
            return _run(options)


def _check(options: argparse.Namespace) -> int:
    """Say what is wrong with a configuration, one line each, or what it says."""
    from stepward.server import arguments, config_file
    from stepward.server.logbook.errors import DirectoryTaken
    from stepward.server.peers import certificate
    from stepward.server.store.errors import ServerError
    from stepward.server.store.lmdb_store import strangers

    overrides, now, warning = arguments.overrides(options, os.environ), datetime.now(UTC), ""
    try:
        node = config_file.read(options.config, overrides).node
        if node.tls is not None:
            warning = certificate.ends_soon(certificate.check(node, now), now)
        if foreign := strangers(node.data):
            raise DirectoryTaken(node.data, foreign[0])
    except config_file.ConfigInvalid as invalid:
        return _wrong(problem.line for problem in invalid.problems)
    except certificate.TlsUnusable as unusable:
        return _wrong(problem.line for problem in config_file.placed(options.config, overrides, unusable.faults))
    except ServerError as error:
        return _wrong([str(error)])
    if warning:
        sys.stderr.write(f"warning: {warning}\n")
    others = ", ".join(f"{node_id} at {address}" for node_id, address in sorted(node.peers.items())) or "no others"
    sys.stdout.write(
        f"node {node.node_id} listens on {node.host}:{node.port}, keeps its data in {node.data.absolute()}\n"
    )
    sys.stdout.write(f"its cluster has {others}; TLS is {'on' if node.tls else 'off'}\n")
    return 0


def _wrong(lines: Iterable[str]) -> int:
    sys.stderr.writelines(f"{line}\n" for line in lines)
    return EXIT_CANNOT_START


def _found(options: argparse.Namespace) -> int:
    """Make the directories of a new cluster, where there are none yet."""
    from stepward.server import membership
    from stepward.server.store.errors import ServerError

    node_ids = options.node_ids.split(",")
    try:
        cluster_id = membership.found_directories(options.data, node_ids)
    except (ServerError, ValueError) as error:
        return _failed(str(error), EXIT_CANNOT_START)
    except OSError as error:
        return _failed(f"{error.filename} cannot be used ({error.strerror})", EXIT_CANNOT_START)
    sys.stdout.write(json.dumps({"event": "founded", "cluster_id": cluster_id, "members": sorted(node_ids)}) + "\n")
    return 0


def _run(options: argparse.Namespace) -> int:
    from stepward.server import arguments, config_file, observe, serving
    from stepward.server.listening import AddressTaken
    from stepward.server.logbook.identity import ensure_cluster
    from stepward.server.probes import ProbesAddressTaken
    from stepward.server.store.errors import ServerError

    observe.configure_logging(_log_level(options.log_level))
    orders = serving.Orders(ready_fd=options.ready_fd, exit_with_parent=options.exit_with_parent)
    try:
        configuration = config_file.read(options.config, arguments.overrides(options, os.environ))
        if options.command == "dev":
            ensure_cluster(configuration.node.data, configuration.node.node_id)
        reason = _loop_runner()(serving.serve(configuration, orders))
    except (config_file.ConfigInvalid, ServerError, AddressTaken, ProbesAddressTaken) as error:
        return _failed(str(error), EXIT_CANNOT_START)
    except OSError as error:
        place = error.filename or "a pipe or file that the node was given"
        return _failed(f"{place} cannot be used ({error.strerror}); mend that, then start again", EXIT_CANNOT_START)
    return _failed(reason, EXIT_CANNOT_GO_ON) if reason else 0


def _log_level(asked: str | None) -> str:
    from stepward.server.arguments import LOG_LEVELS

    level = asked or os.environ.get("STEPWARD_LOG_LEVEL", "info").lower()
    return level if level in LOG_LEVELS else "info"


def _loop_runner() -> Callable[[Coroutine[None, None, str]], str]:
    """What runs a coroutine: uvloop's loop where it is installed, which is faster, else asyncio's."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.run
    return uvloop.run


def _unfit(reason: str) -> int:
    return _failed(reason, EXIT_UNFIT)


def _failed(reason: str, code: int) -> int:
    """Say why, as the last line on stderr."""
    sys.stderr.write(json.dumps({"event": "node_failed", "level": "critical", "reason": reason, "code": code}) + "\n")
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    sys.exit(main())
