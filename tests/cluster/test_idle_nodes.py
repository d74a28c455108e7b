"""What three nodes cost while nothing happens; the long form is `make idle MINUTES=10`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.idle import CPU_PERCENT_MAX, Cost, Look, between, breaches, measure
from tests.cluster.nodes import Nodes

SECONDS = 20.0
# Neighbours that work all the time share caches and interrupts, which counts as time of these.
BUSY = 1.5
QUIET_S = 3.0
# Two pages of the store, which it may need when the log is cut. What is not cut grows by three times as much.
GROWN_BYTES_MAX = 8_192


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_nodes_at_rest_cost_little_and_do_not_grow(tmp_path: Path) -> None:
    """Each batch of the supervisor is an entry of the log, which is as long as it may be all the time."""
    with Nodes(tmp_path) as nodes:
        nodes.start_nodes()
        costs = await measure(nodes, SECONDS, quiet_s=QUIET_S)

    assert breaches(costs, cpu_percent_max=BUSY * CPU_PERCENT_MAX, grown_bytes_max=GROWN_BYTES_MAX) == []


def test_what_is_over_its_bound_is_told() -> None:
    """At the bounds nothing is."""
    first = Look(at_s=10.0, cpu_s=1.0, rss_bytes=5, disk_bytes=100)
    at_bound = between(first, Look(at_s=20.0, cpu_s=1.3, rss_bytes=6, disk_bytes=100))
    beyond = between(first, Look(at_s=20.0, cpu_s=1.31, rss_bytes=6, disk_bytes=101))

    assert at_bound.cpu_percent == pytest.approx(3.0)
    assert breaches({"n1": Cost(3.0, 6, 100, 0)}) == []
    assert [text.split(";")[0] for text in breaches({"n1": beyond})] == [
        "n1 took 3.1% of a processor while nothing happened",
        "n1 has 1 bytes more on disk than before, and nothing had happened",
    ]
