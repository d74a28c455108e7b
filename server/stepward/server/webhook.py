"""Tells somebody outside of incidents: a signed request for each group of openings and resolutions, in their order.

The leader's node sends, behind the cursor that stands in rows. The cursor moves after an answer, so what a leader had
sent and not marked is sent again by the next one: at least once, with an id by which doubles are dropped.

What cannot be sent waits in rows, of which there is a bounded number. An endpoint that does not answer, or says that it
cannot now, is asked again, less and less often, for as long as a notice is of use; one that says no is asked a few
times, and then goes without.
Nothing else waits for any of this.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from google.protobuf.json_format import MessageToDict

from stepward.server import http_post, observe, webhook_signature
from stepward.server.api import supervision_messages
from stepward.server.core import incidents, keys, notices
from stepward.server.core.commands import MarkNotices, NoticesMarked
from stepward.server.core.ledger_rows import Notice
from stepward.server.http_post import NoAnswer
from stepward.server.reading import changed

if TYPE_CHECKING:
    import ssl
    from random import Random

    from stepward.server.clock import Clock
    from stepward.server.config import NodeConfig
    from stepward.server.core.ledger_rows import Incident
    from stepward.server.logbook.outbox import Standing
    from stepward.server.logbook.replica import Applied
    from stepward.server.observe import Counters
    from stepward.server.reading import Reading
    from stepward.server.shard import Shard

# Notices in one request: some 100 KB at most, and a few ms to build.
GROUP_MAX: Final = 50
# While more waits the cursor moves at most so often: what is sent in between may be sent again by another leader.
MARK_MS: Final = 200
VERSION: Final = 1
# What says that nothing can be taken at present, whatever it is: by the endpoint, or by what stands before it.
NOT_NOW: Final = frozenset({408, 425, 429, 502, 503, 504})
# How long nothing is sent after a bug of ours: it would only show itself again.
RESTART_S: Final = 60.0

_log = observe.logger("webhook")


# A number and what it stands for.
Numbered: TypeAlias = tuple[int, Notice]


class Webhook:
    """Sends notices during one epoch. Made by the node that leads in it."""

    def __init__(
        self,
        shard: Shard,
        *,
        epoch: int,
        config: NodeConfig,
        clock: Clock,
        counters: Counters,
        rng: Random,
        cluster_id: str,
    ) -> None:
        self._shard = shard
        self._epoch = epoch
        self._config = config
        self._clock = clock
        self._counters = counters
        self._rng = rng
        self._cluster_id = cluster_id
        self._url = http_post.parse_url(config.webhook_url)
        self._more = asyncio.Event()
        # How many notices have not been sent, as it was when that was last looked at.
        self.waiting = 0
        # Up to where notices need not be sent any more, up to where rows say so, and how many were given up since.
        self._done = 0
        self._marked = 0
        self._given_up = 0
        self._marked_at_ms = 0
        # How often what comes next was tried, how often it was refused then, and how many go into one request.
        self._tries = 0
        self._refusals = 0
        self._size = GROUP_MAX
        # What a secure endpoint is checked against; None: it is to be read anew.
        self._trusts: ssl.SSLContext | None = None

    def on_applied(self, applied: Applied) -> None:
        """Look again when a batch has brought a notice."""
        if any(row is not None for _, row in changed(applied, keys.NOTICE)):
            self._more.set()

    async def run(self) -> None:
        """Send until the epoch is over."""
        _log.info("webhook_started", epoch=self._epoch, host=self._url.authority)
        begun = False
        while self._leads and not begun:
            begun = await self._begin()
            if not begun:
                await asyncio.sleep(self._wait_s())
        while self._leads:
            self._more.clear()
            found = self._look()
            if not found:
                await self._mark()
                await self._rest()
                continue
            if not self._gives_up_old(found):
                await self._send(found)
            if self._clock.steady_ms() - self._marked_at_ms >= MARK_MS:
                await self._mark()
            # Giving up waits for nobody, and the loop is others', too.
            await asyncio.sleep(0)
        _log.info("webhook_ended", epoch=self._epoch)

    @property
    def _leads(self) -> bool:
        return self._shard.leads and self._shard.standing.epoch == self._epoch

    async def _begin(self) -> bool:
        """Find the cursor, or make it: whoever has never been told begins with the oldest incident that is still open.

        That it is made first is what lets nothing be lost from then on.
        """
        with self._shard.committed() as reader:
            cursor = notices.cursor(reader)
            if cursor is not None:
                self._done = self._marked = cursor.done
                return True
            self._done = _before_open_ones(reader)
        return await self._mark(first=True)

    async def _rest(self) -> None:
        """Until there is more; what could not be marked is tried again meanwhile."""
        wait_s = None if self._marked == self._done else self._wait_s()
        try:
            async with asyncio.timeout(wait_s):
                await self._more.wait()
        except TimeoutError:
            pass

    def _look(self) -> list[Numbered]:
        """The notices that come next."""
        with self._shard.committed() as reader:
            self.waiting = max(0, incidents.counts(reader).newest_notice - self._done)
            return notices.behind(reader, self._done, self._size)

    def _gives_up_old(self, found: list[Numbered]) -> bool:
        """Give up notices that were pushed out before the first that is there, or that are too old to be of use."""
        skipped = found[0][0] - self._done - 1
        if skipped:
            self._give_up(found[0][0] - 1, skipped, why="more waited than are remembered")
            return True
        bound_ms = self._clock.wall_ms() - self._config.webhook_age_ms_max
        old = [number for number, notice in found if notice.wall_ms < bound_ms]
        if old:
            self._give_up(old[-1], len(old), why="older than webhook_age_ms_max")
        return bool(old)

    async def _send(self, group: list[Numbered]) -> None:
        """Try once to send some notices, and wait when that did not work."""
        trouble = await self._try(self._body(group))
        if trouble is None:
            self._counters.notices_sent += len(group)
            self._pass(group[-1][0])
            self._size = GROUP_MAX
            return
        self._tries += 1
        self._counters.webhook_failures += 1
        refused = isinstance(trouble, int) and trouble not in NOT_NOW
        self._refusals += refused
        why = f"status {trouble}" if isinstance(trouble, int) else str(trouble)
        _log.warning("webhook_failed", epoch=self._epoch, tries=self._tries, notices=len(group), error=why)
        if refused and self._refusals >= self._config.webhook_tries_max and len(group) == 1:
            self._give_up(group[-1][0], len(group), why=f"refused with {why}")
            return
        if refused:
            # What is refused as a group may be one of it, or its size.
            self._size = max(1, self._size // 2)
        await asyncio.sleep(self._wait_s())

    def _body(self, group: list[Numbered]) -> bytes:
        """What is said of some notices, each with its incident as it is now."""
        with self._shard.committed() as reader:
            told = [_told(incidents.find(reader, notice.incident), notice) for _, notice in group]
        said = {
            "version": VERSION,
            "cluster_id": self._cluster_id,
            "notices": [
                {
                    "id": f"{self._cluster_id}/{number}",
                    "type": "incident.resolved" if notice.resolved else "incident.opened",
                    "at_ms": notice.wall_ms,
                    "incident": incident,
                }
                for (number, notice), incident in zip(group, told, strict=True)
            ],
        }
        return json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode()

    def _give_up(self, number: int, count: int, *, why: str) -> None:
        self._given_up += count
        self._counters.notices_given_up += count
        _log.error("notices_given_up", epoch=self._epoch, count=count, up_to=number, why=why)
        self._pass(number)

    def _pass(self, number: int) -> None:
        self._done = number
        self._tries = self._refusals = 0

    async def _try(self, body: bytes) -> NoAnswer | int | None:
        """Send a body once. None: it was taken; else the status, or why there is none."""
        config = self._config
        assert config.webhook_secret_file is not None
        try:
            # Read anew each time, so that a secret can be changed without a restart.
            secret = webhook_signature.read_secret(config.webhook_secret_file)
        except (OSError, ValueError) as error:
            return NoAnswer(f"{config.webhook_secret_file}: {error}")
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "stepward",
            webhook_signature.HEADER: webhook_signature.signature(secret, self._clock.wall_ms() // 1_000, body),
        }
        if self._url.secure and self._trusts is None:
            self._trusts = await http_post.authorities()
        within_s = config.webhook_timeout_ms / 1_000
        try:
            status = await http_post.post(self._url, body, headers, within_s=within_s, trusts=self._trusts)
        except NoAnswer as none:
            # Perhaps it has a certificate by now that only what is trusted by now vouches for.
            self._trusts = None
            return none
        return None if 200 <= status < 300 else status

    async def _mark(self, *, first: bool = False) -> bool:
        """Move the cursor to what is done. False: it cannot be moved now."""
        if self._done == self._marked and not first:
            return True
        done, given_up = self._done, self._given_up
        answer = await self._shard.call_here(MarkNotices(done, given_up))
        self._marked_at_ms = self._clock.steady_ms()
        if not isinstance(answer, NoticesMarked):
            return False
        self._marked = done
        self._given_up -= given_up
        return True

    def _wait_s(self) -> float:
        """How long to wait before another try: doubled each time, up to a bound, and drawn from the upper half of that.

        So an endpoint that comes back is found soon, and one that stays away is left alone.
        """
        config = self._config
        longest_ms = min(config.webhook_wait_ms_max, config.webhook_wait_ms_min << min(20, max(0, self._tries - 1)))
        return self._rng.uniform(longest_ms / 2, longest_ms) / 1_000


class Telling:
    """Lets this node send while it leads, if anybody is to be told."""

    def __init__(
        self, shard: Shard, config: NodeConfig, clock: Clock, counters: Counters, cluster_id: str, rng: Random
    ) -> None:
        self._webhook_of = partial(
            Webhook, shard, config=config, clock=clock, counters=counters, rng=rng, cluster_id=cluster_id
        )
        self._counters = counters
        self._epoch = 0
        self._webhook: Webhook | None = None
        self._task: asyncio.Task[None] | None = None
        if config.webhook_url:
            shard.on_standing(self._on_standing)
            shard.on_applied(self._on_applied)

    @property
    def waiting(self) -> int:
        """How many notices this node has not sent yet. 0: none, or another one leads."""
        return 0 if self._webhook is None else self._webhook.waiting

    async def stop(self) -> None:
        """Send nothing more."""
        task = self._end()
        if task is not None:
            await asyncio.wait((task,))

    def _on_standing(self, standing: Standing) -> None:
        epoch = standing.epoch if standing.leads else 0
        if epoch != self._epoch:
            self._end()
            self._epoch = epoch
            self._begin()

    def _on_applied(self, applied: Applied) -> None:
        if self._webhook is not None:
            self._webhook.on_applied(applied)

    def _begin(self) -> None:
        if self._epoch:
            self._webhook = self._webhook_of(epoch=self._epoch)
            self._task = asyncio.create_task(self._webhook.run())
            self._task.add_done_callback(self._on_ended)

    def _end(self) -> asyncio.Task[None] | None:
        task, self._task, self._webhook, self._epoch = self._task, None, None, 0
        if task is not None:
            task.cancel()
        return task

    def _on_ended(self, task: asyncio.Task[None]) -> None:
        """A bug of ours ends the sending, and nothing else: it is told, counted, and begun again a minute later."""
        if task.cancelled() or task.exception() is None:
            return
        self._counters.webhook_failures += 1
        _log.error("webhook_broke", exc_info=task.exception())
        if task is self._task:
            asyncio.get_running_loop().call_later(RESTART_S, self._begin_again, task)

    def _begin_again(self, task: asyncio.Task[None]) -> None:
        if task is self._task:
            self._begin()


def _before_open_ones(reader: Reading) -> int:
    """The number of the last notice before that of the oldest incident that is open; of the last, if none is."""
    counts = incidents.counts(reader)
    if not counts.open:
        return counts.newest_notice
    for number, notice in notices.behind(reader, 0, counts.newest_notice):
        incident = incidents.find(reader, notice.incident)
        if incident is not None and not incident.resolved_wall_ms:
            return number - 1
    return counts.newest_notice


def _told(incident: Incident | None, notice: Notice) -> dict[str, Any] | None:
    """An incident as the command line prints it as JSON; None when it was removed with its job."""
    if incident is None:
        return None
    message = supervision_messages.incident(notice.incident, incident)
    told: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return told
