"""`stepward demo` as its users start it: it shows what it promises, and leaves no process behind, however it ends."""

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.examples.demo_process import Demo, start


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    """The command, begun; its data below the test's folder."""
    with start(tmp_path) as running:
        yield running


def kept_folders(folder: Path) -> list[Path]:
    """Data that a demo has left."""
    return list(folder.glob("stepward-demo-*"))


def test_demo_shows_what_it_promises(demo: Demo, tmp_path: Path) -> None:
    """Everything holds, in less than a minute, and nothing is left."""
    began = time.monotonic()
    demo.wait_until_said("wait for work")
    children = demo.children()
    code = demo.end(60)
    output = demo.output.read_text()

    assert code == 0, output
    assert "✘" not in output
    assert output.count("✔") > 10
    assert "kill -9" in output
    # The wait for the lease is explained while it lasts.
    assert len(re.findall(r"agent lost: waits [\d.]+ s", output)) > 3
    assert time.monotonic() - began < 60
    assert len(children) == 4
    assert not any(child.is_running() for child in children)
    assert kept_folders(tmp_path) == []
    assert "StepAttemptLost" in (tmp_path / "docs" / "trip.md").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_demo_that_is_interrupted_ends_all(demo: Demo, number: signal.Signals) -> None:
    """A Ctrl-C in the middle of the third trip."""
    demo.wait_until_said("kill -9")
    children = demo.children()
    demo.popen.send_signal(number)
    code = demo.end()

    assert code == 130
    assert len(children) == 3
    assert not any(child.is_running() for child in children)
    assert demo.output.read_text().splitlines().count("interrupted") == 1
    assert "Traceback" not in demo.output.read_text()


def test_demo_that_is_killed_leaves_nothing_running(demo: Demo) -> None:
    """Nobody can pass on that signal: its processes notice that their input has ended."""
    demo.wait_until_said("Trip 1")
    children = demo.children()
    demo.popen.kill()
    gone, running = psutil.wait_procs(children, 30)

    assert len(gone) == 4
    assert running == []


def test_demo_that_fails_says_why_and_keeps_the_logs(demo: Demo, tmp_path: Path) -> None:
    """Its server dies in the middle."""
    demo.wait_until_said("Trip 1")
    children = demo.children()
    [server] = [child for child in children if "stepward.server" in child.cmdline()]
    server.kill()
    code = demo.end()
    [folder] = kept_folders(tmp_path)
    output = demo.output.read_text()

    assert code == 1
    assert "✘" in output
    assert str(folder / "server.log") in output
    assert (folder / "server.log").exists()
    assert not any(child.is_running() for child in children)
