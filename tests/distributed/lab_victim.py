"""Makes a lab, starts processes that would run for ever, leaves, and does it again: to be killed at any moment.

`lab_victim.py fork` stays in its first lab, with a forked child that has all its open files; it prints the child's pid.
"""

from __future__ import annotations

import os
import sys
import time

import lab_light  # noqa: F401 - before terngrad.lab

from terngrad.lab import Lab

if __name__ == "__main__":
    while True:
        with Lab(2, "100mbit") as lab:
            for host in range(2):
                lab.start(host, ["sh", "-c", "sleep 1000 & sleep 1000"])
            if "fork" in sys.argv:
                if child := os.fork():
                    print(child, flush=True)
                time.sleep(1000)
            time.sleep(0.2)
