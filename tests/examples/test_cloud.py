"""The rules of the cloud: keys, tokens, parts, locks; and the judge of its record."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from stepward.agents.examples.machines.cloud import Answer, Call, Cloud, Entry, Verb
from stepward.agents.examples.machines.cloud_record import breaches

KEY = "0-1/volume/1"
DONE, UNDONE = {"0-1": "COMPLETED"}, {"0-1": "COMPENSATED"}


def call(
    verb: Verb, *, key: str = KEY, service: str = "volumes", token: int = 1, wish: str = "", part: int = 0
) -> Call:
    """A call of an attempt of the key's step."""
    job, step, _ = key.split("/")
    of = key if verb in ("delete", "unlock") else ""
    own = f"{key}/undo" if verb == "delete" else key
    return Call(service=service, verb=verb, key=own, of=of, part=part, token=token, job=job, step=step, wish=wish)


def create(*, token: int = 1, wish: str = "", key: str = KEY, service: str = "volumes") -> Call:
    return call("create", key=key, service=service, token=token, wish=wish)


def install(part: int, *, token: int = 1) -> Call:
    return call("install", service="machines", part=part, token=token)


def delete(*, token: int = 9, key: str = KEY, service: str = "volumes") -> Call:
    return call("delete", key=key, service=service, token=token)


@dataclass
class Told:
    """What a new cloud answered, one after the other."""

    cloud: Cloud = field(default_factory=Cloud)
    entries: list[Entry] = field(default_factory=list)

    def ask(self, *calls: Call) -> list[Answer]:
        answers = [self.cloud.answer(one) for one in calls]
        self.entries += [Entry(at_ms=0, call=one, answer=two) for one, two in zip(calls, answers, strict=True)]
        return answers


@pytest.mark.parametrize(
    ("calls", "statuses", "effects"),
    [
        # A repeat finds what is there.
        ([create(token=1), create(token=2)], [200, 200], [True, False]),
        # A delete is final for its key, whether or not anything was there.
        ([create(), delete(), delete()], [200, 200, 200], [True, True, False]),
        ([delete(), create(token=10)], [200, 410], [False, False]),
        ([create(), delete(), create(token=10)], [200, 200, 410], [True, True, False]),
        # Old tokens of the step are refused, whatever they want; the same may come again.
        ([create(token=7), create(token=6)], [200, 409], [True, False]),
        ([delete(token=7), create(token=6)], [200, 409], [False, False]),
        ([create(token=7), create(token=7)], [200, 200], [True, False]),
        # Parts come in order, and once.
        ([create(service="machines"), install(1), install(2), install(2)], [200] * 4, [True, True, True, False]),
        ([create(service="machines"), install(2)], [200, 409], [True, False]),
        ([create(service="machines"), install(1), install(1, token=2)], [200] * 3, [True, True, False]),
        ([install(1)], [410], [False]),
        # What is locked cannot be deleted until somebody has unlocked it.
        ([create(wish="locked"), delete(), delete(token=10)], [200, 423, 423], [True, False, False]),
        ([create(wish="locked"), delete(), call("unlock"), delete()], [200, 423, 200, 200], [True, False, True, True]),
        ([create(), call("unlock")], [200, 200], [True, False]),
        ([call("unlock")], [404], [False]),
        # Refused for good.
        ([create(wish="x, taken")], [409], [False]),
        ([create(service="clouds")], [404], [False]),
    ],
)
def test_answers(calls: list[Call], statuses: list[int], effects: list[bool]) -> None:
    """What is there, by key; who may still act, by token."""
    answers = Told().ask(*calls)

    assert [answer.status for answer in answers] == statuses
    assert [answer.effect for answer in answers] == effects


@pytest.mark.parametrize(("service", "kind"), [("names", "NameTaken"), ("addresses", "NoneLeft")])
def test_kind_of_refusal(service: str, kind: str) -> None:
    """The definition names the first as not worth a retry."""
    assert Told().ask(create(service=service, wish="taken"))[0].kind == kind


def test_recall_continues_where_the_record_ends() -> None:
    """A cloud that was restarted knows its things, parts, locks and tokens."""
    before, after = Told(), Told()
    before.ask(create(service="machines", token=5), install(1, token=5), create(key="0-2/volume/1", wish="locked"))
    for entry in before.entries:
        after.cloud.recall(entry.call, entry.answer)
    further = [
        install(3, token=5),
        install(2, token=4),
        install(2, token=6),
        delete(key="0-2/volume/1"),
        create(key="0-3/a/1"),
    ]

    assert after.ask(*further) == before.ask(*further)


def whole(job: str = "0-1") -> list[Call]:
    """Everything that a machine that completed has."""
    kinds = ("addresses", "volumes", "machines", "keys", "names")
    return [create(key=f"{job}/{kind}/1", service=kind) for kind in kinds]


@pytest.mark.parametrize(
    ("calls", "states", "found"),
    [
        ([], {}, []),
        (whole(), DONE, []),
        ([create(), delete()], UNDONE, []),
        # Something is missing, or there twice.
        (whole()[1:], DONE, ["0-1: 0 addresses exist, and the job completed"]),
        (
            [*whole(), create(key="0-1/addresses/2", service="addresses", token=2)],
            DONE,
            ["0-1: 2 addresses exist, and the job completed"],
        ),
        # Something is left of a job that ended otherwise, or that nobody knows.
        ([create()], UNDONE, ["0-1: volumes exist although the job ended COMPENSATED"]),
        ([create()], {}, ["0-1: volumes exist although the job ended None"]),
    ],
)
def test_breaches(calls: list[Call], states: dict[str, str], found: list[str]) -> None:
    """Each wrong thing is told once, with its subject."""
    told = Told()
    told.ask(*calls)

    assert breaches(told.entries, states) == found


def effect(one: Call) -> Entry:
    """An effect that these rules would not have had."""
    return Entry(at_ms=0, call=one, answer=Answer(status=200, effect=True, id="V-1"))


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        ([effect(create()), effect(create(token=2)), effect(delete())], f"{KEY} was created more than once"),
        ([effect(install(1)), effect(install(1, token=2))], f"part 1 of {KEY} was installed twice"),
        (
            [effect(delete(token=2)), effect(install(1, token=1))],
            "0-1/volume took effect with an older token after a newer one",
        ),
    ],
)
def test_breaches_of_a_careless_cloud(entries: list[Entry], found: str) -> None:
    """The judge does not believe the rules that it judges."""
    assert breaches(entries, UNDONE) == [found]
