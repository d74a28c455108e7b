"""The command line of a node, and which of its options and of the environment's variables say what of the file."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stepward.server.config_file import Override

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepward.server.config_file import Key

# A cluster of one node has no election to outlive, so a lost agent may be noticed sooner than in a larger one.
DEV_SESSION_TTL_MS: Final = 3_000
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

# What a variable of the environment overrides. The TLS files have names of their own: those of a client on the same
# machine are in STEPWARD_TLS_*.
VARIABLES: Final[dict[str, Key]] = {
    "STEPWARD_NODE_ID": ("node", "id"),
    "STEPWARD_DATA": ("node", "data"),
    "STEPWARD_HOST": ("node", "host"),
    "STEPWARD_PORT": ("node", "port"),
    "STEPWARD_ADVERTISE": ("node", "advertise"),
    "STEPWARD_NODES": ("cluster", "nodes"),
    "STEPWARD_TRUSTED_NETWORK": ("node", "trusted_network"),
    "STEPWARD_WEBHOOK_URL": ("incidents", "webhook_url"),
    "STEPWARD_WEBHOOK_SECRET_FILE": ("incidents", "webhook_secret_file"),
    "STEPWARD_SESSION_TTL_MS": ("cluster", "session_ttl_ms"),
    "STEPWARD_RETENTION_MS": ("cluster", "retention_ms"),
    "STEPWARD_HTTP_HOST": ("http", "host"),
    "STEPWARD_HTTP_PORT": ("http", "port"),
    "STEPWARD_NODE_TLS_CA": ("tls", "ca"),
    "STEPWARD_NODE_TLS_CERTIFICATE": ("tls", "certificate"),
    "STEPWARD_NODE_TLS_KEY": ("tls", "key"),
}
# The same of the options, by their place in the parsed arguments. An option counts more than a variable.
_OPTIONS: Final[dict[str, tuple[str, Key]]] = {
    "node_id": ("--node-id", ("node", "id")),
    "data": ("--data", ("node", "data")),
    "host": ("--host", ("node", "host")),
    "port": ("--port", ("node", "port")),
    "nodes": ("--nodes", ("cluster", "nodes")),
    "session_ttl_ms": ("--session-ttl-ms", ("cluster", "session_ttl_ms")),
    "retention": ("--retention", ("cluster", "retention_ms")),
    "http_host": ("--http-host", ("http", "host")),
    "http_port": ("--http-port", ("http", "port")),
}


def parser() -> argparse.ArgumentParser:
    """Of `python -m stepward.server`."""
    program = argparse.ArgumentParser(prog="python -m stepward.server", description="Runs a stepward node.")
    commands = program.add_subparsers(dest="command", required=True)
    dev = commands.add_parser("dev", help="run a cluster of one node, which is made when the directory has none")
    dev.add_argument("--data", type=Path, required=True, help="directory that holds what must not be lost")
    run = commands.add_parser("run", help="run a node, as its file, its environment and the options here say")
    check = commands.add_parser("check", help="say what is wrong with a configuration, all of it")
    found = commands.add_parser("found", help="make the directories of all nodes of a new cluster on this machine")
    for command in (run, check):
        command.add_argument("--config", type=Path, help="the file, such as stepward.toml")
        command.add_argument("--data", help="directory that holds what must not be lost")
        command.add_argument("--node-id", help="which of the nodes this one is")
        command.add_argument("--nodes", help="all nodes, as in n1=host:7654,n2=host:7654,n3=host:7654")
    found.add_argument("--data", type=Path, required=True, help="directory in which each node gets one of its own")
    found.add_argument("--node-ids", required=True, help="the nodes, as in n1,n2,n3")
    for command in (dev, run, check):
        _add_shared(command)
    dev.set_defaults(session_ttl_ms=str(DEV_SESSION_TTL_MS), config=None)
    return program


def _add_shared(command: argparse.ArgumentParser) -> None:
    command.add_argument("--host", help="where to listen (default: 127.0.0.1)")
    command.add_argument("--port", help="0: any free one (default: 7654)")
    command.add_argument("--http-host", help="where /metrics, /healthz and /readyz are (default: 127.0.0.1)")
    command.add_argument("--http-port", help="0: any free one (default: 0)")
    command.add_argument("--no-http", action="store_true", help="serve no pages for monitoring")
    command.add_argument("--ready-fd", type=int, help="also write the ready line to this file descriptor")
    command.add_argument(
        "--retention",
        type=duration_ms,
        help="how long ended jobs are kept, as in 7d, 36h, 90m, 30s or 1500ms (default: 7d)",
    )
    command.add_argument("--log-level", choices=LOG_LEVELS, default=None, help="default: $STEPWARD_LOG_LEVEL or info")
    command.add_argument(
        "--session-ttl-ms",
        help="after so long without a heartbeat an agent's lease is over (default: 10000; with dev 3000)",
    )
    command.add_argument(
        "--exit-with-parent",
        action="store_true",
        help="stop when the other end of stdin is closed, as it is when who started this has ended in any way",
    )


def duration_ms(text: str) -> int:
    """A duration of the command line in milliseconds."""
    found = re.fullmatch(r"([0-9]{1,18})(ms|s|m|h|d)", text)
    if found is None:
        msg = f"{text!r} is not a duration: write a whole number and ms, s, m, h or d, as in 36h"
        raise argparse.ArgumentTypeError(msg)
    return int(found[1]) * _UNITS_MS[found[2]]


def overrides(options: argparse.Namespace, environment: Mapping[str, str]) -> list[Override]:
    """What counts more than the file, the last the most. `dev` is told everything by its options."""
    found = []
    if options.command != "dev":
        found = [Override(name, key, environment[name]) for name, key in VARIABLES.items() if environment.get(name)]
    for place, (option, key) in _OPTIONS.items():
        value = getattr(options, place, None)
        if value is not None:
            found.append(Override(option, key, str(value)))
    if options.no_http:
        found.append(Override("--no-http", ("http", "enabled"), "false"))
    return found
