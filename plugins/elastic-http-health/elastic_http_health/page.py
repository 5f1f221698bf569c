"""The status page, a single self-contained document. It contains no job data. Its script requests the data from
`/status`."""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib import resources

from elastic_http_health.messages import Response

_POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)


@functools.cache
def response() -> Response:
    """Return the page, with a content security policy that allows only the page's own script."""
    script, style = _part("page.js"), _part("page.css")
    body = _part("page.html").replace("/*style*/", style).replace("/*script*/", script)
    policy = _POLICY.format(script=_digest(script), style=_digest(style))
    return Response(200, body.encode(), "text/html; charset=utf-8", policy=policy)


def _part(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
