"""What `stepward cluster status` tells of supervision, against nodes that say what they are told to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stepward.client import reading
from stepward.client.cli import cluster_status, supervision_status
from stepward.client.cli.cluster_status import Found, judge
from stepward.client.supervision import Brake, Breaker, BreakerState, Supervision, SupervisionHealth
from stepward.v1 import cluster_service_pb2 as pb
from tests.client.command_line import run
from tests.client.scripted_server import ScriptedServer
from tests.client.test_cluster import NOW, node, said, shard_of

WELL = Supervision(health=SupervisionHealth.WELL)
SILENT = Supervision(health=SupervisionHealth.WARNING, reason="no beat", supervisor_state="STALLED")
LOST = Supervision(health=SupervisionHealth.CRITICAL, reason="nothing is remedied", stays=True, epochs_lost=3)


def message(**more: Any) -> pb.Supervision:
    """What a node says that has much to tell."""
    told = pb.Supervision(
        health=pb.SUPERVISION_HEALTH_WARNING,
        reason="the brake is on",
        beats=70,
        due=9,
        overdue=3,
        overdue_by_kind=[pb.KindCount(kind="QUEUE", count=1), pb.KindCount(kind="LEASE", count=2)],
        remediations=12,
        incidents_open=2,
        epochs_lost=1,
        brake=pb.BrakeStatus(on=True, reason="six agents vanished", held=40, per_minute=600, used=100),
        **more,
    )
    told.breakers.add(namespace="default", queue="q", action="pay", state=pb.BREAKER_STATE_OPEN, reason="21 of 30")
    told.beat_age.FromMilliseconds(400)
    told.oldest_overdue.FromMilliseconds(2_500)
    told.detection_latency_max.FromMilliseconds(12)
    told.brake.ends_in.FromMilliseconds(5_000)
    told.breakers[0].probes_in.FromMilliseconds(30_000)
    return told


def test_beat_and_verdict_agree(server: ScriptedServer) -> None:
    """Both are the node's own, however long ago it answered, and whatever the wall clocks say."""
    status = said("n1", leader=True, members={"n1": server.address})
    status.shards[0].supervisor_beat_at.FromDatetime(datetime.now(UTC) - timedelta(minutes=2))
    status.shards[0].supervision.CopyFrom(message())
    server.always("GetStatus", status)

    (row,) = (line for line in run("cluster", "status", "--server", server.address).lines if line.startswith("n1"))
    assert "0.4 s ago" in row


def test_ages_count_up_to_the_answer() -> None:
    """Another node that does not answer makes nobody older."""
    asked = Found("a", "n1", node("n1", shard_of(supervisor_beat_at=NOW)).status, answered_at=NOW)
    late = NOW + timedelta(minutes=1)

    assert cluster_status._row(asked, 9, [])[9] == "0.0 s ago"
    assert list(judge([asked], late)) == ["nobody leads"]
    assert list(judge([Found("a", "n1", asked.status)], late))[1:] == [
        "nobody supervises the jobs: the last beat was 1 min ago"
    ]


def test_everything_is_read() -> None:
    """Each field of the message has its place."""
    assert reading.supervision(message(stays=True, supervisor_state="RUNNING")) == Supervision(
        health=SupervisionHealth.WARNING,
        reason="the brake is on",
        beat_age=timedelta(milliseconds=400),
        beats=70,
        due=9,
        overdue=3,
        oldest_overdue=timedelta(milliseconds=2_500),
        overdue_by_kind={"QUEUE": 1, "LEASE": 2},
        remediations=12,
        detection_latency_max=timedelta(milliseconds=12),
        incidents_open=2,
        epochs_lost=1,
        stays=True,
        supervisor_state="RUNNING",
        brake=Brake(
            on=True,
            reason="six agents vanished",
            ends_in=timedelta(seconds=5),
            held=40,
            per_minute=600,
            used=100,
        ),
        breakers=(
            Breaker(
                namespace="default",
                queue="q",
                action="pay",
                state=BreakerState.OPEN,
                reason="21 of 30",
                probes_in=timedelta(seconds=30),
            ),
        ),
    )


def test_numbers_that_are_too_new() -> None:
    assert reading.supervision_health(99) is SupervisionHealth.UNSPECIFIED  # type: ignore[arg-type]  # as a newer node
    assert reading.breaker_state(99) is BreakerState.UNSPECIFIED  # type: ignore[arg-type]  # as a newer node


def test_status_tells_it(server: ScriptedServer) -> None:
    """In the table, below it, and as what is wrong."""
    answer = said("n1", leader=True)
    answer.shards[0].supervision.CopyFrom(message())
    server.always("GetStatus", answer)

    ran = run("cluster", "status", "--server", server.address)

    assert ran.code == 1
    assert ran.stderr == "trouble: supervision is WARNING for n1: the brake is on\n"
    assert ran.lines[1].split()[12] == "WARNING"
    assert ran.lines[-4:] == [
        "supervision: 12 remedied, 9 due, 3 overdue (2 LEASE, 1 QUEUE, the oldest for 2.5 s), 2 incidents open, "
        "noticed at most 0.0 s late",
        "leaderships of the last minute that lost their supervisor: 1",
        "brake: 40 held back, at most 5.0 s more, 100 of 600 a minute used: six agents vanished",
        "breaker OPEN: default/q/pay, tried again in 30.0 s: 21 of 30",
    ]


@pytest.mark.parametrize(
    ("found", "troubles"),
    [
        ([node("n1", shard_of(leader=True, supervision=WELL)), node("n2", shard_of(supervision=WELL))], []),
        (
            [
                node("n1", shard_of(leader_id="n1", supervision=LOST)),
                node("n2", shard_of(leader_id="n1", supervision=LOST)),
            ],
            [
                "supervision is CRITICAL for n1, n2: nothing is remedied",
                "n1 leads, and no supervisor is at work there",
            ],
        ),
        (
            [
                node("n1", shard_of(leader=True, supervision=WELL)),
                node("n2", shard_of(leader_id="n1", supervision=SILENT)),
            ],
            ["supervision is WARNING for n2: no beat"],
        ),
    ],
)
def test_what_is_wrong_with_supervision(found: list[Found], troubles: list[str]) -> None:
    """What several nodes say alike is told once."""
    assert list(judge(found, NOW)) == troubles


def test_role() -> None:
    """One that leads without a supervisor at work is no mere follower."""
    assert supervision_status.role(shard_of(leader=True, supervision=WELL)) == "leader"
    assert supervision_status.role(shard_of(supervision=WELL)) == "follower"
    assert supervision_status.role(shard_of(supervision=SILENT)) == "leader, supervisor STALLED"
    assert supervision_status.role(shard_of()) == "follower"


def test_lines_of_a_cluster_that_is_well() -> None:
    """One, without what is not there."""
    assert list(supervision_status.lines(WELL)) == ["supervision: 0 remedied, 0 due, 0 overdue, 0 incidents open"]
    assert list(supervision_status.lines(None)) == []
