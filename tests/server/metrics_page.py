"""Writes docs/metrics.md, which tells of every metric of a node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stepward.server import metrics
from stepward.server.metrics import PREFIX, Metric
from tests.repo.sources import ROOT

PAGE: Final = ROOT / "docs" / "metrics.md"
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

To alarm on: `stepward_healthy` or `stepward_ready` at 0 for some seconds; any rise of `stepward_failures_total` or
`stepward_jobs_stuck_total`; `stepward_supervisor_beat_age_seconds` above 5; no node with `stepward_leader` at 1;
`stepward_follower_connected` at 0; `stepward_disk_free_bytes` low; elections that nobody caused.

This page is written by `make docs`; a test keeps it equal to the code. The names are stable.
"""
_COLUMNS: Final = """\
| metric | kind | labels | what |
|---|---|---|---|
"""
_SECTIONS: Final = (
    ("Role and log", metrics.STANDING),
    ("Work", metrics.WORK),
    ("Between nodes", metrics.PEERS),
    ("Disk", metrics.DISK),
)
_PROCESS: Final = """
Processor time, memory and open files of the process are there, too, as `process_cpu_seconds_total`,
`process_resident_memory_bytes`, `process_open_fds` and so on: the names that Prometheus's own library gives them.
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for title, table in _SECTIONS:
        parts.append(f"\n## {title}\n\n{_COLUMNS}{_lines(table)}")
    parts.append(f"\n## Durations\n\n{_COLUMNS}")
    parts += [f"| `{PREFIX}{spread.name}` | histogram |  | {spread.help} |\n" for spread in metrics.SPREADS]
    return "".join((*parts, _PROCESS))


def _lines(table: Sequence[Metric]) -> str:
    return "".join(
        f"| `{PREFIX}{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels)} | {one.help} |\n"
        for one in table
    )


if __name__ == "__main__":
    PAGE.write_text(page())
