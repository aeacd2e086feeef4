"""What several files of tests share. tests/conftest.py puts its folder on the path: `from helpers.runs import tiny`."""
