"""The two clients behind one face, so that one test holds both to the same behaviour."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from stepward.client import AsyncClient, Client, TlsFiles
from stepward.client.failover import Patience

# Waits between attempts that no test notices; time to answer that no busy machine uses up.
QUICK = Patience(timeout_s=10.0, backoff_initial_s=0.001, backoff_max_s=0.002, wait_spin_s=0.0)

Driver = Callable[..., Any]


def blocking(
    addresses: str, method: str, *arguments: Any, patience: Patience = QUICK, tls: TlsFiles | None = None, **named: Any
) -> Any:
    """Call a method of the sync client; an iterator is read to its end."""
    with Client(addresses, patience=patience, tls=tls) as client:
        result = getattr(client, method)(*arguments, **named)
        return list(result) if hasattr(result, "__next__") else result


def asynchronous(
    addresses: str, method: str, *arguments: Any, patience: Patience = QUICK, tls: TlsFiles | None = None, **named: Any
) -> Any:
    """The same with the client for asyncio."""

    async def run() -> Any:
        async with AsyncClient(addresses, patience=patience, tls=tls) as client:
            result = getattr(client, method)(*arguments, **named)
            return [item async for item in result] if hasattr(result, "__anext__") else await result

    return asyncio.run(run())


BOTH = (blocking, asynchronous)
