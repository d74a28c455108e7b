"""Three nodes as their pages tell, while they lead, follow, and lose each other."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

from loadtest.cluster import cluster
from stepward.client.demo.processes import Child
from tests.server.test_metrics import Samples, fetch, parsed

S_MAX = 20.0
NODES = ("n1", "n2", "n3")


def scrape(node: Child) -> Samples:
    code, text = fetch(str(node.ready["http"]), "/metrics")
    assert code == 200
    return parsed(text)


def ready(node: Child) -> tuple[int, str]:
    return fetch(str(node.ready["http"]), "/readyz")


def value(node: Child, name: str, **labels: str) -> float | None:
    return scrape(node).get((f"stepward_{name}", tuple(sorted(labels.items()))))


def until(holds: Callable[[], bool]) -> None:
    """Wait for a condition; scrapes are its clock."""
    ends_at_s = time.monotonic() + S_MAX
    while not holds():
        assert time.monotonic() < ends_at_s
        time.sleep(0.05)


def leads(node: Child) -> bool:
    return value(node, "leader") == 1


def test_h091_three_nodes_tell_the_truth(tmp_path: Path) -> None:
    """Who leads, how far the others are, and that nobody can serve when a majority is gone; never a nonsense number."""
    with cluster(tmp_path, nodes=3, with_tls=False) as servers:
        leader, others = servers.leader, [one for one in servers.servers if one is not servers.leader]
        until(lambda: all(ready(node) == (200, "ok\n") for node in servers.servers))
        until(lambda: all(value(leader, "follower_connected", peer=one.name) == 1 for one in others))
        until(lambda: all((value(leader, "follower_lag_entries", peer=one.name) or 0) <= 2 for one in others))

        assert [leads(one) for one in (leader, *others)] == [True, False, False]
        assert value(others[0], "leader_known") == 1
        assert (value(others[0], "leader_contact_age_seconds") or 0) < 1
        assert value(others[0], "follower_connected", peer=leader.name) is None
        assert value(others[0], "supervisor_beat_age_seconds") is not None
        assert (value(others[0], "frames_received_total") or 0) > 0

        changes = {one.name: value(one, "leader_changes_total") or 0 for one in others}
        leader.kill()
        until(lambda: any(leads(one) for one in others))
        new = next(one for one in others if leads(one))
        last = next(one for one in others if one is not new)
        until(lambda: value(last, "leader_changes_total") == changes[last.name] + 1)
        until(lambda: value(new, "follower_connected", peer=leader.name) == 0)

        assert (value(new, "elections_total") or 0) >= 1
        assert ready(new) == (200, "ok\n")

        new.kill()
        until(lambda: ready(last)[0] == 503)
        lonely = scrape(last)

    assert (lonely["stepward_ready", ()], lonely["stepward_healthy", ()], lonely["stepward_leader", ()]) == (0, 1, 0)
    assert [key for key, number in lonely.items() if not math.isfinite(number) or number < 0] == []
    assert lonely["stepward_leader_lease_seconds", ()] == 0
