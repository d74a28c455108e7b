"""A node of a cluster that starts on a full disk waits for room. If it ended it would only be started again and again.

Nothing is opened or written before there is some, so it may be freed in whatever way.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from stepward.server import observe
from stepward.server.store.environment import disk_free_bytes
from stepward.server.store.lmdb_store import FREE_BYTES_MIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepward.server.config import NodeConfig

# How often the disk is looked at.
LOOK_S: Final = 1.0

_log = observe.logger("room")


async def room_to_begin(config: NodeConfig, stop: asyncio.Future[Any], *, on_waiting: Callable[[str], None]) -> bool:
    """Wait until the disk has room for a start; False when this process is asked to stop before.

    `on_waiting` is told once what is waited for, when something is.

    Raises:
        StoreFailed: The directory cannot be reached.
    """
    waited = False
    while config.data.exists() and (free_bytes := disk_free_bytes(config.data)) < FREE_BYTES_MIN:
        if not waited:
            waited = True
            reason = (
                f"the disk of {config.data} is full: {free_bytes} bytes are free and at least {FREE_BYTES_MIN} are "
                "needed to start; the node begins as soon as some space is freed there"
            )
            on_waiting(reason)
            _log.error("node_waits_for_room", node_id=config.node_id, reason=reason)
        await asyncio.wait((stop,), timeout=LOOK_S)
        if stop.done():
            return False
    if waited:
        _log.info("node_has_room", node_id=config.node_id)
    return True
