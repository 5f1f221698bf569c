"""A client for tests that take its server away."""


class TwoClients:
    """One that waits for its server however slow that is; and one that soon gives up, for when the server is `away`."""

    def __init__(self, patient, hasty):
        self._clients = (patient, hasty)
        self.away = False

    def __getattr__(self, name):
        return getattr(self._clients[self.away], name)

    def close(self):
        for client in self._clients:
            client.close()
