"""Hostile bytes for every reader of files, guided by what code they reach (atheris).

    make fuzz SECONDS=60 [TARGET=run]     python -m fuzz --seconds 60 [--target run], from tests/

`targets.py` has a line for each reader; `corpus/` the inputs that each begins with, which `make test` runs once. What
is found lies in the folder that the failure names: put it into the corpus, and mend the reader.
"""
