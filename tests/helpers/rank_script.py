"""What each process of `test_ranks.py` does: one training after the other, as a file of JSON says.

A case: settings, options of `api.train`, and what happens at a step: {"step": 3, "rank": 1, "what": "signal"}.
"""

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

from torch import distributed

from jarilab import api
from jarilab.errors import UserError
from jarilab.runs.signals import Interrupted
from jarilab.training.step import Steps


def happens(event):
    """Make something happen to this process just before a step."""
    take = Steps.take

    def taken(self, run, step, **keywords):
        concerned = event.get("rank") in (None, self.world.rank)
        if event and concerned and step == event["step"]:
            if event["what"] == "signal":
                os.kill(os.getpid(), signal.SIGTERM)
            elif event["what"] == "death":
                os._exit(9)
            else:
                time.sleep(15)
        return take(self, run, step, **keywords)

    Steps.take = taken
    return take


def run(case, folder):
    rank = int(os.environ["RANK"])
    own = case.get("of_rank", {}).get(str(rank), {})
    options = {"threads": 1, "precision": "float32", "device": "cpu", **case.get("options", {}), **own}
    take = happens(case.get("event", {}))
    try:
        api.train(case["task"], folder / case["name"], settings=case["settings"], **options)
        return "done"
    except UserError as error:
        return str(error)
    except Interrupted as stopped:
        return f"signal {stopped.number}"
    finally:
        Steps.take = take


def main():
    distributed.init_process_group("gloo", timeout=timedelta(seconds=float(os.environ["JARILAB_RANK_TIMEOUT"])))
    folder = Path(sys.argv[1])
    rank = os.environ["RANK"]
    told = {}
    for case in json.loads((folder / "cases.json").read_text()):
        told[case["name"]] = run(case, folder)
        (folder / f"told-{rank}.json").write_text(json.dumps(told))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
