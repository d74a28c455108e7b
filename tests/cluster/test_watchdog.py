"""`stepward watchdog` as a process of its own: what it says while all is well, while a server hangs, and after."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from loadtest.cluster import cluster, tls_options
from stepward.client.watchdog.posting import signature
from stepward.client.watchdog.settling import CALM_S
from tests.cluster.rig import Rig
from tests.cluster.watch import HOOK, watchdog_command, watching

# A node is silent for 3 s, after an answer that is waited for 2 s; and a busy machine.
SILENT_S_MAX = 15.0
WELL_S_MAX = 20.0
# Without a leader for 8 s, and looks that take some seconds each.
CRITICAL_S_MAX = 30.0
SECRET = b"known to two"


def test_watchdog_beside_a_server_that_hangs_and_goes_on(tmp_path: Path) -> None:
    """It tells each change to everybody, and pings only while all is well."""
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET + b"\n")
    said = tmp_path / "said"
    command = f"sh -c 'echo $STEPWARD_WATCHDOG_BEFORE $STEPWARD_WATCHDOG_LEVEL $STEPWARD_WATCHDOG_KINDS >> {said}'"
    options = ("--on-change", command, "--webhook-secret-file", str(secret), "--canary-interval", "1s")
    with Rig(tmp_path) as rig:
        rig.start_server()
        with watching(tmp_path, rig.address, *options) as watch:
            watch.until_level("WELL", seconds_max=WELL_S_MAX)
            watch.until(lambda: len(watch.hearer.pings) > 1, seconds_max=10, what="it pings while all is well")
            watch.until(lambda: watch.canaries_back() > 1, seconds_max=20, what="canaries come back")
            well = watch.page("/healthz"), watch.page("/verdict")
            rig.server.pause()
            unknown_at_s = watch.until_level("UNKNOWN", seconds_max=SILENT_S_MAX)
            hanging = watch.page("/healthz"), watch.page("/verdict")[0]
            rig.server.resume()
            well_at_s = watch.until_level("WELL", seconds_max=SILENT_S_MAX, since_s=unknown_at_s)
            last_ping_s = watch.hearer.pings[-1]
            watch.until(lambda: watch.hearer.pings[-1] > last_ping_s, seconds_max=10, what="it pings again")
            watch.until(
                lambda: said.read_text().count("\n") == 3, seconds_max=10, what="the command ran at each change"
            )
            watch.child.terminate()
            ended = watch.child.wait(10), watch.child.exit_code
            hooks, pings = watch.hearer.requests(HOOK), watch.hearer.pings

    assert well == ((200, "ok\n"), (200, "WELL\n"))
    assert hanging == ((200, "ok\n"), 503)
    assert well_at_s - unknown_at_s >= CALM_S
    assert [at_s for at_s in pings if unknown_at_s < at_s < well_at_s - 0.5] == []
    assert said.read_text().splitlines() == ["UNKNOWN WELL", "WELL UNKNOWN NOBODY_ANSWERS NODE_SILENT", "UNKNOWN WELL"]
    for hook in hooks:
        given = hook.headers["Stepward-Signature"]
        at_s = int(given.partition(",")[0].removeprefix("t="))
        assert given == signature(SECRET, hook.body, at_s)
    assert len({hook.headers["Stepward-Delivery"] for hook in hooks}) == len(hooks) == 3
    assert json.loads(hooks[1].body)["reasons"][0]["kind"] == "NOBODY_ANSWERS"
    assert ended == (True, 0)


def once(nodes: str, *options: str) -> tuple[int, dict[str, Any]]:
    """The exit code and what was said of one look."""
    command = [*watchdog_command(nodes), "--once", "--no-canary", *options]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert ran.stdout, ran.stderr
    return ran.returncode, json.loads(ran.stdout)


@pytest.mark.slow
def test_once_looks_at_three_nodes_over_tls_and_loses_them(tmp_path: Path) -> None:
    """Its exit code says how it is: 0 well, 1 one node gone, 2 no quorum, 3 nobody there or not let in."""
    with cluster(tmp_path, nodes=3, with_tls=True) as servers:
        assert servers.tls is not None
        nodes, files = ",".join(one.address for one in servers.servers), tls_options(servers.tls)
        well = once(nodes, *files)
        plain = once(nodes)
        servers.leader.kill()
        degraded = once(nodes, *files)
        lonely = next(one for one in servers.servers if one is not servers.leader)
        lonely.kill()
        ends_at_s = time.monotonic() + CRITICAL_S_MAX
        while (critical := once(nodes, *files))[0] != 2 and time.monotonic() < ends_at_s:
            # One that has lost its quorum is in doubt at once, and critical when it has been so for long.
            assert critical[0] == 1
    gone = once(nodes, *files)

    assert well == (0, {"level": "WELL", "text": "supervision is well", "reasons": []})
    assert plain[0] == 3
    assert "the node speaks TLS, and no authority to trust was given" in plain[1]["text"]
    assert (degraded[0], [reason["kind"] for reason in degraded[1]["reasons"]]) == (1, ["NODE_SILENT"])
    assert servers.leader.address in degraded[1]["text"]
    assert critical[0] == 2
    assert {"NO_LEADER", "BEAT_OLD"} <= {reason["kind"] for reason in critical[1]["reasons"]}
    assert (gone[0], gone[1]["reasons"][0]["kind"]) == (3, "NOBODY_ANSWERS")


@pytest.mark.parametrize("nodes", ["127.0.0.1:1", "nosuch.invalid:7"])
def test_once_cannot_tell_when_nobody_answers(nodes: str) -> None:
    code, said = once(nodes)

    assert code == 3
    assert [reason["kind"] for reason in said["reasons"]] == ["NOBODY_ANSWERS", "NODE_SILENT"]
    assert f"{nodes} has not answered yet: {nodes}: " in said["text"]
