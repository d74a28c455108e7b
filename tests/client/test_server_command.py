"""`stepward server ...` becomes the server's own process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from stepward.client.cli import dev_server
from tests.client.command_line import run

RUN_S_MAX = 60.0
SAYS = "import os, sys; print(sys.argv[1:], os.getpid())"


def ran_in(folder: Path, *arguments: str) -> tuple[str, int]:
    """What a stand-in for the server was told, and whether it was our own process."""
    package = folder / "server" / "stepward" / "server"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(textwrap.dedent(SAYS))
    child = subprocess.Popen(
        [sys.executable, "-c", "from stepward.client.cli import main; main()", "server", *arguments],
        env={**os.environ, "PYTHONPATH": str(folder / "server")},
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    out, _ = child.communicate(timeout=RUN_S_MAX)
    told, _, pid = out.rpartition(" ")
    assert int(pid) == child.pid
    return told, child.returncode


@pytest.mark.parametrize("word", ["run", "check"])
def test_a_file_and_options(tmp_path: Path, word: str) -> None:
    """They go to the server as they are, and a service manager sees the server's process."""
    told, code = ran_in(tmp_path, word, "n1.toml", "--log-level", "debug")

    assert (told, code) == (str([word, "--config", "n1.toml", "--log-level", "debug"]), 0)


def test_no_file(tmp_path: Path) -> None:
    """Then it is stepward.toml, if there is one; else everything stands in the environment."""
    without, _ = ran_in(tmp_path, "run")
    (tmp_path / "stepward.toml").touch()
    with_one, _ = ran_in(tmp_path, "run")

    assert without == str(["run"])
    assert with_one == str(["run", "--config", "stepward.toml"])


def test_without_the_server_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line that installs it."""
    monkeypatch.setattr(dev_server, "SERVER_PACKAGE", "no_such_package")

    ran = run("server", "run")

    assert ran.code == 1
    assert dev_server.PIP_LINE in ran.stderr
