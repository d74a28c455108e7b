"""One worker process: `python -m stepward.agents.worker MODULE[:ATTR] --server localhost:7654`.

It says so on standard output when it is ready, once for each session that it opens:

    stepward agent ready session=... queue=... pid=...

Exit codes: 0 drained; 1 interrupted by a second signal, or not all outcomes could be delivered; 2 it cannot work as it
is, and starting it again does not help; 70 it had to end itself, and should be started again.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from stepward.agents import target as targets
from stepward.agents.agent import Agent
from stepward.agents.errors import AgentError

if TYPE_CHECKING:
    from stepward.client.tls import TlsFiles

EXIT_USAGE: Final = 2


def run(
    target: str,
    addresses: Sequence[str],
    *,
    slots: int | None = None,
    queue: str | None = None,
    drain_timeout_seconds: float | None = None,
    drain_with_input: bool = False,
    tls: TlsFiles | None = None,
) -> int:
    """Run the agent in this process until it has drained. Returns the exit code.

    `drain_with_input` drains when standard input ends: a parent that is killed takes its workers with it.
    """
    try:
        agent = targets.load(target)
        agent.slots = agent.slots if slots is None else slots
        agent.queue = agent.queue if queue is None else queue
        if drain_timeout_seconds is not None:
            agent.drain_timeout_seconds = drain_timeout_seconds
        if drain_with_input:
            drain_when_input_ends(agent)
        return agent.run(addresses, tls=tls, on_ready=partial(_say_ready, agent.queue))
    except AgentError as error:
        sys.stderr.write(f"stepward agent: {error}\n")
        return EXIT_USAGE


def _say_ready(queue: str, session_id: str) -> None:
    sys.stdout.write(f"stepward agent ready session={session_id} queue={queue} pid={os.getpid()}\n")
    sys.stdout.flush()


def drain_when_input_ends(agent: Agent) -> None:
    """Drain when whoever held the other end of standard input has let go of it, or was killed."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1024):
            pass
        agent.drain()

    threading.Thread(target=wait, name="stepward-input", daemon=True).start()
