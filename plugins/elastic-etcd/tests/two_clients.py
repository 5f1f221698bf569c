"""A client for tests that stop its server."""


class TwoClients:
    """A client that waits for a slow server, and, while the server is `away`, one that soon gives up."""

    def __init__(self, patient, hasty):
        self._clients = (patient, hasty)
        self.away = False

    def __getattr__(self, name):
        return getattr(self._clients[self.away], name)

    def close(self):
        for client in self._clients:
            client.close()
