# SPDX-License-Identifier: MIT
"""For python's prompt: a thread that counts."""
import threading
import time

n = 0


def count():
    """Ten times a second."""
    global n
    while True:
        n += 1
        time.sleep(0.1)


threading.Thread(target=count, daemon=True).start()
