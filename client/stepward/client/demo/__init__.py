"""The body of `stepward demo`: some jobs on a server, agents and an outside world that it starts for them.

Reading order: `stories` (what is told, and what became of it), `plays` (what belongs to one demo; `trips`, `machines`
and `orders` are such), `show` (the order of events), `acting` (what is done to a job meanwhile), `stage` (what runs, on
top of `processes`), `screen` (what a person sees), `findings` and `verdict` (pure: did everything come as promised?),
`page` (the same as a page to read). `failover`, on top of `cluster_stage`, shows several nodes instead.
"""

from __future__ import annotations

from pathlib import Path


def main_of_nodes(count: int, *, kill_leader: bool, fast: bool, keep: bool) -> int:
    """Show trips on a cluster of several nodes; the exit code as of `main`.

    Args:
        count: How many nodes.
        kill_leader: Whether to kill the one that leads in the middle.
        fast: Whether to leave out some of the time in which eyes follow.
        keep: Whether to keep the data and logs also when all went well.
    """
    from stepward.client.demo.failover import run

    return run(count, kill_leader=kill_leader, fast=fast, keep=keep)


def main(play: str, *, fast: bool, docs: Path | None, keep: bool) -> int:
    """Show the jobs of a play.

    Args:
        play: One of `plays.PLAYS`.
        fast: Whether to leave out the pauses that let eyes follow.
        docs: Where to write what happened as a page, named by the play.
        keep: Whether to keep the data and logs also when all went well.

    Returns:
        The exit code: 0 when everything came as promised, else 1.
    """
    from stepward.client.demo.plays import play_of
    from stepward.client.demo.show import run

    return run(play_of(play), fast=fast, docs=docs, keep=keep)
