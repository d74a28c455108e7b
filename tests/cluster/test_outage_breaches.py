"""The judge of outages sees what it is there for: what is right, and one thing of it made wrong."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.cluster.outages import LOST_S, MUST, NEXT_BEAT_S_MAX, SILENT_S, Outage, Seen, Told, breaches

WELL = Told(10.0, "WELL", (), "supervision is well")
SILENT = Told(3.0, "WARNING", ("NODE_SILENT",), "n1 has not answered for 3 s")
LOST = Told(9.0, "CRITICAL", ("NO_LEADER", "BEAT_OLD"), "nobody has led")

KILLED = Seen(told=(SILENT, WELL), still_s=1.5, decided_s=2.0, healed_s=4.0, pinged_s=2.5, canaries=3, ended_s=11.0)
LONELY = Seen(
    told=(SILENT, LOST, WELL), still_s=12.0, decided_s=11.0, healed_s=9.5, pinged_s=2.5, canaries=3, ended_s=15.0
)
ONCE = Seen(told=(), still_s=1.2, decided_s=2.0, healed_s=None, pinged_s=9.5, canaries=3, ended_s=10.0)
DEAD = Seen(told=(), still_s=1.2, decided_s=2.0, healed_s=None, pinged_s=0.0, canaries=0, ended_s=5.0)

RIGHT = {
    Outage.LEADER_KILLED: KILLED,
    Outage.NO_QUORUM: LONELY,
    Outage.SUPERVISOR_RAISES_ONCE: ONCE,
    Outage.WATCHDOG_KILLED: DEAD,
}


@pytest.mark.parametrize("outage", RIGHT)
def test_what_is_right_is_right(outage: Outage) -> None:
    assert breaches(outage, RIGHT[outage]) == []


@pytest.mark.parametrize(
    ("outage", "wrong", "said"),
    [
        (Outage.LEADER_KILLED, {"told": ()}, "WARNING was never told"),
        (Outage.LEADER_KILLED, {"told": (replace(SILENT, after_s=4.5), WELL)}, "WARNING was never told"),
        (
            Outage.LEADER_KILLED,
            {"told": (replace(SILENT, after_s=SILENT_S + 0.1), WELL), "healed_s": SILENT_S + 1},
            "WARNING was told after 7.1 s, at most 7 s may be",
        ),
        (Outage.LEADER_KILLED, {"told": (replace(SILENT, kinds=("BRAKE",)), WELL)}, "none of ['NODE_SILENT']"),
        (Outage.LEADER_KILLED, {"told": (SILENT, replace(LOST, after_s=3.5), WELL)}, "more was told than there was"),
        (Outage.LEADER_KILLED, {"told": (SILENT, WELL, SILENT)}, "WARNING is what was told last, not WELL"),
        (Outage.LEADER_KILLED, {"still_s": NEXT_BEAT_S_MAX + 0.1}, "no new beat for 6.1 s"),
        (Outage.LEADER_KILLED, {"decided_s": None}, "what fell due was never decided"),
        (Outage.LEADER_KILLED, {"pinged_s": 4.1}, "the dead-man address was called at 4.1 s"),
        (Outage.SUPERVISOR_RAISES_ONCE, {"canaries": 0}, "no canary came back"),
        (Outage.NO_QUORUM, {"told": (SILENT, WELL)}, "CRITICAL was never told"),
        (
            Outage.NO_QUORUM,
            {"told": (replace(LOST, after_s=LOST_S + 0.1), WELL), "healed_s": 12.0},
            "CRITICAL was told after 10.1 s, at most 10 s may be",
        ),
        (Outage.SUPERVISOR_RAISES_ONCE, {"told": (SILENT, WELL)}, "WARNING was told"),
        (Outage.WATCHDOG_KILLED, {"pinged_s": 1.1}, "was called 1.1 s after the end of the watchdog"),
        # Whoever did not listen for long enough has heard no silence.
        (Outage.WATCHDOG_KILLED, {"ended_s": 2.9}, "listened to for 2.9 s only"),
    ],
)
def test_what_is_wrong_is_told(outage: Outage, wrong: dict[str, Any], said: str) -> None:
    seen = replace(RIGHT[outage], **wrong)

    assert any(said in breach for breach in breaches(outage, seen)), breaches(outage, seen)


def test_every_outage_has_its_row() -> None:
    assert list(MUST) == list(Outage)
