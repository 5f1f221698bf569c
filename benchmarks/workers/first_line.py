# ruff: noqa: E402
import time

AT = time.clock_gettime(time.CLOCK_BOOTTIME)

import json
import os

import torch  # noqa: F401 - gives the template a realistic size

os.write(1, (json.dumps({"first_line": AT, "pid": os.getpid()}) + "\n").encode())
time.sleep(1000)
