"""The watchdog's judge, by the table of `watchdog_stories`, and what does not fit into a table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from stepward.client.values import NodeState
from stepward.client.watchdog.history import HEADS_MAX, History
from stepward.client.watchdog.judge import judge
from stepward.client.watchdog.sights import Sight
from stepward.client.watchdog.verdicts import Kind, Level, Verdict
from tests.client.watchdog_stories import BEGAN, CANARY_INTERVAL_S, NODES, STORIES, Story, cluster, sight


def verdict_of(story: Story) -> Verdict:
    history = History()
    at_s = 0.0
    for at_s, changes in story.looks:
        history.take(
            cluster(at_s, changes, tells=story.tells),
            now_s=at_s,
            now_wall=BEGAN + timedelta(seconds=at_s),
            canary=story.canary(at_s),
        )
    return judge(history, canary_interval_s=CANARY_INTERVAL_S)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_verdict(story: Story) -> None:
    verdict = verdict_of(story)

    assert [reason.kind for reason in verdict.reasons] == list(story.kinds), verdict.text
    assert verdict.level is story.level, verdict.text
    assert story.words in verdict.text


def test_every_kind_of_reason_is_in_the_table() -> None:
    assert {kind for story in STORIES for kind in story.kinds} | {Kind.NOT_WATCHED} == set(Kind)


def look_at(nodes: Sequence[str], members: Sequence[str]) -> Verdict:
    history = History()
    seen = [sight(name, 0, {}, tells=True, members=members) for name in nodes]
    history.take(seen, now_s=0, now_wall=BEGAN)
    return judge(history)


def test_node_that_is_not_watched_is_told() -> None:
    verdict = look_at(["n1"], NODES)

    assert [reason.kind for reason in verdict.reasons] == [Kind.NOT_WATCHED]
    assert verdict.reasons[0].text == (
        "only 1 of the 3 nodes of the cluster is watched; --nodes must name n2 (to the others n2:7654), "
        "n3 (to the others n3:7654), too"
    )


def test_one_node_is_a_cluster() -> None:
    assert look_at(["n1"], ["n1"]).level is Level.WELL


def test_nodes_of_no_cluster_can_tell_nothing() -> None:
    history = History()
    seen = [Sight(address="n1:7654", at_s=0, node_id="n1", state=NodeState.EMPTY)]
    history.take(seen, now_s=0, now_wall=BEGAN)

    assert judge(history).level is Level.UNKNOWN


def test_gravest_reason_comes_first() -> None:
    """What is surely critical counts more than what nobody can tell, and that more than a warning."""
    verdict = verdict_of(Story("", [(0, {"n2": None, "n1": {"state": NodeState.DIVERGED}, "*": {}})], Level.CRITICAL))

    assert [reason.level for reason in verdict.reasons] == [Level.CRITICAL, Level.WARNING]
    assert max(Level, key=lambda level: level.gravity) is Level.CRITICAL
    assert Level.UNKNOWN.gravity > Level.WARNING.gravity


def test_memory_is_bounded() -> None:
    """However long it watches, and however busy the cluster is."""
    history = History()
    for at_s in range(HEADS_MAX + 100):
        history.take(cluster(at_s, {}, tells=True), now_s=at_s, now_wall=BEGAN)

    assert len(history._heads) == HEADS_MAX
    assert len(history.beats) == len(history.names) == len(NODES)
