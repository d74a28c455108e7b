"""TLS between nodes and towards callers: one certificate a node, from one CA for all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc

from stepward.server.peers.certificate import NODE_URI

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from stepward.server.config import TlsFiles

# Where gRPC keeps the URIs of a caller's certificate.
_URIS: Final = "peer_uri"


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """What this node shows; nobody without a certificate of the CA gets in."""
    pair = (_read(files.key), _read(files.certificate))
    return grpc.ssl_server_credentials([pair], _read(files.ca), require_client_auth=True)


def channel_credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    """What this node shows to another one, whose certificate must name the address under which it is reached."""
    return grpc.ssl_channel_credentials(_read(files.ca), _read(files.key), _read(files.certificate))


def node_ids(auth_context: Mapping[str, Iterable[bytes]]) -> frozenset[str]:
    """The nodes as which a caller's certificate may speak; empty for agents and clients."""
    uris = (uri.decode(errors="replace") for uri in auth_context.get(_URIS, ()))
    return frozenset(uri.removeprefix(NODE_URI) for uri in uris if uri.startswith(NODE_URI))


def _read(path: Path) -> bytes:
    return path.read_bytes()
