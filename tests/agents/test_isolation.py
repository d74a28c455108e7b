"""Where handlers of processes are found: in modules, in scripts, or not at all."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stepward.agents import ActionError, Agent
from stepward.agents.action import Action
from tests.agents import isolated
from tests.agents.played import offer
from tests.agents.stub import BOUND_S, Stub, StubStream, new_stub, until


@pytest.fixture
async def stub() -> AsyncIterator[Stub]:
    server = new_stub()
    server.ttl_ms = 6_000
    await server.start()
    yield server
    await server.stop()


SCRIPT = """
from stepward.agents import Agent

agent = Agent(drain_timeout_seconds=1.0)

@agent.action(process=True)
def work() -> str:
    return __name__

{guard}agent.run([__import__("sys").argv[1]])
"""


@pytest.mark.parametrize("module", [False, True])
async def test_script_is_imported_by_its_name(stub: Stub, tmp_path: Path, module: bool) -> None:
    """`python thumbs.py` and `python -m thumbs`: the process imports what others would."""
    (tmp_path / "thumbs.py").write_text(SCRIPT.format(guard='if __name__ == "__main__":\n    '))
    stream = await script(stub, tmp_path, *(("-m", "thumbs") if module else (str(tmp_path / "thumbs.py"),)))

    assert (await stream.reported("a", "succeeded")).succeeded.output.data == b'"thumbs"'


async def test_script_without_a_guard_is_told_what_to_do(stub: Stub, tmp_path: Path) -> None:
    """Else each process would start an agent that starts processes."""
    (tmp_path / "thumbs.py").write_text(SCRIPT.format(guard=""))
    stream = await script(stub, tmp_path, str(tmp_path / "thumbs.py"))
    failed = (await stream.reported("a", "failed")).failed

    assert failed.kind == "NOT_STARTED"
    assert "start it below: if __name__ == '__main__':" in failed.message


async def script(stub: Stub, folder: Path, *arguments: str) -> StubStream:
    """One attempt of an agent that is a script."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stub.address, cwd=folder, stdout=PIPE, stderr=PIPE
    )
    try:
        stream = await stub.stream()
        stream.offer(offer("a", 1, action="work"))
        await until(lambda: bool(set(stream.events("a")) & {"succeeded", "failed"}))
        process.terminate()
        await asyncio.wait_for(process.communicate(), BOUND_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    return stream


def replaced() -> None:
    """What another decorator has put in the place of the handler."""


@pytest.mark.parametrize(
    ("shadowed", "says"),
    [(False, "is not there; make it a function of its module"), (True, "let the decorator of the agent stand above")],
)
async def test_handler_that_a_process_would_not_find_is_refused_before_it_serves(
    monkeypatch: pytest.MonkeyPatch, shadowed: bool, says: str
) -> None:
    def local() -> None: ...

    function = isolated.beside if shadowed else local
    monkeypatch.setattr(isolated, "beside", replaced)
    lost = Agent()
    lost.action("a", process=True)(function)

    with pytest.raises(ActionError, match=says):
        await lost.serve(["localhost:1"])


async def test_async_handler_in_a_process_is_refused() -> None:
    async def handler() -> None: ...

    with pytest.raises(ActionError, match="must be a plain function"):
        Action("a", handler, process=True)
