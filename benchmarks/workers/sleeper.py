"""A worker that sleeps and dies immediately on SIGTERM, because Python installs no handler for it by default."""

import time

time.sleep(1000)
