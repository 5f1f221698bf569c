"""The client's errors, and the meaning of a member's failure, which is derived from gRPC's code and etcd's error
message.

Verified with etcd 3.4 and 3.5, and gRPC 1.62 to 1.85.
"""

from __future__ import annotations

import enum
from typing import Any

MOST_RECEIVED = 64 * 1024 * 1024
"""The maximum size in bytes of a message from a server. It is more than a job of a thousand nodes needs, and an agent
can afford the memory."""
_LONGEST = 2000  # characters; gRPC lists every address that it tried


class EtcdError(Exception):
    """Base class of this client's errors."""


class EtcdUnreachable(EtcdError):
    """No member answered in time. The call may be repeated. If `landed` is set, a write may already have taken
    effect."""

    def __init__(self, message: str, landed: bool = False) -> None:
        super().__init__(message)
        self.landed = landed


class EtcdClosed(EtcdError):
    """This client was closed."""


class EtcdRefused(EtcdError):
    """The server rejects the request, or one side rejects the other's certificate. Repeating the request does
    not help."""


class EtcdDenied(EtcdRefused):
    """The user or password is wrong, or access to the key is denied."""


class EtcdFull(EtcdRefused):
    """The quota is used up (alarm NOSPACE), so every write fails."""


class EtcdTooLarge(EtcdRefused):
    """The answer exceeds this client's limit."""


class EtcdLeaseGone(EtcdRefused):
    """The lease does not exist: it expired or was revoked."""


class EtcdLeaseExists(EtcdRefused):
    """A lease with the requested id already exists."""


class Failure(Exception):
    """A failed attempt on one member. `code` is gRPC's name for the error. `details` comes from the server, so
    unprintable characters are replaced and a long string is truncated."""

    def __init__(self, code: str, details: str) -> None:
        details = "".join(it if it.isprintable() else "?" for it in details[:_LONGEST])
        super().__init__(f"{code}: {details}")
        self.code = code
        self.details = details

    @classmethod
    def of(cls, error: Any) -> Failure:
        """Convert a grpc.RpcError."""
        return cls(error.code().name, error.details() or "")


class ErrorMeaning(enum.Enum):
    """What a failure means for the call."""

    ELSEWHERE = "another member may work; a write may still have taken effect"
    NOT_SENT = "another member may work; nothing took effect"
    LOG_IN = "the server does not know our token; nothing took effect"
    REFUSED = "every member would respond in the same way; nothing took effect"


_OF_THE_MEMBER = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "UNKNOWN", "CANCELLED"})
TOO_LARGE = "larger than max"
_NO_USER = "user name is empty"
_LOG_IN = ("invalid auth token", "revision of auth store is old", _NO_USER)
_NOT_SENT = (
    "failed to connect to all addresses",
    "errors resolving",
    "DNS resolution failed",
    "etcdserver: no leader",  # sent before the server looks at the request
    "etcdserver: not leader",
    "etcdserver: not capable",
    "not supported for learner",
    "etcdserver: too many requests",
)


def judge(failure: Failure) -> ErrorMeaning:
    if failure.code == "UNAUTHENTICATED" or any(words in failure.details for words in _LOG_IN):
        return ErrorMeaning.LOG_IN  # older servers send PERMISSION_DENIED, so the message is checked as well
    if failure.code == "UNIMPLEMENTED" or any(words in failure.details for words in _NOT_SENT):
        return ErrorMeaning.NOT_SENT  # UNIMPLEMENTED: the server is not etcd
    return ErrorMeaning.ELSEWHERE if failure.code in _OF_THE_MEMBER else ErrorMeaning.REFUSED


_OTHER_NAMES = "its certificate is for other names; use one of these as the endpoint"
_NOT_OURS = "it rejects our certificate, or requires one; set a certificate that it trusts (ssl_cert, ssl_cert_key)"
_NO_NAME = "the name cannot be resolved; correct the endpoint"
_NO_TLS = "it does not answer the TLS handshake; perhaps it does not use TLS (protocol=http), or it hangs"
_TLS = "it closed a plain-text connection; it may expect TLS (use protocol https)"
_FOREIGN = "the server there is not etcd; correct the endpoint, or use protocol https if it requires TLS"

_MISTRUST = (
    ("certificate has expired", "its certificate has expired, or the clocks differ; renew the certificate"),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not from an authority that this client trusts; set ca_cert"),
    ("Hostname Verification Check failed", _OTHER_NAMES),
    ("is not in peer certificate", _OTHER_NAMES),
    ("ALERT", _NOT_OURS),
    ("Unwrap failed", _NOT_OURS),  # TLS 1.3: a server rejects the certificate after the handshake
)

_REASONS = (
    *_MISTRUST,
    ("tcp handshaker shutdown", ""),
    ("FD Shutdown", ""),  # older gRPC: the channel has stopped connecting, and has reported the reason before
    ("Connection refused", "nothing listens there (connection refused); start etcd, or correct the endpoint"),
    ("errors resolving", _NO_NAME),
    ("DNS resolution failed", _NO_NAME),
    ("Handshake read failed", _NO_TLS),
    ("WRONG_VERSION", _NO_TLS),
    ("before receiving SETTINGS", "it accepts connections but does not answer"),
    ("http1.x server", _FOREIGN),
    ("Failed parsing HTTP/2", _FOREIGN),
    ("Expected SETTINGS frame", _FOREIGN),
    (
        "etcdserver: no leader",
        "it is running, but the cluster has no leader; more than half of the cluster's members must run",
    ),
)


def fault(failure: Failure, over_tls: bool) -> str:
    """Describe the member's problem. The result is empty if the failure contains no reason."""
    known = next((reason for words, reason in _REASONS if words in failure.details), None)
    if known is not None:
        return known
    if failure.code == "DEADLINE_EXCEEDED":
        return "it did not answer in time"
    if failure.code == "UNIMPLEMENTED":
        return _FOREIGN
    if "failed to connect" in failure.details and "Socket closed" in failure.details:
        return _NO_TLS if over_tls else _TLS
    return f"{failure.details} ({failure.code})"


def is_mistrust(failure: Failure) -> bool:
    """Return whether one side rejects the other's certificate."""
    return "failed to connect" in failure.details and any(words in failure.details for words, _ in _MISTRUST)


def refusal(failure: Failure, where: str) -> EtcdRefused:
    """Return the error to raise for a request that every member would reject."""
    reason = failure.details or failure.code
    for words, kind, advice in _REFUSALS:
        if words in failure.details:
            return kind(f"etcd {where}: {reason}: {advice}")
    if failure.code in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
        return EtcdDenied(f"etcd {where} denies access: {reason}; check the user, its password and its roles")
    return EtcdRefused(f"etcd {where} rejects a request: {reason} ({failure.code})")


_REFUSALS: tuple[tuple[str, type[EtcdRefused], str], ...] = (
    (
        TOO_LARGE,
        EtcdTooLarge,
        f"too much is stored under this job's keys for a response of {MOST_RECEIVED >> 20} MiB; list them with "
        "etcdctl get --prefix --keys-only PREFIX",
    ),
    (
        "permission denied",
        EtcdDenied,
        "the user needs permission to read and write this job's keys; grant it to one of the user's roles: "
        "etcdctl role grant-permission ROLE readwrite --prefix PREFIX",
    ),
    ("authentication failed", EtcdDenied, "correct the user or the password"),
    (_NO_USER, EtcdDenied, "the cluster requires a user and a password; set both"),
    (
        "database space exceeded",
        EtcdFull,
        "its quota is used up, and every write fails; compact and defragment it, or raise --quota-backend-bytes; then "
        "disarm the alarm (etcdctl alarm disarm)",
    ),
    ("requested lease not found", EtcdLeaseGone, "the lease expired or was revoked; request a new one"),
    ("lease already exists", EtcdLeaseExists, "choose another id"),
)
