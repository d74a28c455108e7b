"""Versions of a definition: what makes one, which one a job runs, and that a running job keeps its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from stepward.client import AsyncClient, Definition
from stepward.client.errors import DefinitionNotFound
from stepward.server.node import Node
from stepward.v1 import agent_service_pb2
from tests.server import nodes
from tests.server.plain_agent import agent, succeeds


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with nodes.running(tmp_path / "data") as node:
        yield node


def pair(second: str, *, description: str = "") -> Definition:
    """Two steps in a row; versions differ in what the second one is."""
    definition = Definition("pair", description=description)
    first = definition.step("first")
    definition.step(second, needs=[first])
    return definition


async def test_running_job_keeps_its_definition(node: Node) -> None:
    """It began with the version that was the newest then, and ends with it, whatever is stored meanwhile."""
    async with AsyncClient(node.address) as client, nodes.connected(node.address) as stubs:
        await client.apply_definition(pair("old"))

        def hold_the_first(offer: agent_service_pb2.Offer) -> agent_service_pb2.AttemptReport | None:
            return None if offer.action == "first" else succeeds(offer)

        async with agent(stubs, "first", "old", "new", handler=hold_the_first) as joined:
            job = await client.submit("pair")
            await joined.until(lambda: joined.offers)
            assert (await client.apply_definition(pair("new"))).version.version == 2
            await joined.report(succeeds(joined.offers[0]))
            await client.wait(job.job_id)
        ended = await client.get(job.job_id)

    assert (ended.definition_version, [step.step_id for step in ended.steps]) == (1, ["first", "old"])


async def test_version_is_the_newest_or_the_one_that_was_asked_for(node: Node) -> None:
    """0 stands for the newest, decided when the job is submitted; what is not there is told."""
    async with AsyncClient(node.address) as client, nodes.connected(node.address) as stubs:
        await client.apply_definition(pair("old"))
        await client.apply_definition(pair("new"))
        async with agent(stubs, "first", "old", "new"):
            newest = await client.get((await client.run("pair")).job.job_id)
            pinned = await client.get((await client.run("pair", version=1)).job.job_id)
        with pytest.raises(DefinitionNotFound, match="definition 'pair' has no version 3; the newest is 2"):
            await client.submit("pair", version=3)

    assert (newest.definition_version, newest.steps[1].step_id) == (2, "new")
    assert (pinned.definition_version, pinned.steps[1].step_id) == (1, "old")


async def test_new_description_is_a_new_version(node: Node) -> None:
    """It is not lost, and the version that others have read stays as it was."""
    async with AsyncClient(node.address) as client:
        first = await client.apply_definition(pair("old", description="Two steps."))
        again = await client.apply_definition(pair("old", description="Two steps."))
        other = await client.apply_definition(pair("old", description="Two steps, in a row."))
        stored = [(await client.get_definition("pair", version=version)).definition for version in (1, 2)]

    assert [(one.version.version, one.created) for one in (first, again, other)] == [(1, True), (1, False), (2, True)]
    assert [one.description for one in stored] == ["Two steps.", "Two steps, in a row."]
