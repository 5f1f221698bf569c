"""The file timer passes WatchdogContract."""

import pytest
from elastic_testing import WatchdogContract, installed_watchdog

pytestmark = pytest.mark.integration


class TestFileTimer(WatchdogContract):
    """With limits for a slow machine; the tests of the server show that its interval does not delay expiries."""

    punctual = 20.0
    stops_in = 20.0

    @pytest.fixture
    def watchdog(self):
        watchdog = installed_watchdog("file", self.run_id)
        yield watchdog
        watchdog.stop()
