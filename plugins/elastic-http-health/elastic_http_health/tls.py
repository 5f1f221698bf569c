"""TLS for one connection. This module does no I/O, so that the limits in `connections.py` also apply to TLS."""

from __future__ import annotations

import contextlib
import ssl

_PIECE = 16384  # maximum size of a TLS record
_HANDSHAKE = 22  # the first byte of every TLS connection; no HTTP request begins with it


def server_context(cert_file: str, key_file: str | None) -> ssl.SSLContext:
    """Return the TLS context for connections. Raises ValueError if the files do not contain a certificate and its
    key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    where = repr(cert_file) if key_file is None else f"{cert_file!r} and {key_file!r}"
    try:
        context.load_cert_chain(cert_file, key_file, password="")  # without it, ssl prompts for the key's password
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ValueError(f"the private key in {where} does not belong to the certificate") from error
        words = f"{where} must contain a certificate and its private key, in PEM format and without a password"
        raise ValueError(words) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"cannot read the certificate and private key in {where}: {reason}") from error
    return context


class Channel:
    """Encrypts and decrypts the data of one connection."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._received = ssl.MemoryBIO()
        self._to_send = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_side=True)

    def opened(self, data: bytes) -> bytes:
        """Decrypt all complete records in the received data. Raises ssl.SSLError if the data is not valid TLS."""
        self._received.write(data)
        decrypted = bytearray()
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            while piece := self._tls.read(_PIECE):
                decrypted += piece
        return bytes(decrypted)

    def sealed(self, data: bytes) -> bytes:
        """Encrypt the last data of the connection, and append TLS's close notification."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._tls.write(rest) :]
        with contextlib.suppress(ssl.SSLError):  # do not wait for the client's close notification
            self._tls.unwrap()
        return self.reply()

    def reply(self) -> bytes:
        """Return data that TLS itself has to send now."""
        return self._to_send.read()


def speaks_tls(data: bytes) -> bool:
    """Return whether a connection that begins with this data uses TLS."""
    return data[0] == _HANDSHAKE
