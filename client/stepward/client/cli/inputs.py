"""Reads what was typed: inputs, labels, durations, states."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stepward.client.durations import parse_duration

if TYPE_CHECKING:
    from stepward.client.payloads import Payload

INPUT_HELP = "The job's input: JSON, @FILE (@- for stdin), and key=value, which may be repeated and goes before both."


def read_input(parts: Sequence[str]) -> Any:
    """The input that the -i options stand for; None when there are none.

    JSON is passed on byte for byte. In key=value a value that is JSON is taken as that, anything else as a text. Beside
    a document that is an object, key=value replaces or adds one of its members.
    """
    if not parts:
        return None
    for part in parts:
        _check_text(part, "-i")
    documents = [part for part in parts if not _is_pair(part)]
    if len(documents) > 1:
        raise click.BadParameter(
            f"{documents[1]!r} is not key=value; give one JSON document at most, and key=value as often as you like",
            param_hint="-i",
        )
    members = _members(part for part in parts if _is_pair(part))
    if not documents:
        return members
    document = read_document(documents[0], "-i")
    return _overridden(document, members) if members else document


def _members(pairs: Iterable[str]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key, _, text in (pair.partition("=") for pair in pairs):
        if key in members:
            raise click.BadParameter(f"{key!r} is given twice", param_hint="-i")
        members[key] = _value(text)
    return members


def _overridden(document: Payload, members: dict[str, Any]) -> Any:
    """The document with some members replaced or added; the others stay byte for byte."""
    import msgspec

    try:
        whole = msgspec.json.decode(document.data, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        raise click.BadParameter(
            "key=value beside a document needs one that is a JSON object", param_hint="-i"
        ) from None
    return {**whole, **members}


def _check_text(part: str, hint: str) -> None:
    """Refuse what the locale could not read as text: Python keeps such bytes as halves of characters."""
    try:
        part.encode()
    except UnicodeEncodeError:
        raise click.BadParameter(
            f"{part!a} is not text in the locale of this terminal; set one such as LC_ALL=C.UTF-8, or give @FILE",
            param_hint=hint,
        ) from None


def _is_pair(part: str) -> bool:
    return "=" in part and part[0] not in '@{["'


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_number, parse_float=_number)
    except json.JSONDecodeError:
        return text


def _number(text: str) -> float:
    """A number; Python reads NaN and infinities as such, and 1e999 as one of them, which JSON cannot hold."""
    number = float(text)
    if not math.isfinite(number):
        raise click.BadParameter(
            f"{text} is no number that JSON can hold; for the text write key='\"{text}\"'", param_hint="-i"
        )
    return number


def read_document(part: str, hint: str) -> Payload:
    """JSON that was typed, or stands in @FILE; `hint` is the option that it was given to."""
    # Only here, since `--help` must not wait for it.
    from stepward.client.payloads import Payload

    source, data = (part[1:], _read(part[1:], hint)) if part.startswith("@") else (hint, part.encode())
    forms = "JSON, @FILE, or key=value" if hint == "-i" else "JSON, or @FILE"
    try:
        json.loads(data)
    except UnicodeDecodeError:
        raise click.BadParameter(f"{source} is not UTF-8 text", param_hint=hint) from None
    except json.JSONDecodeError as error:
        raise click.BadParameter(
            f"{source}:{error.lineno}:{error.colno}: broken JSON: {error.msg}; give {forms}",
            param_hint=hint,
        ) from None
    return Payload(data.strip())


def _read(name: str, hint: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise click.BadParameter(f"{name}: {error.strerror or error}", param_hint=hint) from None


def read_labels(parts: Sequence[str]) -> dict[str, str]:
    """The labels that --label options stand for."""
    labels = {}
    for part in parts:
        _check_text(part, "--label")
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{part!r} is not key=value", param_hint="--label")
        labels[key] = value
    return labels


def read_duration(_ctx: click.Context, _param: click.Parameter, text: str | None) -> timedelta | None:
    """A click callback: the duration that "500ms", "30s" and so on stand for."""
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def read_duration_s(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    """A click callback: the same in seconds."""
    duration = read_duration(ctx, param, text)
    return None if duration is None else duration.total_seconds()


def read_moment(_ctx: click.Context, _param: click.Parameter, text: str | None) -> datetime | None:
    """A click callback: a duration back from now, or a time. A time without a zone is one of this machine."""
    if text is None:
        return None
    try:
        return datetime.now(UTC) - parse_duration(text)
    except ValueError:
        pass
    except OverflowError:
        raise click.BadParameter(f"{text!r} ago is before all time") from None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f'{text!r} is no time; give a duration back from now, such as "2h" or "1d", or a time, such as '
            "2026-11-30T12:00 or 2026-11-30T12:00:00Z"
        ) from None


def read_states(_ctx: click.Context, _param: click.Parameter, texts: Sequence[str]) -> list[str]:
    """A click callback: names of job states, in any case, several separated by commas."""
    from stepward.client.values import JobState

    return _read_names("job", "JOB_STATE_", [state.value for state in JobState], texts)


def read_step_states(_ctx: click.Context, _param: click.Parameter, texts: Sequence[str]) -> list[str]:
    """A click callback: the same with names of step states."""
    from stepward.client.values import StepState

    return _read_names("step", "STEP_STATE_", [state.value for state in StepState], texts)


def read_member(of: str) -> Callable[[click.Context, click.Parameter, str | None], str]:
    """A click callback: the name of a trouble, of a remedy, or of what led to one, in any case; empty for none."""

    def read(_ctx: click.Context, _param: click.Parameter, text: str | None) -> str:
        if not text:
            return ""
        from stepward.client.incident_values import Remedy, RemedyBy, Trouble
        from stepward.client.yaml_nodes import suggestion

        enum = {"trouble": Trouble, "remedy": Remedy, "by": RemedyBy}[of]
        names = [member.value for member in enum if member.value != "UNSPECIFIED"]
        name = text.upper().replace("-", "_")
        if name not in names:
            raise click.BadParameter(f"{text!r} is not known{suggestion(name, names)}")
        return name

    return read


def _read_names(of: str, prefix: str, known: Sequence[str], texts: Sequence[str]) -> list[str]:
    from stepward.client.yaml_nodes import suggestion

    names = [name for name in known if name != "UNSPECIFIED"]
    states = []
    for text in (part.strip() for several in texts for part in several.split(",")):
        name = text.upper().removeprefix(prefix)
        if name not in names:
            raise click.BadParameter(f"no {of} state {text!r}{suggestion(name, names)}")
        states.append(name)
    return states
