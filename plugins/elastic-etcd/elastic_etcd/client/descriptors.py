"""The description of etcd's messages, as the package etcd3 ships it: read from its files, none of which is executed.

Those files were generated in 2020 and raise when they are imported under protobuf 4 or later. What they describe is
as good as ever: the bytes that they would hand to protobuf.
"""

from __future__ import annotations

import ast
from importlib import metadata
from pathlib import Path

from elastic_core.errors import PluginError, Problem

UNDERSTOOD = "0.12.0"
FILES = ("etcd3/etcdrpc/kv_pb2.py", "etcd3/etcdrpc/auth_pb2.py", "etcd3/etcdrpc/rpc_pb2.py")
"""Each needs those before it."""


def serialized_files() -> tuple[bytes, ...]:
    """The serialized file descriptors, each after those that it needs.

    Raises:
        PluginError: etcd3 is not installed, of a version that is not understood, or its files are not as they were.
    """
    package = _installed()
    return tuple(_serialized_at(Path(str(package.locate_file(name)))) for name in FILES)


def understood(version: str) -> str:
    """The version, if its files can be read. Raises PluginError."""
    if version != UNDERSTOOD:
        raise _unusable(f"expected etcd3 {UNDERSTOOD}, found version {version}")
    return version


def serialized_in(source: str) -> bytes | None:
    """The serialized file descriptor in the text of a generated module; None if there is none."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    values = (word.value for call in calls for word in call.keywords if word.arg == "serialized_pb")
    return next((found for found in map(_literal, values) if found is not None), None)


def _installed() -> metadata.Distribution:
    try:
        package = metadata.distribution("etcd3")
    except metadata.PackageNotFoundError:
        raise _unusable(f"expected the package etcd3 {UNDERSTOOD}, found none installed") from None
    understood(package.version)
    return package


def _serialized_at(path: Path) -> bytes:
    try:
        found = serialized_in(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        raise _unusable(f"expected the messages of etcd in {path}, which cannot be read: {error}") from error
    if found is None:
        raise _unusable(f"expected the messages of etcd in {path}, found no descriptor there")
    return found


def _literal(value: ast.expr) -> bytes | None:
    """The bytes of a literal, which older generators wrap into a call that makes bytes of text."""
    if isinstance(value, ast.Call) and len(value.args) == 1:
        value = value.args[0]
    if not isinstance(value, ast.Constant):
        return None
    if isinstance(value.value, str):
        return value.value.encode("latin-1")
    return value.value if isinstance(value.value, bytes) else None


def _unusable(what: str) -> PluginError:
    return PluginError(Problem("etcd3", f"{what}; run `pip install --force-reinstall --no-deps etcd3=={UNDERSTOOD}`"))
