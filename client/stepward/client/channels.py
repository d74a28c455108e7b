"""How the client connects: every gRPC setting of it, in this one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import grpc

    from stepward.client.tls import TlsFiles

# A connection that died without a word is noticed after time + timeout; whoever waits for a job goes to another node.
# The servers allow a ping every 5 s; one that did not would close connections that ping more often than every 300 s.
KEEPALIVE_TIME_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 5_000

# One message: a definition or a thousand submissions one way, a job with the outputs of all its steps the other.
# Payloads are checked against their own, much smaller limit, which the server names when it is exceeded.
SEND_BYTES_MAX = 16 * 1024 * 1024
RECEIVE_BYTES_MAX = 64 * 1024 * 1024

# gRPC's own reconnects. Ours decide when a call is repeated, so gRPC must not sit out a second that we want to use.
RECONNECT_INITIAL_MS = 100
RECONNECT_MAX_MS = 1_000
# An address that swallows packets is given up after this: as long as an answer is waited for, see `failover.Patience`.
CONNECT_TIMEOUT_MS = 3_000

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # The ping's own timer decides, and is a minute unless told; the option above alone changes nothing in grpcio 1.85.
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_send_message_length", SEND_BYTES_MAX),
    ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", RECONNECT_INITIAL_MS),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_MAX_MS),
    ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
    # A client has connections of its own: two clients of one process share neither fate nor bandwidth.
    ("grpc.use_local_subchannel_pool", 1),
    # gRPC's transparent retries would repeat beside our own, and without our rule about what is safe.
    ("grpc.enable_retries", 0),
)


def credentials_of(tls: TlsFiles | None, credentials: grpc.ChannelCredentials | None) -> grpc.ChannelCredentials | None:
    """What a client secures its connections with; None: nothing.

    Raises:
        ValueError: Both are given.
        TlsFilesWrong: A file cannot be used.
    """
    if tls is not None and credentials is not None:
        raise ValueError("tls and credentials are both given; give one of them")
    return tls.credentials() if tls is not None else credentials
