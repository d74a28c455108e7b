"""`python -m loadtest.mix`: the mix of locust's users on three nodes, whose leader is killed now and then.

At the end everything is judged by those who cannot have been deceived: what users submitted and agents did, as both
wrote it down, against the rows; the heads of all replicas; and the memory of every process, which must be flat.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from loadtest import meters, mix_file, submissions
from loadtest.cluster import Cluster, cluster
from loadtest.memory import Course
from loadtest.mix_jobs import EFFECTS, NOBODYS
from loadtest.submissions import Row, Verdict
from loadtest.submitters import open_channel
from stepward.client import AsyncClient
from stepward.client.demo.processes import Child

NODES = 3
SAMPLE_EVERY_S = 10.0
# What a killed node is away for.
AWAY_S = 2.0
# Locust lets its users end what they have begun for so long.
STOP_S_MAX = 70
LOOK_EVERY_S = 0.2
ENDED_S_MAX = 60.0
LIST_MAX = 1_000


class MixFailed(Exception):  # noqa: N818 - what happened
    """The run could not be made. The message says why."""


@dataclass
class Run:
    """What happened so far."""

    servers: Cluster
    locust: Child
    courses: list[Course] = field(default_factory=list)
    kills: int = 0

    def sample(self) -> None:
        """Look at the memory of every process that runs."""
        now_s = time.monotonic()
        known = {course.pid for course in self.courses}
        for child in (*self.servers.servers, self.locust):
            if child.running and child.pid not in known:
                self.courses.append(Course(child.name, child.pid))
        for course in self.courses:
            course.look(now_s)

    def kill_leader(self) -> None:
        """End the one that leads, and start it again a little later."""
        leader = self.servers.leads_now()
        leader.kill()
        self.kills += 1
        print(f"killed {leader.name}, which led", flush=True)
        time.sleep(AWAY_S)
        self.servers.start_again(leader)


@contextmanager
def locust(given: argparse.Namespace, servers: Cluster, folder: Path) -> Iterator[Child]:
    """The users, for as long as the run takes."""
    command = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--headless", "--only-summary"]
    command += ["--host", ",".join(servers.addresses), "--mix", str(given.mix), "--ledger", str(folder / "ledger")]
    command += ["-u", str(given.users), "-r", str(given.users), "-t", f"{round(given.minutes * 60)}s"]
    command += ["--stop-timeout", str(STOP_S_MAX), "--csv", str(folder / "locust")]
    child = Child.launch("locust", command, folder=folder, inside=Path(__file__).parents[1])
    try:
        yield child
    finally:
        child.stop()


def play(given: argparse.Namespace, run: Run) -> None:
    """Let the users go on to their end, and kill."""
    began_s = time.monotonic()
    next_sample_s, next_kill_s = began_s, began_s + given.kill_every_minutes * 60
    # Whoever is killed at the very end has nobody left to come back for.
    last_kill_s = began_s + given.minutes * 60 - min(30.0, given.minutes * 15)
    ends_s = began_s + given.minutes * 60 + STOP_S_MAX + ENDED_S_MAX
    while run.locust.running:
        now_s = time.monotonic()
        if now_s > ends_s:
            raise MixFailed(f"locust has not ended:\n{run.locust.tail()}")
        if now_s >= next_sample_s:
            run.sample()
            next_sample_s += given.sample_every_seconds
        if next_kill_s <= now_s <= last_kill_s:
            run.kill_leader()
            next_kill_s += given.kill_every_minutes * 60
        time.sleep(LOOK_EVERY_S)


async def judged(servers: Cluster, folder: Path) -> Verdict:
    """Wait until all has ended and all nodes hold the same, and hold it against the ledger.

    Raises:
        MixFailed: The nodes do not come to hold the same.
    """
    async with AsyncClient(servers.addresses) as client:
        rows = await _rows(client)
    channels = [open_channel(address, None) for address in servers.addresses]
    try:
        if not await meters.become_equal(channels):
            raise MixFailed("the nodes do not hold the same")
    finally:
        for channel in channels:
            await channel.close()
    with (folder / "ledger").open("rb") as lines:
        told = submissions.read(lines)
    return submissions.judge(told, rows, effects=EFFECTS)


async def _rows(client: AsyncClient) -> list[Row]:
    """All jobs, when they have ended, or when the time for that is over."""
    until = time.monotonic() + ENDED_S_MAX
    while True:
        rows = [
            Row(job.job_id, job.idempotency_key, job.definition_name, job.state)
            async for job in client.list(page_size=LIST_MAX)
        ]
        if all(row.state.final or row.definition == NOBODYS.name for row in rows) or time.monotonic() > until:
            return rows
        await asyncio.sleep(LOOK_EVERY_S)


def memory_table(courses: list[Course], settle_s: float) -> tuple[list[str], bool]:
    """How the memory of each process moved, in words, and whether all that can be said of it is flat."""
    lines, flat = [], True
    for course in courses:
        first, last = course.samples[0], course.samples[-1]
        text = f"{course.name} (pid {course.pid}): {first.own_mb:.0f} to {last.own_mb:.0f} MB of its own"
        text += f", {last.resident_mb:.0f} MB with files"
        grown = course.growth(settle_s)
        if grown is not None:
            text += f"; behind {settle_s:.0f} s {grown.mb_per_h:+.1f} MB/h, {grown.grown_mb:+.1f} MB"
            text += "" if grown.flat else ": NOT FLAT"
            flat = flat and grown.flat
        lines.append(text)
    return lines, flat


def mix(given: argparse.Namespace, folder: Path) -> bool:
    """One run from start to end; whether all was well."""
    with cluster(folder, nodes=NODES, with_tls=False) as servers, locust(given, servers, folder) as users:
        run = Run(servers, users)
        play(given, run)
        verdict = asyncio.run(judged(servers, folder))
    print((folder / "locust.out").read_text(encoding="utf-8"))
    print((folder / "locust.log").read_text(encoding="utf-8"))
    lines, flat = memory_table(run.courses, given.settle_minutes * 60)
    print("\n".join(lines))
    print(f"{run.kills} kills of the leader, locust ended with {users.exit_code}; {verdict.text}")
    return verdict.sound and flat and users.exit_code == 0


def main() -> int:
    """Entry of the command line: 0 when nothing was lost or doubled, and all was good enough."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.mix", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--kill-every-minutes", type=float, default=5.0)
    parser.add_argument("--settle-minutes", type=float, default=5.0, help="of each process, in which it may grow")
    parser.add_argument("--sample-every-seconds", type=float, default=SAMPLE_EVERY_S)
    parser.add_argument("--users", type=int, default=40, help="in all (default: %(default)s)")
    parser.add_argument("--mix", type=Path, default=mix_file.DEFAULT, help="their kinds (default: %(default)s)")
    parser.add_argument("--data", type=Path, help="folder for everything (default: a temporary one)")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="stepward-mix-", dir=given.data))
    print(folder, flush=True)
    try:
        sound = mix(given, folder)
    except MixFailed as failed:
        sys.stderr.write(f"{failed}\n")
        return 2
    if sound:
        # Kept only when something was wrong.
        shutil.rmtree(folder)
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
