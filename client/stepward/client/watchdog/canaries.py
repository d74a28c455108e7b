"""Sends a job through everything, again and again: submitted, decided, offered, carried out, reported, ended.

The nodes have an agent for it, so it needs nothing of the user's. One is under way at a time.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from stepward.client.definition import Definition
from stepward.client.definition_options import Retry, Timeouts
from stepward.client.errors import DefinitionNotFound, StepwardError, WaitTimedOut
from stepward.client.watchdog.history import Canary
from stepward.client.watchdog.judge import CANARY_LOST_S

if TYPE_CHECKING:
    from stepward.client.async_client import AsyncClient

NAMESPACE: Final = "stepward.system"
CANARY: Final = "canary"
QUEUE: Final = "stepward.canary"
TROUBLE_CHARACTERS_MAX: Final = 200
# After these nobody waits for it any more; it ends by itself and leaves nothing behind.
_QUEUE_S_MAX: Final = 60
_WORK_S_MAX: Final = 10
_DEADLINE_S: Final = 120


def definition() -> Definition:
    """What the job is: one step that the nodes' own agent carries out."""
    made = Definition(CANARY, deadline=_DEADLINE_S, on_deadline="cancel")
    timeouts = Timeouts(queue=_QUEUE_S_MAX, start_to_close=_WORK_S_MAX, schedule_to_close=_QUEUE_S_MAX)
    made.step(CANARY, queue=QUEUE, timeouts=timeouts, retry=Retry(attempts_max=2, initial="100ms", cap="1s"))
    return made


class Canaries:
    """The canaries of one watchdog."""

    def __init__(self, client: AsyncClient) -> None:
        """`client` may ask any node."""
        self._client = client
        self._applied = False
        self.state = Canary(began_at_s=time.monotonic())
        self.back = 0
        self.failed = 0
        self.took_s = 0.0
        """How long the last one took that came back."""

    async def run(self, interval_s: float) -> None:
        """Send one an interval, and the next at the earliest when the last one has ended or is given up."""
        while True:
            began_s = time.monotonic()
            await self.send()
            await asyncio.sleep(max(0.0, began_s + interval_s - time.monotonic()))

    async def send(self) -> None:
        """Send one and wait until it is back or is given up."""
        sent_at_s = time.monotonic()
        self.state = replace(self.state, sent_at_s=sent_at_s)
        try:
            async with asyncio.timeout(CANARY_LOST_S):
                trouble = await self._send()
        except TimeoutError:
            trouble = f"it was given up after {CANARY_LOST_S:.0f} s"
        now_s = time.monotonic()
        if trouble:
            self.failed += 1
            failures = self.state.failures + 1
            trouble = " ".join(trouble.split())[:TROUBLE_CHARACTERS_MAX]
            self.state = replace(self.state, sent_at_s=None, trouble=trouble, failures=failures)
        else:
            self.back += 1
            self.took_s = now_s - sent_at_s
            self.state = replace(self.state, sent_at_s=None, trouble="", failures=0, back_at_s=now_s)

    async def _send(self) -> str:
        """What became of it otherwise; empty: it came back."""
        try:
            if not self._applied:
                await self._client.apply_definition(definition(), namespace=NAMESPACE)
                self._applied = True
            result = await self._client.run(CANARY, namespace=NAMESPACE, wait_max_s=CANARY_LOST_S, check=False)
        except DefinitionNotFound as error:
            # The cluster is another one now.
            self._applied = False
            return error.message
        except WaitTimedOut:
            return f"it had not ended after {CANARY_LOST_S:.0f} s"
        except StepwardError as error:
            return error.message
        return "" if result.state == "COMPLETED" else f"it ended {result.state}"
