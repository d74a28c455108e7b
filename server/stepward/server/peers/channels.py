"""Connections to other nodes, each under the address that the configuration gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc
import grpc.aio

from stepward.server.peers import tls

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepward.server.config import NodeConfig

# No node may forbid pings that are as rare as this: `ping_interval_ms_min` ends below it.
PING_MS: Final = 10_000


def open_channel(address: str, config: NodeConfig) -> grpc.aio.Channel:
    """A connection of its own to the node at an address; the caller closes it."""
    options = _options(config)
    if config.tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, tls.channel_credentials(config.tls), options=options)


class PeerChannels:
    """One connection to each other node for calls, made when it is first asked for and kept."""

    def __init__(self, addresses: Mapping[str, str], config: NodeConfig) -> None:
        self._addresses = dict(addresses)
        self._config = config
        self._open: dict[str, grpc.aio.Channel] = {}

    def address(self, node_id: str) -> str:
        """Where a node is reached; empty when the configuration does not say."""
        return self._addresses.get(node_id, "")

    def to(self, node_id: str) -> grpc.aio.Channel:
        """The connection to a node.

        Raises:
            KeyError: The configuration does not say where it is.
        """
        channel = self._open.get(node_id)
        if channel is None:
            channel = self._open[node_id] = open_channel(self._addresses[node_id], self._config)
        return channel

    async def close(self) -> None:
        """Close all of them, with the calls on them."""
        channels = list(self._open.values())
        self._open.clear()
        for channel in channels:
            await channel.close()


def _options(config: NodeConfig) -> list[tuple[str, int]]:
    return [
        # Each connection is a TCP connection of its own: what fills one must not hold another.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.initial_reconnect_backoff_ms", config.peer_backoff_ms_min),
        ("grpc.min_reconnect_backoff_ms", config.peer_connect_ms_max),
        ("grpc.max_reconnect_backoff_ms", config.peer_backoff_ms_max),
        # On Linux the timeout of pings bounds, too, how long sent bytes may lack the other machine's word, on any
        # connection that carries something; so the pings themselves need not be frequent.
        ("grpc.keepalive_time_ms", PING_MS),
        ("grpc.keepalive_timeout_ms", config.peer_silence_ms_max),
        ("grpc.http2.ping_timeout_ms", config.peer_silence_ms_max),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # No proxy of the environment stands between nodes.
        ("grpc.enable_http_proxy", 0),
    ]
