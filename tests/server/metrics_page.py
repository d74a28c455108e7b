"""Writes docs/metrics.md, which tells of every metric of a node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ruamel.yaml import YAML

from stepward.server import metrics
from stepward.server.metrics import PREFIX, Metric
from tests.repo.sources import ROOT

PAGE: Final = ROOT / "docs" / "metrics.md"
ALERTS: Final = Path(metrics.__file__).with_name("alerts.yml")
_HEAD: Final = """\
# What a node tells

Every node serves three pages over plain HTTP. The ready line says where (`"http"`); `--http-host` and `--http-port` set
it, `--no-http` turns them off. They listen on loopback unless told otherwise, and there is no access control on them.

| page | what |
|---|---|
| `/healthz` | 200 while the process works, 503 with the reason when it should be started anew |
| `/readyz` | 200 while calls may be sent to this node, 503 with the reason when it knows no leader, or drains |
| `/metrics` | what is below, in the text format of Prometheus |

All three answer while the node hangs. Values that only the node's own loop can tell are up to a second old.

What begins with *On the leader* is told by the node that leads and by no other, and is gone from a node in the moment
in which it leads no more: a sum over all nodes is the truth. Everything else each node tells as it sees it, from its
own rows and by its own clock; of what all of them see, take the worst.

Alerts for Prometheus come with the server, in `stepward/server/alerts.yml`, each with what to do:

{alerts}

This page is written by `make docs`; a test keeps it equal to the code. The names are stable.
"""
_COLUMNS: Final = """\
| metric | kind | labels | what |
|---|---|---|---|
"""
_SECTIONS: Final = (
    ("Role and log", metrics.STANDING),
    ("Work", metrics.WORK),
    ("Supervision", metrics.SUPERVISION),
    ("Between nodes", metrics.PEERS),
    ("Disk", metrics.DISK),
)
_PROCESS: Final = """
Processor time, memory and open files of the process are there, too, as `process_cpu_seconds_total`,
`process_resident_memory_bytes`, `process_open_fds` and so on: the names that Prometheus's own library gives them.
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD.format(alerts=_alerts())]
    for title, table in _SECTIONS:
        parts.append(f"\n## {title}\n\n{_COLUMNS}{_lines(table)}")
    parts.append(f"\n## Durations\n\n{_COLUMNS}")
    parts += [f"| `{PREFIX}{spread.name}` | histogram |  | {spread.help} |\n" for spread in metrics.SPREADS]
    return "".join((*parts, _PROCESS))


def _alerts() -> str:
    """The alerts, with when they fire."""
    lines = ["| alert | severity | fires when | for |", "|---|---|---|---|"]
    for group in YAML(typ="safe").load(ALERTS.read_text())["groups"]:
        lines += [
            f"| `{rule['alert']}` | {rule['labels']['severity']} | `{rule['expr']}` | {rule.get('for', 'at once')} |"
            for rule in group["rules"]
        ]
    return "\n".join(lines)


def _lines(table: Sequence[Metric]) -> str:
    return "".join(
        f"| `{PREFIX}{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels)} | {one.help} |\n"
        for one in table
    )


if __name__ == "__main__":
    PAGE.write_text(page())
