"""What a user's type checker sees of definitions that are built in Python."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

GOOD = """\
from datetime import timedelta

from stepward.client import Client, DefinedStep, Definition, Retry, Timeouts, Undo, Verify, input_, text

trip = Definition("trip", deadline=timedelta(hours=2), on_deadline="cancel")
shared: dict[str, str] = {"currency": "EUR"}
flight: DefinedStep = trip.step(
    "flight",
    input={"who": input_("who"), "shared": shared, "note": text("for ", input_("who")), "list": [1, 2.5, None]},
    retry=Retry(attempts_max=3, initial="200ms", cap=5),
    timeouts=Timeouts(start_to_close=0.5),
    effect="non_idempotent",
    undo=Undo("cancel-flight"),
    verify=Verify("find-flight"),
)
trip.step("hotel", needs=[flight, "flight"], undo="cancel-hotel")
trip.step("receipt", needs=trip.sinks())
trip.output({"flight": flight.output("id")})
with Client("localhost:7654") as client:
    version: int = client.apply_definition(trip).version.version
    client.apply_definition("trip.yaml")
    client.validate_definition(trip.to_proto())
"""

# Each line is wrong in its own way.
BAD = """\
from stepward.client import Client, Definition, Retry, Timeouts

trip = Definition("trip")
trip.step("a", effect="idempotant")
trip.step("b", needs=3)
trip.step("c", retry={"attempts_max": 3})
trip.step("d", input=b"bytes are no JSON" if trip else object())
trip.step("e", undoes="flight")
Retry(attempts_max="3")
Timeouts(30)
Client("localhost:7654").apply_definition(3)
"""


def check(folder: Path, name: str, snippet: str) -> list[str]:
    """What mypy --strict says, as a user's project would run it."""
    (folder / name).write_text(snippet)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"), name]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout.splitlines()


@pytest.mark.slow
def test_a_users_definition_is_checked(tmp_path: Path) -> None:
    """What is right passes the strictest check, and what is wrong is found before it runs."""
    good = check(tmp_path, "good.py", GOOD)
    bad = check(tmp_path, "bad.py", BAD)

    assert good == ["Success: no issues found in 1 source file"]
    found = {int(match[1]) for line in bad if (match := re.match(r"bad\.py:(\d+): error", line))}
    assert found == set(range(4, len(BAD.splitlines()) + 1)), bad
