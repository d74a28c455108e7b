"""Judge the shop's record: was every order that completed done once, and nothing kept of the others? Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from stepward.agents.examples.orders.shop import DOES, UNDOES, Entry

COMPLETED = "COMPLETED"


def breaches(entries: Sequence[Entry], states: Mapping[str, str]) -> list[str]:
    """One sentence for each thing that is wrong. Empty: all is well.

    Args:
        entries: In the order of the record.
        states: The final state of every job that may stand in it, by id.
    """
    effects = [entry for entry in entries if entry.answer.effect]
    there = standing(effects)
    jobs = sorted({*states, *(job for job, _ in there)})
    found = []
    for job in jobs:
        wanted = 1 if states.get(job) == COMPLETED else 0
        for service in DOES:
            count = len(there.get((job, service), []))
            if count != wanted:
                found.append(f"{job} ended {states.get(job)}, and {service} has {count} of it; it should have {wanted}")
    done = Counter(entry.call.key for entry in effects if entry.call.verb in DOES.values())
    found += [f"{key} was done {count} times" for key, count in sorted(done.items()) if count > 1]
    return found + _went_back(effects)


def standing(entries: Sequence[Entry]) -> dict[tuple[str, str], list[str]]:
    """Numbers of what was done and not undone, by job and service."""
    by_key: defaultdict[str, list[tuple[str, str, str]]] = defaultdict(list)
    for entry in entries:
        call, answer = entry.call, entry.answer
        if not answer.effect:
            continue
        if call.verb in UNDOES.values():
            by_key.pop(call.of, None)
        else:
            by_key[call.key].append((call.job, call.service, answer.number))
    there: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for things in by_key.values():
        for job, service, number in things:
            there[job, service].append(number)
    return dict(there)


def _went_back(effects: Sequence[Entry]) -> list[str]:
    newest: dict[tuple[str, str], int] = {}
    found = []
    for entry in effects:
        place = (entry.call.job, entry.call.step)
        if entry.call.token < newest.get(place, 0):
            found.append(f"{entry.call.job}/{entry.call.step} took effect with an older token after a newer one")
        newest[place] = max(entry.call.token, newest.get(place, 0))
    return found
