"""The route, the lag watch, and the waits of the parent: pure, by tables."""

from __future__ import annotations

import ast
import random
import re
from pathlib import Path

import pytest

from stepward.agents.clock import steady_ms
from stepward.agents.lag import LAG_MS_MAX, PROBE_INTERVAL_MS, LagWatch, StallWatch
from stepward.agents.parent import RESTART_S_MAX, restart_wait_s
from stepward.agents.route import BACKOFF_MS_MAX, LEARNT_MAX, Route
from tests.repo.sources import ROOT

PURE = (
    *("attempts", "directives", "holdings", "lag", "lease", "memory", "outbox", "outcomes"),
    *("route", "session", "stopping", "stops"),
)


def test_route_goes_around() -> None:
    """The next address each time, whatever the first was."""
    route = Route(["a", "b", "c", "a"], random.Random(1))
    taken = [route.next_address() for _ in range(6)]

    assert taken[:3] == taken[3:]
    assert sorted(taken[:3]) == ["a", "b", "c"]
    assert "".join(taken[:3]) in "abcabc"


def test_route_begins_anywhere() -> None:
    """Else all agents would sit on the node that stands first in everyone's list."""
    firsts = {Route(["a", "b", "c"], random.Random(seed)).next_address() for seed in range(50)}

    assert firsts == {"a", "b", "c"}


def test_route_goes_first_where_a_node_sends_it() -> None:
    route = Route(["a", "b"], random.Random(1))
    route.prefer(["x", "y"])

    assert [route.next_address() for _ in range(2)] == ["x", "y"]
    assert route.next_address() in ("a", "b")


def test_route_learns_of_other_nodes() -> None:
    """They stand behind those that were given, and the walk goes on behind the node that named them."""
    route = Route(["a"], random.Random(1))
    alone = [route.alone]
    assert route.next_address() == "a"
    route.learn(["b", "a", "c"], at="a")
    alone.append(route.alone)
    assert alone == [True, False]
    assert [route.next_address() for _ in range(4)] == ["b", "c", "a", "b"]

    route.learn([], at="b")

    assert [route.next_address() for _ in range(2)] == ["a", "a"]


def test_route_learns_so_many_and_no_more() -> None:
    route = Route(["a"], random.Random(1))
    route.learn([str(number) for number in range(LEARNT_MAX + 1)], at="a")

    assert [route.next_address() for _ in range(LEARNT_MAX + 1)] == [*map(str, range(LEARNT_MAX)), "a"]


@pytest.mark.parametrize(
    ("failures", "bound_ms"),
    [(0, 100), (1, 200), (4, 1_600), (5, BACKOFF_MS_MAX), (1_000_000, BACKOFF_MS_MAX)],
)
def test_wait_doubles_up_to_the_cap_with_full_jitter(failures: int, bound_ms: int) -> None:
    waits = []
    for seed in range(200):
        route = Route(["a"], random.Random(seed))
        route.failures = failures
        waits.append(route.failed_wait_ms())

    assert 0 <= min(waits) < bound_ms // 10
    assert bound_ms * 9 // 10 < max(waits) <= bound_ms


def test_welcome_begins_the_waits_anew() -> None:
    route = Route(["a"], random.Random(1))
    for _ in range(10):
        route.failed_wait_ms()
    route.welcomed()

    assert route.failed_wait_ms() <= 100


@pytest.mark.parametrize(
    ("failures", "bound_s"), [(1, 0.5), (2, 1.0), (6, 16.0), (7, RESTART_S_MAX), (1_000_000, RESTART_S_MAX)]
)
def test_restart_waits_between_half_of_the_bound_and_all_of_it(failures: int, bound_s: float) -> None:
    """A worker that cannot live costs no more than two starts a minute."""
    waits = [restart_wait_s(failures, random.Random(seed)) for seed in range(200)]

    assert bound_s / 2 <= min(waits)
    assert max(waits) <= bound_s


def test_lag_is_noticed_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    watch = LagWatch(sight=lambda: "the handler of 'book'")
    assert watch.ask(0)
    lagging = []
    for now_ms in (LAG_MS_MAX - 1, LAG_MS_MAX, LAG_MS_MAX + 1):
        assert not watch.ask(now_ms)
        lagging.append(watch.lagging)
    watch.answered(5_000)
    lagging.append(watch.lagging)

    assert lagging == [False, True, True, False]
    assert [record.getMessage().split()[0] for record in caplog.records] == ["loop_blocked", "loop_unblocked"]
    assert "It is at the handler of 'book'" in caplog.text


@pytest.mark.parametrize(
    ("ttl_ms", "late_ms", "said"),
    [
        # The time between two heartbeats, and one more.
        (9_000, 1_500, ""),
        (9_000, 1_501, "for_ms=1501 cpu_ms=40 ttl_ms=9000"),
        # Before anything is promised.
        (0, LAG_MS_MAX, ""),
        (0, LAG_MS_MAX + 1, f"for_ms={LAG_MS_MAX + 1} cpu_ms=40 ttl_ms=0"),
    ],
)
def test_stall_is_told_by_its_length(ttl_ms: int, late_ms: int, said: str) -> None:
    watch = StallWatch(tick_ms=50)

    assert watch.woke(1_000, cpu_ms=lambda: 10, ttl_ms=ttl_ms) == ""
    assert watch.woke(1_050 + late_ms, cpu_ms=lambda: 50, ttl_ms=ttl_ms) == said
    assert watch.woke(1_100 + late_ms, cpu_ms=lambda: 50, ttl_ms=ttl_ms) == ""


def test_processor_time_is_asked_once_a_tick() -> None:
    """Each handler's end looks for a stall, and the kernel sums up all threads for the answer."""
    watch, asked = StallWatch(tick_ms=50), []

    def cpu_ms() -> int:
        asked.append(1)
        return len(asked)

    for now_ms in range(1_000, 1_100):
        assert watch.woke(now_ms, cpu_ms=cpu_ms, ttl_ms=9_000) == ""

    assert len(asked) == 2


def test_loop_is_asked_now_and_then() -> None:
    watch = LagWatch(sight=str)
    watch.ask(0)
    watch.answered(1)

    assert not watch.ask(PROBE_INTERVAL_MS - 1)
    assert watch.ask(PROBE_INTERVAL_MS)


def test_steady_clock_counts_suspension() -> None:
    """On Linux it is the clock since boot, which a suspended machine does not stop."""
    uptime_ms = float(Path("/proc/uptime").read_text().split()[0]) * 1_000

    assert abs(steady_ms() - uptime_ms) < 60_000


@pytest.mark.parametrize("module", PURE)
def test_session_is_pure(module: str) -> None:
    """No I/O, no clock, no chance of their own: what decides must be playable by a test."""
    tree = ast.parse((ROOT / f"agents/stepward/agents/{module}.py").read_text())
    imported = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([one.name for one in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }
    impure = re.compile(r"^(asyncio|threading|concurrent|time|os|socket|grpc|secrets|subprocess|signal)\b")
    own = {name.removeprefix("stepward.agents.") for name in imported if name.startswith("stepward.agents.")}

    assert {name for name in imported if impure.match(name)} == set()
    assert own <= set(PURE)
