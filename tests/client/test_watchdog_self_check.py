"""A watchdog that hangs ends itself."""

from __future__ import annotations

import subprocess
import sys
import threading

from stepward.client.watchdog.self_check import SelfCheck

S_MAX = 10.0

# A real watchdog whose loop stands still after its first verdict; its ticks are short, so that the test is.
HANGS = """
import asyncio, sys, time
from stepward.client.watchdog import dog
from stepward.client.watchdog.self_check import SelfCheck
from stepward.client.watchdog.settings import Settings

dog.SelfCheck = lambda on_hang: SelfCheck(on_hang, tick_s=0.1)
settings = Settings(addresses=("127.0.0.1:1",), interval_s=0.2, canary_interval_s=0)
log = lambda event, **fields: print(event, fields["why"], file=sys.stderr, flush=True)

async def run():
    watchdog = dog.Watchdog(settings, log=log, on_change=lambda change: None)
    asyncio.get_running_loop().call_later(1.0, time.sleep, 60)
    await watchdog.run()

asyncio.run(run())
"""


def test_self_check_ends_what_stands_still() -> None:
    """Once, after so many ticks without a sign of life; while there are signs, never."""
    hangs = threading.Event()
    calls: list[int] = []

    def on_hang() -> None:
        calls.append(check.ticks)
        hangs.set()

    check = SelfCheck(on_hang, tick_s=0.05, ticks_max=20)
    check.start()
    for _ in range(100):
        check.alive()
        assert not hangs.wait(0.02)
    assert check.unhealthy() == ""

    assert hangs.wait(S_MAX)
    assert calls == [21]
    assert "the last verdict was" in check.unhealthy()
    check.stop()


def test_watchdog_whose_loop_stands_still_ends_with_70() -> None:
    ran = subprocess.run([sys.executable, "-c", HANGS], check=False, capture_output=True, text=True, timeout=60)

    assert ran.returncode == 70, ran.stderr
    assert "watchdog_hangs" in ran.stderr
