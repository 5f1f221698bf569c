"""A worker that waits, and stops at once when told to: Python leaves SIGTERM to the kernel unless a script asks."""

import time

time.sleep(1000)
