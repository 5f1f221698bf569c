"""TLS: whom we trust, and how we prove who we are."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastic_core.errors import ConfigurationError, Problem

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

        problems = [*self._missing(), *_unreadable(ca_cert=self.ca_cert, cert=self.cert, key=self.key)]
        if problems or (problems := [*self._unusable()]):
            raise ConfigurationError(*problems)
        roots = Path(self.ca_cert).read_bytes() if self.ca_cert else _trusted_here()
        return grpc.ssl_channel_credentials(roots, _content(self.key), _content(self.cert))

    def _missing(self) -> list[Problem]:
        if bool(self.cert) == bool(self.key):
            return []
        absent, given = ("key", "cert") if self.cert else ("cert", "key")
        return [Problem(absent, f"expected a certificate and its private key, found {given} alone; give both or none")]

    def _unusable(self) -> list[Problem]:
        """gRPC takes whatever it is given and fails in every handshake; Python says what is wrong."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        problems = []
        try:
            if self.ca_cert:
                context.load_verify_locations(self.ca_cert)
        except (ssl.SSLError, ValueError) as error:
            problems.append(Problem("ca_cert", f"expected certificates in PEM in {self.ca_cert}, found none: {error}"))
        try:
            if self.cert and self.key:
                context.load_cert_chain(self.cert, self.key, password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            files = f"{self.cert} and {self.key}"
            wanted = "a certificate in PEM and the private key to it, not encrypted,"
            problems.append(Problem("cert", f"expected {wanted} in {files}; found otherwise: {error}"))
        return problems


def _no_password() -> str:
    raise ValueError("the key is encrypted")  # the default is to ask at the terminal


def _unreadable(**paths: str | None) -> list[Problem]:
    problems = []
    for name, path in paths.items():
        try:
            _content(path)
        except OSError as error:
            problems.append(Problem(name, f"expected a file that can be read, found {path}: {error.strerror}"))
    return problems


def _content(path: str | None) -> bytes | None:
    return Path(path).read_bytes() if path else None


def _trusted_here() -> bytes | None:
    """The machine's authorities, which are not those that gRPC brings along; None (those) where there are none."""
    places = (ssl.get_default_verify_paths().cafile, *_BUNDLES)
    found = next((place for place in places if place and Path(place).is_file()), None)
    return _content(found)
