"""These tests are run by others, each file in a process of its own."""

import os

collect_ignore = [] if "APART" in os.environ else ["test_devices.py"]
