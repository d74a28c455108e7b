"""`stepward demo` as its users start it, with its data below a test's folder."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

ENTRY = "import sys; from stepward.client.cli import main; sys.exit(main())"
LOOK_EVERY_S = 0.02


@dataclass
class Demo:
    """The running command."""

    popen: "subprocess.Popen[str]"
    output: Path

    def said(self, text: str) -> bool:
        return text in self.output.read_text()

    def wait_until_said(self, text: str, *, seconds_max: float = 40) -> None:
        """Wait for a word on its output.

        Raises:
            AssertionError: It did not come.
        """
        ends_at = time.monotonic() + seconds_max
        while not self.said(text):
            assert self.popen.poll() is None, self.output.read_text()
            assert time.monotonic() < ends_at, f"{text!r} was not said:\n{self.output.read_text()}"
            time.sleep(LOOK_EVERY_S)

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.popen.pid).children(recursive=True)

    def end(self, seconds_max: float = 40) -> int:
        return self.popen.wait(seconds_max)


@contextmanager
def start(folder: Path, *arguments: str, docs: bool = True) -> Iterator[Demo]:
    """The command, begun; its page, if it writes one, goes into the folder `docs`."""
    page = ["--docs", str(folder / "docs")] if docs else []
    output = folder / "output"
    command = [
        sys.executable,
        "-c",
        f"import tempfile; tempfile.tempdir = {str(folder)!r}; {ENTRY}",
        "demo",
        *arguments,
    ]
    with output.open("w") as file:
        popen = subprocess.Popen([*command, "--fast", *page], stdout=file, stderr=subprocess.STDOUT, text=True)
    try:
        yield Demo(popen, output)
    finally:
        if popen.poll() is None:
            popen.terminate()
            popen.wait(30)
