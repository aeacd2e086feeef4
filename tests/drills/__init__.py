"""Drills: a run is trained by the real command while things happen to it, and must end as the undisturbed one did.

    make chaos MINUTES=5 SEED=1           python -m drills --minutes 5 --seed 1, from tests/
    make chaos SEED=1 ONLY=17             the drill that a failure names

A drill is a family (`families.py`) under a fault (`faults.py`), both drawn from the seed. What is promised stands in
`promises.py`; how a process is started and ended, in `processes.py`; what happens inside it, in `points.py`.
"""
