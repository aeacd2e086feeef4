"""A command that exits when its parent does."""

import os
import select
import signal
import subprocess
import sys

# A command that takes long, and a driver that starts it and is then idle.
COMMAND = (
    "import time; from jarilab.cli import supervised_child as child; child.main = lambda: time.sleep(600); child.run()"
)
DRIVER = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {COMMAND!r}], stdin=subprocess.PIPE, start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_it_exits_however_its_parent_ends():
    with subprocess.Popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE) as driver:
        command = int(driver.stdout.readline())
        driver.kill()
        # The command writes into the same pipe, which ends when both are gone.
        ended, _, _ = select.select([driver.stdout], [], [], 60)
        if not ended:
            os.kill(command, signal.SIGKILL)
        assert ended, "it outlived its driver"
        assert driver.stdout.read() == b""
