"""The trip's definition, input and handlers fit together."""

import json
import re

import pytest

from stepward.agents.examples import trip
from stepward.client.definition_file import load
from stepward.v1.definition_pb2 import ON_UNKNOWN_COMPENSATE, Definition

INPUT = trip.DEFINITION.with_suffix(".json")


@pytest.fixture
def definition() -> Definition:
    return load(trip.DEFINITION)


def test_order(definition: Definition) -> None:
    """The flight first, hotel and car side by side, then the receipt."""
    assert {step.id: list(step.needs) for step in definition.steps} == {
        "flight": [],
        "hotel": ["flight"],
        "car": ["flight"],
        "receipt": ["hotel", "car"],
    }


def test_what_costs_money_can_be_undone(definition: Definition) -> None:
    """Also when nobody knows whether it was booked: then it is undone as if it was."""
    undone = {step.id: step.undo.action for step in definition.steps if step.HasField("undo")}

    assert undone == {"flight": "cancel-flight", "hotel": "cancel-hotel", "car": "cancel-car"}
    assert all(step.on_unknown == ON_UNKNOWN_COMPENSATE for step in definition.steps if step.HasField("undo"))


def test_refusals_are_not_repeated(definition: Definition) -> None:
    """No car is left, however often one asks."""
    kinds = {step.id: list(step.retry.non_retryable_kinds) for step in definition.steps}

    assert kinds == {
        "flight": ["FlightUnavailable"],
        "hotel": ["HotelUnavailable"],
        "car": ["CarUnavailable"],
        "receipt": [],
    }


def test_every_action_has_a_handler(definition: Definition) -> None:
    """Otherwise a step would wait for an agent that never comes."""
    actions = {step.action for step in definition.steps}
    actions |= {step.undo.action for step in definition.steps if step.HasField("undo")}

    assert set(trip.agent.actions) == actions
    assert {step.queue for step in definition.steps} == {trip.agent.queue}


def test_input_has_what_the_definition_refers_to(definition: Definition) -> None:
    """And nothing else, since nobody would read it."""
    text = " ".join([definition.output, *(step.input for step in definition.steps)])

    assert set(json.loads(INPUT.read_text())) == set(re.findall(r"\$\{input\.(\w+)\}", text))
