"""Where a process is called: the address, whoever serves there, and what one connection may cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepward.server.addresses import bracketed
from stepward.server.peers import tls

if TYPE_CHECKING:
    import grpc.aio

    from stepward.server.config import ClusterConfig, NodeConfig


class AddressTaken(Exception):  # noqa: N818 - a state of the machine, named as such
    """Another process listens there, or the address is none of this machine's."""

    def __init__(self, address: str) -> None:
        super().__init__(f"{address} cannot be listened on; is another node running there? choose another with --port")
        self.address = address


def listen(server: grpc.aio.Server, config: NodeConfig) -> str:
    """Have a server listen where a node does; the address.

    Raises:
        AddressTaken: It cannot.
    """
    host = bracketed(config.host)
    wanted = f"{host}:{config.port}"
    try:
        if config.tls is None:
            port = server.add_insecure_port(wanted)
        else:
            port = server.add_secure_port(wanted, tls.server_credentials(config.tls))
    except RuntimeError as error:
        raise AddressTaken(wanted) from error
    return f"{host}:{port}"


def server_options(cluster: ClusterConfig, config: NodeConfig) -> list[tuple[str, int]]:
    """What one connection may cost us, and how a dead one is found out."""
    return [
        ("grpc.max_receive_message_length", cluster.message_bytes_max),
        # A job may have many steps with large outputs; who asks for it says how much he takes.
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", config.metadata_bytes_max),
        ("grpc.max_allowed_incoming_connections", config.connections_max),
        ("grpc.max_concurrent_streams", config.concurrent_streams_max),
        ("grpc.server_handshake_timeout_ms", config.handshake_timeout_ms),
        ("grpc.http2.min_ping_interval_without_data_ms", config.ping_interval_ms_min),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", config.keepalive_ms),
        ("grpc.keepalive_timeout_ms", config.keepalive_timeout_ms),
        # The ping's own timer decides; the option above alone changes nothing in grpcio 1.85.
        ("grpc.http2.ping_timeout_ms", config.keepalive_timeout_ms),
        ("grpc.http2.max_pings_without_data", 0),
        # Another node on the same port must be an error, not a lottery.
        ("grpc.so_reuseport", 0),
    ]
