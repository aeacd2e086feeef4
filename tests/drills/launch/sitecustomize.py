"""Found by Python at its start where a drill put this folder on the path: arms what the drill planned."""

import json
import os
import sys
from pathlib import Path

if "JARI_DRILL" in os.environ:
    sys.path.insert(1, str(Path(__file__).parents[2]))
    from drills.points import Plan, arm

    arm(Plan(**json.loads(os.environ["JARI_DRILL"])))
