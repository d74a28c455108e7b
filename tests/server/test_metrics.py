"""What a scrape of a node holds, and that the page about it is true."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stepward.server import metrics
from stepward.server.metrics import METRICS, PREFIX, SPREADS
from stepward.server.node import Node
from stepward.server.observe import Counters, Histogram
from stepward.v1 import cluster_service_pb2, definition_pb2, job_service_pb2
from tests.server import nodes
from tests.server.metrics_page import PAGE, page
from tests.server.nodes import CALL_S_MAX, submission
from tests.server.plain_agent import agent

S = CALL_S_MAX
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def fetch(address: str, path: str) -> tuple[int, str]:
    """Code and text of a page."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def parsed(text: str) -> Samples:
    """Samples by name and labels; what is not in the format raises."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def scrape(node: Node) -> Samples:
    code, text = await asyncio.to_thread(fetch, node.http_address, "/metrics")
    assert code == 200
    return parsed(text)


def test_page_is_what_the_code_tells() -> None:
    """`make docs` writes it anew."""
    assert PAGE.read_text() == page()


def test_names_keep_the_rules_of_prometheus() -> None:
    """A counter ends in _total, nothing else does; units are seconds and bytes; each name stands once."""
    names = [one.name for one in METRICS] + [spread.name for spread in SPREADS]

    assert len(set(names)) == len(names)
    assert [one.name for one in METRICS if (one.kind == "counter") != one.name.endswith("_total")] == []
    assert [name for name in names if name.endswith(("_ms", "_millis", "_mb"))] == []


def test_every_counter_of_the_process_is_told() -> None:
    """One that is counted and not shown is found out about too late."""
    told = Path(metrics.__file__).read_text()
    # What has another name there: the sum of its reasons, of its methods.
    elsewhere = {"calls", "refusals", "shed"}

    assert [
        name for name in Counters.__struct_fields__ if f"counters.{name}" not in told and name not in elsewhere
    ] == []


async def test_scrape_of_a_node_that_works(tmp_path: Path) -> None:
    """Every metric is there, in the format; what a job does shows; nothing is labelled by what users choose."""
    async with (
        nodes.running(tmp_path / "d") as node,
        nodes.connected(node.address) as stubs,
        agent(stubs, "one"),
    ):
        await nodes.define(stubs, "one", definition_pb2.Step(id="one"))
        before = await scrape(node)
        await stubs.jobs.RunJob(job_service_pb2.RunJobRequest(job=submission("one")), timeout=S)
        await nodes.refused(stubs.jobs.GetJob(job_service_pb2.GetJobRequest(job_id="01-none"), timeout=S))
        await nodes.refused(stubs.jobs.SubmitJob(job_service_pb2.SubmitJobRequest(job=submission("none")), timeout=S))

        async def beaten() -> bool:
            return (f"{PREFIX}supervisor_beat_age_seconds", ()) in await scrape(node)

        await nodes.eventually(beaten)
        after = await scrape(node)

    named = {name for name, _ in after}
    # There are no followers, nothing was shed, remedied or failed; a leader hears of no other one.
    of_followers = {f"follower_{what}" for what in ("connected", "lag_entries", "answer_age_seconds", "free_bytes")}
    absent = {*of_followers, "shed_total", "remediations_total", "breaker_open"}
    assert {one.name for one in METRICS if PREFIX + one.name not in named} == absent
    assert after["stepward_leader", ()] == after["stepward_ready", ()] == after["stepward_healthy", ()] == 1
    assert after["stepward_head_sequence", ()] > before["stepward_head_sequence", ()]
    run = (("code", "OK"), ("method", "stepward.v1.JobService/RunJob"))
    assert after["stepward_calls_total", run] == 1
    assert ("stepward_calls_total", run) not in before
    assert (
        sum(v for (name, labels), v in after.items() if name == "stepward_calls_total" and "GetJob" in str(labels)) == 1
    )
    assert after["stepward_command_rejections_total", (("reason", "DEFINITION_NOT_FOUND"),)] == 1
    assert after["stepward_waiting", (("kind", "agent_streams"),)] == 1
    assert after["stepward_flush_seconds_count", ()] == after["stepward_flushes_total", ()] > 0
    assert after["stepward_disk_free_bytes", ()] > 0


async def test_status_says_the_same(tmp_path: Path) -> None:
    """`stepward cluster status` is for people what the metrics are for machines."""
    async with nodes.running(tmp_path / "d") as node, nodes.connected(node.address) as stubs:
        status = await stubs.cluster.GetStatus(cluster_service_pb2.GetStatusRequest(), timeout=S)
    (shard,) = status.shards

    assert (status.state, status.state_reason) == (cluster_service_pb2.NODE_STATE_SERVING, "")
    assert (shard.leader, shard.leader_id) == (True, status.node_id)
    assert 1 <= shard.log_first_index <= shard.log_last_index
    assert shard.log_last_index >= shard.sequence
    assert shard.free_bytes > 0
    assert not shard.HasField("leader_contact_age")
    assert not shard.fetching_rows


async def test_pages_are_off_when_asked(tmp_path: Path) -> None:
    async with nodes.running(tmp_path / "d", http_port=None) as node:
        assert node.http_address == ""


@pytest.mark.parametrize(
    ("took_s", "place"),
    [
        # At a bound it counts there, above it in the next one.
        (0.0, 0),
        (0.5, 0),
        (0.500001, 1),
        (1.0, 1),
        (1.000001, 2),
        (1e9, 2),
    ],
)
def test_histogram(took_s: float, place: int) -> None:
    histogram = Histogram((0.5, 1.0))
    histogram.note(took_s)

    assert histogram.counts == [int(at == place) for at in range(3)]
    assert histogram.sum_s == took_s
