"""What a watchdog reads from the answer of a node, of this version and of an older one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from stepward.client import reading
from stepward.client.values import Member, NodeState
from stepward.client.watchdog.sights import MEMBERS_MAX, SHARDS_MAX, Replica, Sight, Told, sight_of
from stepward.v1 import cluster_service_pb2 as pb

AT = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def answer(*, tells: bool) -> pb.GetStatusResponse:
    shard = pb.ShardStatus(leader_id="n1", term=4, epoch=3, sequence=9, hash="ab", overdue=5)
    shard.leader_contact_age.FromTimedelta(timedelta(seconds=0.25))
    shard.supervisor_beat_at.FromDatetime(AT)
    if tells:
        said = pb.Supervision(
            health=pb.SUPERVISION_HEALTH_WARNING,
            reason="brake",
            beats=7,
            remediations=8,
            overdue=2,
            brake=pb.BrakeStatus(on=True, reason="many agents were lost"),
            breakers=[pb.BreakerStatus(namespace="default", action="pay", reason="9 of 10 failed")],
            incidents_open=4,
            epochs_lost=1,
            stays=True,
            supervisor_state="STALLED",
        )
        said.beat_age.FromTimedelta(timedelta(seconds=1.5))
        said.oldest_overdue.FromTimedelta(timedelta(seconds=3))
        shard.supervision.CopyFrom(said)
    return pb.GetStatusResponse(
        cluster_id="c", node_id="n2", state=pb.NODE_STATE_SERVING, shards=[shard], members=[pb.Member(node_id="n1")]
    )


def sight(message: pb.GetStatusResponse) -> Sight:
    return sight_of("n2:7654", 1.0, reading.node_status(message))


TOLD = Told(
    warning=True,
    reason="brake",
    beat_age_s=1.5,
    beats=7,
    remediations=8,
    overdue=2,
    oldest_overdue_s=3.0,
    brake="many agents were lost",
    breakers=("default/pay: 9 of 10 failed",),
    incidents_open=4,
    epochs_lost=1,
    stays=True,
    supervisor_state="STALLED",
)
OLDER = Replica(
    leader_id="n1", term=4, epoch=3, sequence=9, hash="ab", contact_age_s=0.25, beat_at=AT, overdue=5, told=None
)


def test_older_node() -> None:
    assert sight(answer(tells=False)) == Sight(
        address="n2:7654",
        at_s=1.0,
        node_id="n2",
        cluster_id="c",
        state=NodeState.SERVING,
        members=(Member("n1", ""),),
        replicas=(OLDER,),
    )


def test_node_that_tells_of_supervision() -> None:
    """What is overdue now counts more than what was at the last beat."""
    (replica,) = sight(answer(tells=True)).replicas

    assert replica.told == TOLD
    assert (replica.overdue, replica.beat_at) == (2, AT)


def test_brake_that_is_off_and_no_beat_yet() -> None:
    message = answer(tells=True)
    said = message.shards[0].supervision
    said.brake.on = False
    said.health = pb.SUPERVISION_HEALTH_CRITICAL
    said.ClearField("beat_age")
    (replica,) = sight(message).replicas

    assert replica.told is not None
    assert (replica.told.brake, replica.told.critical, replica.told.warning) == ("", True, False)
    assert replica.told.beat_age_s is None


@pytest.mark.parametrize(("shards", "kept"), [(SHARDS_MAX, SHARDS_MAX), (SHARDS_MAX + 1, SHARDS_MAX)])
def test_what_is_read_of_an_answer_is_bounded(shards: int, kept: int) -> None:
    """Something else than a node may listen there, and say as much as it likes."""
    message = pb.GetStatusResponse(
        node_id="n2",
        shards=[pb.ShardStatus(shard=number) for number in range(shards)],
        members=[pb.Member(node_id=str(number)) for number in range(shards)],
    )
    seen = sight(message)

    assert (len(seen.replicas), len(seen.members)) == (kept, kept)
    assert SHARDS_MAX == MEMBERS_MAX
