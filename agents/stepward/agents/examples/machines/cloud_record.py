"""Judge the cloud's record: is everything there that should be, and nothing else? Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from stepward.agents.examples.machines.cloud import KINDS, Entry

COMPLETED = "COMPLETED"


def breaches(entries: Sequence[Entry], states: Mapping[str, str]) -> list[str]:
    """One sentence for each thing that is wrong. Empty: all is well.

    Args:
        entries: In the order of the record.
        states: The final state of every job that may stand in it, by id.
    """
    effects = [entry for entry in entries if entry.answer.effect]
    there = standing(effects)
    found = [f"{job}: {kind} exist although the job ended {states.get(job)}" for job, kind in _orphans(there, states)]
    for job in (job for job, state in states.items() if state == COMPLETED):
        for kind in KINDS:
            count = len(there[job, kind])
            if count != 1:
                found.append(f"{job}: {count} {kind} exist, and the job completed")
    return found + _created_twice(effects) + _installed_twice(effects) + _went_back(effects)


def standing(entries: Iterable[Entry]) -> defaultdict[tuple[str, str], list[str]]:
    """Ids of what exists at the end, by job and kind."""
    by_key: dict[str, tuple[str, str, str]] = {}
    for entry in entries:
        call, answer = entry.call, entry.answer
        if not answer.effect:
            continue
        if call.verb == "create":
            by_key[call.key] = (call.job, call.service, answer.id)
        elif call.verb == "delete":
            by_key.pop(call.of, None)
    there: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for job, kind, id_ in by_key.values():
        there[job, kind].append(id_)
    return there


def _orphans(there: Mapping[tuple[str, str], list[str]], states: Mapping[str, str]) -> list[tuple[str, str]]:
    return sorted(place for place, ids in there.items() if ids and states.get(place[0]) != COMPLETED)


def _created_twice(effects: Sequence[Entry]) -> list[str]:
    keys = [entry.call.key for entry in effects if entry.call.verb == "create"]
    return [f"{key} was created more than once" for key in sorted({key for key in keys if keys.count(key) > 1})]


def _installed_twice(effects: Sequence[Entry]) -> list[str]:
    parts = [(entry.call.key, entry.call.part) for entry in effects if entry.call.verb == "install"]
    return [
        f"part {part} of {key} was installed twice" for key, part in sorted({p for p in parts if parts.count(p) > 1})
    ]


def _went_back(effects: Sequence[Entry]) -> list[str]:
    newest: dict[tuple[str, str], int] = {}
    found = []
    for entry in effects:
        place = (entry.call.job, entry.call.step)
        if entry.call.verb != "unlock" and entry.call.token < newest.get(place, 0):
            found.append(f"{entry.call.job}/{entry.call.step} took effect with an older token after a newer one")
        newest[place] = max(entry.call.token, newest.get(place, 0))
    return found
