"""Whether an etcd answers, and whether it is the one that we mean: asked over HTTP, so that no gRPC is needed."""

from __future__ import annotations

import json
from typing import Any


def answers_as(name: str, url: str, timeout: float = 1.0) -> bool:
    """Whether a healthy etcd, whose only member has this name, answers at `url`. False when anything is otherwise."""
    try:
        members = _ask(f"{url}/v3/cluster/member/list", b"{}", timeout)["members"]
        return [member.get("name") for member in members] == [name] and _is_healthy(url, timeout)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _is_healthy(url: str, timeout: float) -> bool:
    return bool(_ask(f"{url}/health", None, timeout)["health"] == "true")


def _ask(url: str, body: bytes | None, timeout: float) -> Any:
    import http.client
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, body, timeout) as answer:
            return json.load(answer)
    except http.client.HTTPException as error:
        raise ValueError(f"{url} does not speak HTTP") from error
