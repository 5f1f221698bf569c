"""A gRPC channel to one endpoint, with the options that make it notice trouble soon and come back soon; and TLS: whom
we trust, and how we prove who we are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_core.plugin import ConfigurationError, Problem
from elastic_etcd.client.errors import MOST_RECEIVED

if TYPE_CHECKING:
    from collections.abc import Iterator

OPTIONS = (
    # A server that is stopped, not dead, is detected within 7 s. Pinged more often than every 5 s, etcd hangs up.
    ("grpc.keepalive_time_ms", 5200),
    ("grpc.keepalive_timeout_ms", 1800),
    ("grpc.http2.ping_timeout_ms", 1800),
    ("grpc.http2.max_pings_without_data", 0),  # else two, and then none while nothing but a watch is open
    # By default a channel may be dead for 40 s after its server has come back.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    ("grpc.enable_http_proxy", 0),  # `http_proxy` is meant for the web
    ("SingleThreadedUnaryStream", 1),  # whoever listens to a stream is its thread, so that none more is needed
    ("grpc.enable_retries", 0),  # what is sent again, and where, is decided above
    ("grpc.max_send_message_length", 2 * 1024 * 1024),
    ("grpc.max_receive_message_length", MOST_RECEIVED),
)
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


@dataclass(frozen=True)
class Security:
    """Connections are over TLS. Paths of PEM files.

    Args:
        ca_cert: authorities that servers must be certified by; None: those that this machine trusts.
        cert, key: a certificate for this client, and its private key; both or none.
    """

    ca_cert: str | None = None
    cert: str | None = None
    key: str | None = None

    def credentials(self) -> Any:
        """What a gRPC channel takes.

        Raises:
            ConfigurationError: a file cannot be read or is not what it should be; `cert` or `key` comes alone.
        """
        import grpc

        if problems := [*self._unreadable()] or [*self._unusable()]:
            raise ConfigurationError(*problems)
        roots = Path(self.ca_cert).read_bytes() if self.ca_cert else _trusted_here()
        return grpc.ssl_channel_credentials(roots, _content(self.key), _content(self.cert))

    def files(self) -> tuple[object, ...]:
        """Changes when one of the files does."""
        return tuple(map(_state_of, (self.ca_cert, self.cert, self.key)))

    def _unreadable(self) -> Iterator[Problem]:
        if bool(self.cert) != bool(self.key):
            absent, given = ("key", "cert") if self.cert else ("cert", "key")
            told = f"expected a certificate and its private key, found {given} alone; give both or none"
            yield Problem(absent, told)
        for name, path in (("ca_cert", self.ca_cert), ("cert", self.cert), ("key", self.key)):
            try:
                _content(path)
            except OSError as error:
                yield Problem(name, f"expected a file that can be read, found {path}: {error.strerror}")

    def _unusable(self) -> Iterator[Problem]:
        """gRPC takes whatever it is given and fails in every handshake; Python says what is wrong."""
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            if self.ca_cert:
                context.load_verify_locations(self.ca_cert)
        except (ssl.SSLError, ValueError) as error:
            yield Problem("ca_cert", f"expected certificates in PEM in {self.ca_cert}, found none: {error}")
        try:
            if self.cert and self.key:
                context.load_cert_chain(self.cert, self.key, password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            wanted = "a certificate in PEM and the private key to it, not encrypted,"
            yield Problem("cert", f"expected {wanted} in {self.cert} and {self.key}; found otherwise: {error}")


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


def _no_password() -> str:
    raise ValueError("the key is encrypted")  # the default is to ask at the terminal


def _state_of(path: str | None) -> tuple[int, ...]:
    try:
        found = Path(path).stat() if path else None
    except OSError:
        found = None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns) if found else ()


def _content(path: str | None) -> bytes | None:
    return Path(path).read_bytes() if path else None


def _trusted_here() -> bytes | None:
    """The machine's authorities, which are not those that gRPC brings along; None (those) where there are none."""
    import ssl

    places = (ssl.get_default_verify_paths().cafile, *_BUNDLES)
    found = next((place for place in places if place and Path(place).is_file()), None)
    return _content(found)
