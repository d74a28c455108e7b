"""Why a step that is ready has no agent: none is there, none offers its action, or all that do are busy.

Pure; the agents are those of `ListAgents`, which one look of a view asks for anyway.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from stepward.client.values import Agent

# Actions and queues that a message names at most; an agent may offer hundreds.
NAMED_MAX = 5


def serving(agents: Iterable[Agent], queue: str) -> list[Agent]:
    """Those that take work from a queue."""
    return [agent for agent in agents if agent.connected and not agent.draining and agent.queue == queue]


def why_it_waits(action: str, queue: str, agents: Iterable[Agent]) -> str:
    """What a ready step waits for, in words that fit behind "waits"."""
    present = serving(agents, queue)
    able = [agent for agent in present if action in agent.actions]
    if not able:
        return f'for an agent that offers "{action}" on queue "{queue}": {what_is_there(action, queue, present)}'
    slots, taken = sum(agent.slots for agent in able), sum(agent.slots_taken for agent in able)
    if taken >= slots:
        return f'for a free slot: all are taken ({taken} of {slots}, {_count(len(able))} on queue "{queue}")'
    return f'for its turn: {_count(len(able))} on queue "{queue}", {taken} of {slots} slots taken'


def what_is_there(action: str, queue: str, present: list[Agent]) -> str:
    """Why none of the agents on a queue will do, and what may have been meant."""
    if not present:
        return f'no agent is connected to queue "{queue}"'
    offered = sorted({name for agent in present for name in agent.actions})
    close = get_close_matches(action, offered, n=1)
    meant = f'; did you mean "{close[0]}"?' if close else ""
    return f"{_count(len(present))} on it, with {_named(offered)}{meant}"


def _named(names: list[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(f'"{name}"' for name in names[:NAMED_MAX]) + more


def _count(number: int) -> str:
    return f"{number} agent{'' if number == 1 else 's'}"
