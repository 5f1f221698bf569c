"""Mock services that follow the providers' documentation and, like the real ones, refuse requests that do not."""

from __future__ import annotations

import json
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class Service:
    """An HTTP server in a thread. A mock's `answer(method, path, query, headers)` returns status, text and headers."""

    def __init__(self, mock):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                url = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(url.query).items()}
                status, text, headers = mock.answer(self.command, url.path, query, self.headers)
                body = text.encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if status != 204:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_PUT = do_POST = answer  # noqa: N815

            def log_message(self, *words):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


def utc(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


class Aws:
    """IMDSv2: without a valid token, the status is 401."""

    def __init__(self):
        self.tokens = {}
        self.metadata = {}
        self.tokens_given = []

    def answer(self, method, path, query, headers):
        if path == "/latest/api/token":
            lives = headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
            if method != "PUT" or "X-Forwarded-For" in headers:
                return 403, "", {}
            if not lives.isdigit() or not 1 <= int(lives) <= 21600:
                return 400, "", {}
            token = uuid.uuid4().hex
            self.tokens[token] = time.monotonic() + int(lives)
            self.tokens_given.append(token)
            return 200, token, {"X-aws-ec2-metadata-token-ttl-seconds": lives}
        if self.tokens.get(headers.get("X-aws-ec2-metadata-token"), 0) < time.monotonic():
            return 401, "", {}
        if method != "GET" or path not in self.metadata:
            return 404, "<html>not found</html>", {}
        return 200, json.dumps(self.metadata[path]), {}


class Gcp:
    """The metadata server, with long polls."""

    FLAVOR = {"Metadata-Flavor": "Google"}

    def __init__(self):
        self.values = {"preempted": "FALSE", "maintenance-event": "NONE"}
        self.held = 0
        self._changed = threading.Condition()

    def set(self, key, value):
        with self._changed:
            self.values[key] = value
            self._changed.notify_all()

    def answer(self, method, path, query, headers):
        folder, _, key = path.rpartition("/")
        if headers.get("Metadata-Flavor") != "Google" or "X-Forwarded-For" in headers:
            return 403, "<html>forbidden</html>", {}
        if method != "GET" or folder != "/computeMetadata/v1/instance" or key not in self.values:
            return 404, "", self.FLAVOR
        with self._changed:
            if query.get("wait_for_change") == "true":
                asked = query.get("last_etag")
                self.held += 1
                self._changed.wait_for(lambda: self._etag(key) != asked, int(query["timeout_sec"]))
            return 200, self.values[key], {**self.FLAVOR, "ETag": self._etag(key)}

    def _etag(self, key):
        return uuid.uuid5(uuid.NAMESPACE_OID, self.values[key]).hex[:16]


class Azure:
    """The instance metadata service. It lists the events of all VMs of the scale set."""

    def __init__(self, name="trainer_3"):
        self.name = name
        self.events = []
        self.methods = set()

    def answer(self, method, path, query, headers):
        self.methods.add(method)
        if headers.get("Metadata", "").lower() != "true" or "X-Forwarded-For" in headers:
            return 400, json.dumps({"error": "Bad request. Required metadata header not specified"}), {}
        if path == "/metadata/instance/compute/name" and query == {"api-version": "2021-02-01", "format": "text"}:
            return 200, self.name, {}
        if path == "/metadata/scheduledevents" and query == {"api-version": "2020-07-01"}:
            return 200, json.dumps({"DocumentIncarnation": 1, "Events": self.events}), {}
        return 400, json.dumps({"error": "Bad request"}), {}


class Fixed:
    """The same answer to each request."""

    def __init__(self, status=200, text="", **headers):
        self.status, self.text, self.headers = status, text, headers
        self.asked = 0
        self.path, self.query = "", {}

    def answer(self, method, path, query, headers):
        self.asked += 1
        self.path, self.query = path, query
        return self.status, self.text, self.headers
