"""What is made of the answers of nodes that are asked how they are, without any I/O."""

from __future__ import annotations

from typing import NamedTuple

from stepward.v1 import cluster_service_pb2 as pb


class Seen(NamedTuple):
    """What one round of answers came to."""

    wrong: list[str]
    """What must never be seen."""
    leaderless_s: float | None
    """How long nobody led, when that has just ended."""


class Watchman:
    """What was seen so far, without any I/O."""

    def __init__(self) -> None:
        # By term: who led it.
        self._leaders: dict[int, str] = {}
        # By node: its process, and the newest batch that it has shown.
        self._heads: dict[str, tuple[int, int]] = {}
        self._led_at: float | None = None
        self._leaderless_since: float | None = None

    def look(self, answers: list[pb.GetStatusResponse], now_s: float) -> Seen:
        """Take in one round of answers."""
        wrong, leads = [], False
        for answer in answers:
            for shard in answer.shards:
                leads = leads or shard.leader
                if shard.leader and self._leaders.setdefault(shard.term, answer.node_id) != answer.node_id:
                    wrong.append("two nodes led one term")
                pid, head = self._heads.get(answer.node_id, (0, 0))
                if pid == answer.pid and shard.sequence < head:
                    wrong.append("a node has gone back")
                self._heads[answer.node_id] = answer.pid, shard.sequence
        if not leads:
            self._leaderless_since = self._leaderless_since or self._led_at or now_s
            return Seen(wrong, None)
        silent_s = None if self._leaderless_since is None else now_s - self._leaderless_since
        self._leaderless_since, self._led_at = None, now_s
        return Seen(wrong, silent_s)
