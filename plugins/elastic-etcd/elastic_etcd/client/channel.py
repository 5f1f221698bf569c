"""A gRPC channel to one endpoint, with the options that make it notice trouble soon and come back soon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastic_etcd.client.security import Security

OPTIONS = (
    # A server that is stopped, not dead, is found out in seconds. Oftener than every 5 s, etcd hangs up.
    ("grpc.keepalive_time_ms", 6000),
    ("grpc.keepalive_timeout_ms", 3000),
    ("grpc.http2.ping_timeout_ms", 3000),
    # By default a channel may be dead for 40 s after its server has come back.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    ("grpc.enable_http_proxy", 0),  # `http_proxy` is meant for the web
    ("SingleThreadedUnaryStream", 1),  # whoever listens to a stream is its thread, so that none more is needed
    ("grpc.enable_retries", 0),  # what is sent again, and where, is decided above
    ("grpc.max_send_message_length", 2 * 1024 * 1024),
    ("grpc.max_receive_message_length", -1),  # many values of 1.5 MiB may come at once
)


def open_channel(endpoint: str, security: Security | None) -> Any:
    """A channel to `host:port`; over TLS with `security`, else in plain text. Connects when it is first used.

    Raises:
        ConfigurationError: the certificates cannot be used.
    """
    import grpc

    target = f"dns:///{endpoint}"  # a bare `name:port` could be read as a scheme
    if security is None:
        return grpc.insecure_channel(target, OPTIONS)
    return grpc.secure_channel(target, security.credentials(), OPTIONS)
