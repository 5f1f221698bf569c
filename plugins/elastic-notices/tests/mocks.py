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


class Fixed:
    """The same answer to each request."""

    def __init__(self, status=200, text="", **headers):
        self.status, self.text, self.headers = status, text, headers
        self.asked = 0

    def answer(self, method, path, query, headers):
        self.asked += 1
        return self.status, self.text, self.headers
