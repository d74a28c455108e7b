"""Runs the command line as a user would, without a process: exit code, stdout and stderr apart."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from click.testing import CliRunner

from stepward.client.cli import main


@dataclass(frozen=True)
class Ran:
    """What came of a command."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)

    @property
    def lines(self) -> list[str]:
        return self.stdout.splitlines()


def run(*arguments: str, stdin: str | None = None, environment: dict[str, str] | None = None) -> Ran:
    """Run `stepward` with these arguments and nothing of our own environment that it might read."""
    read = (
        "STEPWARD_SERVER",
        "STEPWARD_NAMESPACE",
        "STEPWARD_TLS_CA",
        "STEPWARD_TLS_CERT",
        "STEPWARD_TLS_KEY",
        "NO_COLOR",
    )
    clean = {**dict.fromkeys(read, ""), **(environment or {})}
    result = CliRunner().invoke(main, arguments, input=stdin, env=clean, catch_exceptions=False)
    return Ran(result.exit_code, result.stdout, result.stderr)
