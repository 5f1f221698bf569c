"""A page from a server in the same process."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import probe

import requests

probe.imported("requests")


class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"size": 3}')

    def log_message(self, *words):
        pass


with HTTPServer(("127.0.0.1", 0), Page) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    probe.result("page", requests.get(f"http://127.0.0.1:{server.server_port}", timeout=30).json())
    server.shutdown()
probe.end()
