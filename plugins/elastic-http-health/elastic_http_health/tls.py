"""TLS of one connection, without I/O: the limits on bytes, pieces and time in `connections.py` hold for it, too."""

from __future__ import annotations

import contextlib
import ssl

_PIECE = 16384  # the most that one record of TLS holds
_HANDSHAKE = 22  # the first byte of all that speaks TLS; no request in HTTP begins with it


def server_context(cert_file: str, key_file: str | None) -> ssl.SSLContext:
    """What connections are made with. Raises ValueError for files that are not a certificate and its key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    where = repr(cert_file) if key_file is None else f"{cert_file!r} and {key_file!r}"
    try:
        context.load_cert_chain(cert_file, key_file, password="")  # without one, a key that has one is asked for it
    except ssl.SSLError as error:
        found = "a key of another certificate" if error.reason == "KEY_VALUES_MISMATCH" else "something else"
        words = f"expected a certificate and its private key, in PEM and without a password, in {where}, found {found}"
        raise ValueError(words) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        words = f"expected a certificate and its private key in {where}, found that they cannot be read: {reason}"
        raise ValueError(words) from error
    return context


class Channel:
    """Between the bytes on the wire and what is said."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._received = ssl.MemoryBIO()
        self._to_send = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_side=True)

    def opened(self, data: bytes) -> bytes:
        """What the client says, as far as these bytes and those before tell. Raises ssl.SSLError."""
        self._received.write(data)
        said = bytearray()
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            while piece := self._tls.read(_PIECE):
                said += piece
        return bytes(said)

    def sealed(self, data: bytes) -> bytes:
        """The bytes that say this to the client, as the last there is to say."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._tls.write(rest) :]
        with contextlib.suppress(ssl.SSLError):  # the client need not say that it is done, too
            self._tls.unwrap()
        return self.reply()

    def reply(self) -> bytes:
        """What TLS itself has to send now."""
        return self._to_send.read()


def speaks_tls(data: bytes) -> bool:
    """Whether the first bytes of a connection are those of TLS."""
    return data[0] == _HANDSHAKE
