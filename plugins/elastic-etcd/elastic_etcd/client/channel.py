"""Opens gRPC channels that notice failures and recoveries quickly, and holds the TLS settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_core.plugin import ConfigurationError, Problem, get_logger
from elastic_etcd.client.errors import MOST_RECEIVED

if TYPE_CHECKING:
    from collections.abc import Iterator

OPTIONS = (
    # Detects a server that is suspended (but not dead) within 7 s. etcd closes connections that ping more often than
    # every 5 s.
    ("grpc.keepalive_time_ms", 5200),
    ("grpc.keepalive_timeout_ms", 1800),
    ("grpc.http2.ping_timeout_ms", 1800),
    ("grpc.http2.max_pings_without_data", 0),  # unlimited; by default, pings stop after two if only a watch is open
    # With the defaults, a channel may stay dead for 40 s after its server has recovered.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    ("grpc.enable_http_proxy", 0),  # `http_proxy` is meant for web traffic
    ("SingleThreadedUnaryStream", 1),  # the thread that reads a stream also drives it
    ("grpc.enable_retries", 0),  # `client.py` decides which requests are sent again, and to which member
    ("grpc.max_send_message_length", 2 * 1024 * 1024),
    ("grpc.max_receive_message_length", MOST_RECEIVED),
)
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


@dataclass(frozen=True)
class Security:
    """The PEM files for TLS. `ca_cert` contains the CAs that sign the servers' certificates (default: the system CAs).
    `cert` and `key` identify this client. Set both or neither."""

    ca_cert: str | None = None
    cert: str | None = None
    key: str | None = None

    def check(self) -> None:
        """Raise ConfigurationError if a file is unreadable or invalid, or if only one of `cert` and `key` is set."""
        if problems := [*self._unreadable()] or [*self._unusable()]:
            raise ConfigurationError(*problems)

    def credentials(self) -> Any:
        """Return credentials for a gRPC channel. Raises the same error as `check`."""
        import grpc

        self.check()
        roots = Path(self.ca_cert).read_bytes() if self.ca_cert else _trusted_here()
        return grpc.ssl_channel_credentials(roots, _content(self.key), _content(self.cert))

    def files(self) -> tuple[object, ...]:
        """Return a value that changes whenever one of the files changes."""
        return tuple(map(_state_of, (self.ca_cert, self.cert, self.key)))

    def _unreadable(self) -> Iterator[Problem]:
        if bool(self.cert) != bool(self.key):
            absent, given = ("key", "cert") if self.cert else ("cert", "key")
            yield Problem(
                absent, f"expected a certificate and its private key, found only {given}; set both or neither"
            )
        for name, path in (("ca_cert", self.ca_cert), ("cert", self.cert), ("key", self.key)):
            try:
                _content(path)
            except OSError as error:
                yield Problem(name, f"cannot read {path}: {error.strerror}")

    def _unusable(self) -> Iterator[Problem]:
        """Find files that gRPC accepts but that make every handshake fail. Python's ssl module reports the reason."""
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            if self.ca_cert:
                context.load_verify_locations(self.ca_cert)
        except (ssl.SSLError, ValueError) as error:
            yield Problem("ca_cert", f"{self.ca_cert} contains no PEM certificates: {error}")
        try:
            if self.cert and self.key:
                context.load_cert_chain(self.cert, self.key, password=no_password)
        except (ssl.SSLError, ValueError) as error:
            wanted = "a PEM certificate and its unencrypted private key"
            yield Problem("cert", f"{self.cert} and {self.key} are not {wanted}: {error}")


class Credentials:
    """Reads the credentials again for each channel. While the files are unusable, perhaps because they are being
    renewed, it returns the last usable ones. Thread-safe."""

    def __init__(self, security: Security) -> None:
        self._security = security
        self._usable: Any = None
        self.files = security.files

    def credentials(self) -> Any:
        """See `Security.credentials`. Raises ConfigurationError if the files have never been usable."""
        try:
            self._usable = self._security.credentials()
        except (ConfigurationError, OSError) as error:
            if self._usable is None:
                raise
            get_logger().warning("new certificate unusable", reason=str(error), consequence="the last one is used")
        return self._usable


def open_channel(endpoint: str, security: Security | Credentials | None) -> Any:
    """Open a channel to `host:port`, which connects on first use. Without `security`, it uses plain text. Raises
    ConfigurationError if the certificates cannot be used."""
    import grpc

    target = f"dns:///{endpoint}"  # gRPC could read a bare `name:port` as a URL scheme
    if security is None:
        return grpc.insecure_channel(target, OPTIONS)
    return grpc.secure_channel(target, security.credentials(), OPTIONS)


def no_password() -> str:
    """Reject an encrypted private key, because by default, ssl would ask for the passphrase at the terminal."""
    raise ValueError("the key is encrypted")


def _state_of(path: str | None) -> tuple[int, ...]:
    try:
        found = Path(path).stat() if path else None
    except OSError:
        found = None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns) if found else ()


def _content(path: str | None) -> bytes | None:
    return Path(path).read_bytes() if path else None


def _trusted_here() -> bytes | None:
    """Return the system's CAs, or None if it has none. They differ from the CAs that are bundled with gRPC."""
    import ssl

    places = (ssl.get_default_verify_paths().cafile, *_BUNDLES)
    found = next((place for place in places if place and Path(place).is_file()), None)
    return _content(found)
