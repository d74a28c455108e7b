"""The file that says how many users of each kind there are, how often each begins, and what is still good enough."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
from msgspec import Struct

DEFAULT = Path(__file__).with_name("mix.toml")


class MixError(Exception):
    """The file cannot be used. The message says why."""


class Kind(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Users of one kind."""

    weight: float = 0.0
    """Among those that have one."""
    count: int = 0
    """So many, whatever the number of all users; then there is no weight."""
    pace_s: float = 0.0
    """From the begin of a task to that of the next, if it does not take longer."""


class Stage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the run."""

    seconds: float
    users: int
    spawn_rate: float = 10.0


class Thresholds(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is still good enough; beyond it the exit code is 1."""

    fail_ratio_max: float = 0.0
    """Of all requests."""
    p99_ms_max: float = 5_000.0
    """Of every kind of request by itself."""


class Mix(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    users: dict[str, Kind]
    """By name of the class."""
    thresholds: Thresholds = Thresholds()
    stages: list[Stage] = []
    """One after the other; without any, the command line says how many users there are, and for how long."""


def read(path: Path) -> Mix:
    """Read one.

    Raises:
        MixError: It cannot be read, or is wrong.
    """
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Mix)
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise MixError(f"{path}: {error}") from None


def stage_at(stages: list[Stage], run_s: float) -> tuple[int, float] | None:
    """How many users there are at a moment, and how fast they come; None behind the last stage."""
    for stage in stages:
        if run_s < stage.seconds:
            return stage.users, stage.spawn_rate
        run_s -= stage.seconds
    return None
