"""The faults, and how often each is drawn. A new one is a line here."""

from __future__ import annotations

from typing import NamedTuple

from drills import damage, faults, study
from drills.damage import harmed
from drills.faults import Fault, at_operations


class Entry(NamedTuple):
    """weight: how often, beside the others. disk: whether it takes a small disk. real: whether it is always the real
    command, which takes half a minute: these are for `make chaos` alone."""

    fault: Fault
    weight: float = 1.0
    disk: bool = False
    real: bool = False


FAULTS = {
    "killed at random": Entry(faults.killed_at_random, 6),
    "killed at an operation": Entry(at_operations("kill"), 6),
    "killed while writing": Entry(at_operations("torn"), 3),
    "power cut": Entry(at_operations("power"), 3),
    "told to end": Entry(faults.told_to_end, 2),
    "told to end at an operation": Entry(at_operations("term"), 2),
    "stopped for a while": Entry(faults.stopped_for_a_while),
    "two at once": Entry(faults.two_at_once),
    "operation refused": Entry(faults.refused_operations, 3),
    "full disk": Entry(faults.full_disk, disk=True),
    "no inodes": Entry(faults.no_inodes, disk=True),
    "read-only disk": Entry(faults.read_only, disk=True),
    "changed settings": Entry(faults.changed_settings),
    "changed data": Entry(faults.changed_data),
    "data changed meanwhile": Entry(faults.changed_meanwhile),
    "jumping clock": Entry(faults.jumping_clock),
    "flipped bit": Entry(harmed(damage.flip), 2),
    "flipped bit of a finished run": Entry(damage.flipped_when_finished),
    "truncated file": Entry(harmed(damage.truncate)),
    "zeroed file": Entry(harmed(damage.zero)),
    "pipe in place of a file": Entry(harmed(damage.pipe)),
    "files swapped between checkpoints": Entry(harmed(damage.swap)),
    "checkpoint of another run": Entry(harmed(damage.of_another_run)),
    "driver of a comparison killed": Entry(study.driver_killed, 0.3, real=True),
}
