"""The orders example: its two definitions are one, its handlers fit it, and its show holds what it promises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepward.agents.examples.orders.agent import DEFINITION, agent
from stepward.agents.examples.orders.definition import order
from stepward.client.definition_file import load
from stepward.client.demo import orders
from tests.examples.demo_process import start


def test_file_and_python_are_one_definition() -> None:
    """Byte for byte, so that it makes no new version which of the two is applied."""
    file, python = load(DEFINITION), order().to_proto()

    assert python.SerializeToString(deterministic=True) == file.SerializeToString(deterministic=True)


def test_every_action_has_a_handler() -> None:
    """Otherwise a step would wait for an agent that never comes."""
    definition = load(DEFINITION)
    actions = {step.action for step in definition.steps}
    actions |= {step.undo.action for step in definition.steps if step.HasField("undo")}
    actions |= {step.verify.action for step in definition.steps if step.HasField("verify")}

    assert set(agent.actions) == actions
    assert {step.queue for step in definition.steps} == {agent.queue}


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_show_holds_what_it_promises(tmp_path: Path) -> None:
    """Every failure to its end, with real processes, and the shop's own record compared."""
    with start(tmp_path, "orders") as demo:
        code = demo.end(120)
    output = demo.output.read_text()

    assert code == 0, output
    assert "✘" not in output
    assert output.count("✔") > 11
    page = (tmp_path / "docs" / "orders.md").read_text()
    assert page.count("\n## Order ") == len(orders.stories(True))
    assert "```mermaid" in page
    assert re.search(r"was done \d times|should have", page) is None
