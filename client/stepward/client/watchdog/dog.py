"""The watchdog itself: asks, judges once an interval, and tells what has changed.

Each node is asked by a task of its own and judged by what it last said, so that one that hangs delays no verdict. A
fault of ours ends the process: a watchdog that is half alive is the thing that it is there to tell.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from stepward.client.async_client import AsyncClient
from stepward.client.watchdog import exposition
from stepward.client.watchdog.asking import Asker, ask_all
from stepward.client.watchdog.canaries import NAMESPACE, Canaries
from stepward.client.watchdog.history import History
from stepward.client.watchdog.judge import judge
from stepward.client.watchdog.pages import Pages
from stepward.client.watchdog.posting import Poster
from stepward.client.watchdog.self_check import SelfCheck
from stepward.client.watchdog.settings import ANSWER_S_MAX, NODES_MAX, ONCE_APART_S, Settings
from stepward.client.watchdog.settling import Settled
from stepward.client.watchdog.telling import Command, DeadMan, Log, Teller, Webhook
from stepward.client.watchdog.verdicts import Change, Kind, Level, Reason, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepward.client.watchdog.sights import Sight

# The exit code of a watchdog that has found itself hanging, as the servers have it.
HANGS: Final = 70


class Watchdog:
    """One watchdog, from its start to its end. Everything that is read of it may be read by any thread."""

    def __init__(self, settings: Settings, *, log: Log, on_change: Callable[[Change], None]) -> None:
        """Ask nobody yet.

        Raises:
            TlsFilesWrong: A file cannot be used.
            OSError: The address of the pages cannot be listened on.
        """
        assert 0 < len(settings.addresses) <= NODES_MAX, "the command line has checked it"
        self.settings = settings
        self.level = Level.UNKNOWN
        self.verdict = Verdict((Reason(Kind.NOBODY_ANSWERS, Level.UNKNOWN, "no node has been asked yet"),))
        self.sights: tuple[Sight, ...] = ()
        self.beat_ages_s: dict[tuple[str, int], float] = {}
        self.overdue: dict[int, int] = {}
        self.incidents_open: dict[int, int] = {}
        self.judgements: int = 0
        self.changes: int = 0
        self.canaries: Canaries | None = None
        self._log = log
        self._on_change = on_change
        self._history = History()
        self._settled = Settled()
        self.self_check: SelfCheck = SelfCheck(self._hangs)
        self._askers = [Asker(address, tls=settings.tls, answer_s_max=ANSWER_S_MAX) for address in settings.addresses]
        self.tellers = self._make_tellers()
        # Each has a poster of its own: a webhook that hangs must not let the dead-man address fall silent.
        self.dead_man = DeadMan(settings.dead_man, Poster(), log) if settings.dead_man else None
        self.pages: Pages | None = None
        if settings.listen is not None:
            host, port = settings.listen
            made = {"/metrics": self._metrics, "/healthz": self._health, "/verdict": self._told}
            self.pages = Pages(host, port, made, log)

    async def run(self) -> None:
        """Watch until cancelled."""
        async with AsyncExitStack() as stack:
            await self._open(stack)
            self.self_check.start()
            stack.callback(self.self_check.stop)
            if self.pages is not None:
                self.pages.start()
                stack.callback(self.pages.stop)
            async with asyncio.TaskGroup() as tasks:
                for asker in self._askers:
                    tasks.create_task(asker.run(self.settings.interval_s))
                for teller in self.tellers:
                    tasks.create_task(teller.run())
                if self.canaries is not None:
                    tasks.create_task(self.canaries.run(self.settings.canary_interval_s))
                if self.dead_man is not None:
                    is_well = self._is_well
                    tasks.create_task(self.dead_man.run(is_well, self.settings.dead_man_interval_s))
                tasks.create_task(self._judge())

    async def once(self) -> Verdict:
        """Look twice, since what stands still is seen only so; and send one canary meanwhile."""
        self._history.doubt_s = ONCE_APART_S
        async with AsyncExitStack() as stack:
            await self._open(stack)
            canary = asyncio.create_task(self.canaries.send()) if self.canaries is not None else None
            self._take(await ask_all(self._askers))
            await asyncio.sleep(ONCE_APART_S)
            verdict = self._take(await ask_all(self._askers))
            if canary is not None and verdict.level.gravity < Level.UNKNOWN.gravity:
                await canary
                verdict = self._take(await ask_all(self._askers))
            elif canary is not None:
                # It has been found out already that nothing works.
                canary.cancel()
                await asyncio.gather(canary, return_exceptions=True)
            return verdict

    async def _open(self, stack: AsyncExitStack) -> None:
        for asker in self._askers:
            stack.push_async_callback(asker.close)
        if self.settings.canary_interval_s:
            client = AsyncClient(self.settings.addresses, namespace=NAMESPACE, tls=self.settings.tls)
            self.canaries = Canaries(await stack.enter_async_context(client))

    async def _judge(self) -> None:
        """Judge an interval apart, from when each node has answered once or was given up."""
        while any(asker.sight is None for asker in self._askers):
            self.self_check.alive()
            await asyncio.sleep(self.settings.interval_s / 10)
        while True:
            began_s = time.monotonic()
            self._take([asker.sight for asker in self._askers if asker.sight is not None])
            self.self_check.alive()
            await asyncio.sleep(max(0.0, began_s + self.settings.interval_s - time.monotonic()))

    def _take(self, sights: list[Sight]) -> Verdict:
        """Judge what was last seen, and tell of a change."""
        history, now_s = self._history, time.monotonic()
        canary = self.canaries.state if self.canaries is not None else None
        history.take(sights, now_s=now_s, now_wall=datetime.now(UTC), canary=canary)
        self.verdict = judge(history, canary_interval_s=self.settings.canary_interval_s)
        self.sights = history.sights
        replicas = [(sight, replica) for shard in history.shards() for sight, replica in history.replicas(shard)]
        ages_s = {(sight.name, replica.shard): history.beat_age_s(sight, replica) for sight, replica in replicas}
        self.beat_ages_s = {place: age_s for place, age_s in ages_s.items() if age_s is not None}
        self.overdue = {shard: history.overdue[shard].count for shard in history.shards()}
        told = {shard: history.newest(shard).told for shard in history.shards()}
        self.incidents_open = {shard: one.incidents_open for shard, one in told.items() if one is not None}
        self.judgements += 1
        before = self._settled.level
        if self._settled.take(self.verdict, now_s):
            self._changed(before)
        return self.verdict

    def _changed(self, before: Level) -> None:
        self.level = self._settled.level
        self.changes += 1
        clusters = sorted({sight.cluster_id for sight in self.sights if sight.cluster_id})
        change = Change(
            number=self.changes,
            before=before,
            verdict=self.verdict,
            level=self.level,
            at_wall_s=time.time(),
            cluster_id=" ".join(clusters),
        )
        self._on_change(change)
        for teller in self.tellers:
            teller.add(change)

    def _make_tellers(self) -> list[Teller]:
        settings, made = self.settings, []
        if settings.command:
            command = Command(settings.command, settings.environment, self._log)
            made.append(Teller("command", command.tell, self._log))
        if settings.webhook:
            webhook = Webhook(settings.webhook, settings.webhook_secret, Poster())
            made.append(Teller("webhook", webhook.tell, self._log))
        return made

    def _is_well(self) -> bool:
        """Whether the dead-man address may hear of us: all is well, by a verdict of just now."""
        return self.level is Level.WELL and self.verdict.level is Level.WELL and not self.self_check.unhealthy()

    def _hangs(self) -> None:
        """Called on the thread of the self-check, where nothing but the end of the process is sure to work."""
        self._log("watchdog_hangs", why=f"no verdict for {self.self_check.ticks} s; the process ends with {HANGS}")
        os._exit(HANGS)

    def _metrics(self) -> tuple[int, str]:
        return 200, exposition.text(self)

    def _health(self) -> tuple[int, str]:
        why = self.self_check.unhealthy()
        return (503, f"{why}\n") if why else (200, "ok\n")

    def _told(self) -> tuple[int, str]:
        """The level, then a line a reason; 200 only when all is well."""
        lines = [self.level.name, *(f"{one.level.name} {one.kind}: {one.text}" for one in self.verdict.reasons)]
        return 200 if self.level is Level.WELL else 503, "\n".join(lines) + "\n"
