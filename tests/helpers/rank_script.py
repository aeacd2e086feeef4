"""What each process of `test_ranks.py` does: one training after the other, as a file of JSON says.

A case: settings, options of `api.train`, and what happens at a step: {"step": 3, "rank": 1, "what": "signal"}.
"""

import json
import os
import signal
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path

from torch import distributed

from jarilab import api
from jarilab.core.errors import UserError
from jarilab.runs.signals import Interrupted
from jarilab.training.distributed.world import init_process_group
from jarilab.training.step import Steps

STARTED_AGAIN = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def happens(event):
    """Make something happen to this process just before a step."""
    take = Steps.take

    def taken(self, run, step, **keywords):
        concerned = event.get("rank") in (None, self.world.rank)
        if event and concerned and step == event["step"]:
            if event["what"] == "signal":
                os.kill(os.getpid(), signal.SIGTERM)
            elif event["what"] == "death":
                if not STARTED_AGAIN:
                    os.kill(os.getpid(), signal.SIGKILL)
            else:
                time.sleep(8)
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


def fork_ranks(count):
    """This process is rank 0 of so many, all begun here: where it is not torchrun that is tested, and starting Python
    and PyTorch so often takes longest. Gives those whose end is waited for."""
    import torch._dynamo  # noqa: F401 - which each optimizer would import anew

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"RANK": "0", "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    children = []
    for rank in range(1, count):
        child = os.fork()
        if not child:
            os.environ["RANK"] = str(rank)
            return []
        children.append(child)
    return children


def main():
    children = fork_ranks(int(sys.argv[2])) if len(sys.argv) > 2 else []
    init_process_group("gloo", timedelta(seconds=float(os.environ["JARILAB_RANK_TIMEOUT"])))
    folder = Path(sys.argv[1])
    path = folder / f"told-{os.environ['RANK']}.json"
    cases = json.loads((folder / "cases.json").read_text())
    told = {}
    if STARTED_AGAIN:
        deaths = [number for number, case in enumerate(cases) if case.get("event", {}).get("what") == "death"]
        cases = cases[deaths[0] :]
        if path.exists():  # not of the rank that died in its first case
            told = json.loads(path.read_text())
    for case in cases:
        if case.get("event", {}).get("what") == "hang":
            distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=3), None)
        name = case["name"] + " again" * STARTED_AGAIN
        told[name] = run(case, folder)
        path.write_text(json.dumps(told))
        if "waits in vain" in told[name]:  # there is nobody left
            break
    for child in children:
        os.waitpid(child, 0)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
