"""The file timer keeps the contract of watchdogs."""

import pytest
from elastic_testing import WatchdogContract, installed_watchdog

pytestmark = pytest.mark.integration


class TestFileTimer(WatchdogContract):
    """On a slow machine. That it is punctual whatever its interval is, tests of the server alone show."""

    punctual = 20.0
    stops_in = 20.0

    @pytest.fixture
    def watchdog(self):
        watchdog = installed_watchdog("file", self.run_id)
        yield watchdog
        watchdog.stop()
