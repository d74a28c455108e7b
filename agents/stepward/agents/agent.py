"""What people write: an agent is its handlers, the queue that it serves, and how many steps it takes at once."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from stepward.agents import definitions as definition_files
from stepward.agents import isolation, signals
from stepward.agents.action import Action
from stepward.agents.connection import open_channel
from stepward.agents.engine import Engine
from stepward.agents.errors import ActionError, AgentError

if TYPE_CHECKING:
    import grpc

    from stepward.client.definition_forms import AnyDefinition
    from stepward.client.tls import TlsFiles

# The contract's bounds of a hello.
SLOTS_MAX: Final = 10_000
ACTIONS_MAX: Final = 1_000

Handler = TypeVar("Handler", bound=Callable[..., Any])
Hook = TypeVar("Hook", bound=Callable[[], Awaitable[None] | None])
Lifespan = Callable[[], AbstractAsyncContextManager[Any]]


class Agent:
    """Handlers of actions, and how they are run."""

    def __init__(
        self,
        *,
        queue: str = "default",
        slots: int = 8,
        namespace: str = "default",
        name: str | None = None,
        definitions: Sequence[AnyDefinition] = (),
        lifespan: Lifespan | None = None,
        drain_timeout_seconds: float = 30.0,
    ) -> None:
        """Describe an agent; nothing starts yet.

        Args:
            queue: The queue that it serves.
            slots: How many steps run at once.
            namespace: Whose jobs it works for.
            name: For people; by default made of queue, host and process id.
            definitions: Applied to the cluster when the agent starts: paths of files, what `stepward.client.Definition`
                builds, or messages.
            lifespan: Entered on the handlers' event loop before the first handler starts, and left after the last
                one has ended. For what handlers share: a connection pool, say.
            drain_timeout_seconds: How long running handlers may go on when the agent is told to end.
        """
        self.queue = queue
        self.slots = slots
        self.namespace = namespace
        self.name = name
        self.definitions = tuple(definitions)
        self.drain_timeout_seconds = drain_timeout_seconds
        self._lifespan: Lifespan = lifespan or nullcontext
        self._actions: dict[str, Action] = {}
        self._hooks: list[Callable[[], Awaitable[None] | None]] = []
        self._engine: Engine | None = None
        self._drain_asked = False

    @property
    def actions(self) -> dict[str, Action]:
        """The handlers by action."""
        return dict(self._actions)

    @overload
    def action(self, name: Handler, /) -> Handler: ...
    @overload
    def action(self, name: str | None = None, /, *, process: bool = False) -> Callable[[Handler], Handler]: ...
    def action(self, name: Any = None, /, *, process: bool = False) -> Any:
        """Make a function the handler of an action: `@agent.action` or `@agent.action("book-flight")`.

        The name is that of the function with `-` for `_`, unless given. The function stays as it is. An async function
        runs on the agent's event loop, any other on a thread, or with `process=True` in a process of its own: for
        those that hold the interpreter for seconds, or may crash, or must be ended whatever they do. It is imported
        there by name, so it must be a function of its module.

        Raises:
            ActionError: The function cannot be a handler; the message says why.
        """
        if callable(name):
            return self._add(name, None, process=process)
        return lambda function: self._add(function, name, process=process)

    def _add(self, function: Handler, name: str | None, *, process: bool) -> Handler:
        action = Action(name or getattr(function, "__name__", "").replace("_", "-"), function, process=process)
        if action.name in self._actions:
            raise ActionError(f"this agent has two handlers of {action.name!r}")
        self._actions[action.name] = action
        return function

    def on_start(self, hook: Hook) -> Hook:
        """Run a function, async or not, before the first handler starts: `@agent.on_start`."""
        self._hooks.append(hook)
        return hook

    def run(
        self,
        addresses: Sequence[str],
        *,
        tls: TlsFiles | None = None,
        on_ready: Callable[[str], None] | None = None,
    ) -> int:
        """Serve until the process is told to end (SIGTERM, SIGINT), then drain. Returns the exit code.

        A second signal ends the process at once, with exit code 1. A handler that cannot be stopped when it must
        ends it with exit code 70.

        Raises:
            AgentError: It cannot work as it is: its description, its definitions, or the cluster's refusal.
        """
        with signals.draining(self.drain):
            return asyncio.run(self.serve(addresses, tls=tls, on_ready=on_ready))

    async def serve(
        self,
        addresses: Sequence[str],
        *,
        tls: TlsFiles | None = None,
        on_ready: Callable[[str], None] | None = None,
    ) -> int:
        """Serve on the running event loop until `drain` is called; cancelling it drains, too. Returns the exit code.

        Args:
            addresses: Nodes of the cluster, such as "localhost:7654". The agent goes to another when one is silent.
            tls: Files for TLS, `stepward.client.TlsFiles`, read once. None: plain text.
            on_ready: Called on the I/O thread with the session's id whenever a session has been opened.

        Raises:
            AgentError: As `run`.
        """
        self._check(addresses)
        credentials = _credentials(tls)
        async with self.prepared():
            self._engine = Engine(
                actions=self._actions,
                queue=self.queue,
                slots=self.slots,
                namespace=self.namespace,
                name=self.name,
                definitions=[definition_files.read(one) for one in self.definitions],
                drain_timeout_ms=round(self.drain_timeout_seconds * 1_000),
                addresses=addresses,
                dial=partial(open_channel, credentials=credentials),
                tls=tls,
                on_ready=on_ready,
            )
            if self._drain_asked:
                self._engine.drain()
            try:
                return await self._engine.run()
            finally:
                self._engine = None

    @asynccontextmanager
    async def prepared(self) -> AsyncIterator[None]:
        """What handlers share: the lifespan is entered and the hooks have run. `serve` does this, and so do tests."""
        async with self._lifespan():
            for hook in self._hooks:
                result = hook()
                if inspect.isawaitable(result):
                    await result
            yield

    def _check(self, addresses: Sequence[str]) -> None:
        if isolation.inside():
            text = "the process of a handler imports its module, and the module starts an agent"
            raise AgentError(f"{text}; start it below: if __name__ == '__main__':")
        if isinstance(addresses, str) or not addresses:
            raise AgentError(f"addresses is {addresses!r}; it must be a list such as ['localhost:7654']")
        if not 1 <= len(self._actions) <= ACTIONS_MAX:
            raise AgentError(f"this agent has {len(self._actions)} actions; it must have 1 to {ACTIONS_MAX}")
        if not 1 <= self.slots <= SLOTS_MAX:
            raise AgentError(f"slots is {self.slots}; it must be between 1 and {SLOTS_MAX}")
        for action in self._actions.values():
            action.locate()
        if self._engine is not None:
            raise AgentError("this agent is serving already; one process is one agent")

    def drain(self) -> None:
        """Take nothing more, let running handlers finish, and end. May be called on any thread, and again."""
        self._drain_asked = True
        if self._engine is not None:
            self._engine.drain()


def _credentials(tls: TlsFiles | None) -> grpc.ChannelCredentials | None:
    if tls is None:
        return None
    from stepward.client.errors import TlsFilesWrong  # noqa: PLC0415 - only who has files needs the client

    try:
        return tls.credentials()
    except TlsFilesWrong as error:
        raise AgentError(str(error)) from None
