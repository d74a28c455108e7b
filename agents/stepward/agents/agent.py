"""What people write: an agent is its handlers, the queue that it serves, and how many steps it takes at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from stepward.v1 import definition_pb2

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
        definitions: Sequence[Path | str | definition_pb2.Definition] = (),
        lifespan: Lifespan | None = None,
        drain_timeout_seconds: float = 30.0,
    ) -> None:
        """Describe an agent; nothing starts yet.

        `slots` is how many steps run at once. `definitions` are applied to the cluster when the agent starts: paths of
        YAML files, or definitions as messages. `lifespan` is entered on the handlers' event loop before the first
        handler starts and left after the last one has ended. `name` is for people; by default it is made of the
        queue, the host and the process id.
        """

    @overload
    def action(self, name: Handler, /) -> Handler: ...
    @overload
    def action(self, name: str | None = None, /) -> Callable[[Handler], Handler]: ...
    def action(self, name: Any = None, /) -> Any:
        """Make a function the handler of an action: `@agent.action` or `@agent.action("book-flight")`.

        The name is that of the function with `-` for `_`, unless given. The function stays as it is.

        Raises:
            ActionError: The function cannot be a handler; the message says why.
        """

    def on_start(self, hook: Hook) -> Hook:
        """Run a function, async or not, before the first handler starts: `@agent.on_start`."""

    def run(self, addresses: Sequence[str]) -> int:
        """Serve until the process is told to stop (SIGTERM, SIGINT), then drain. Returns the exit code."""

    async def serve(self, addresses: Sequence[str]) -> int:
        """Serve on the running event loop until drained; cancelling it drains too. Returns the exit code."""

    def drain(self) -> None:
        """Take nothing more, let running handlers finish, and end. May be called on any thread, and again."""
