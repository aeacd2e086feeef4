"""Two processes that train one model, beside one that trains it alone: tokens a second.

    python benchmarks/ranks.py                  torchrun --nproc-per-node 2, one thread each, against one thread
    python benchmarks/ranks.py --shard          cut into parts (FSDP2) instead of a copy on each (DDP)

Whole commands, one after the other in turns, alone 2 2 alone ...; of each the seconds between two points of its curve,
so that the start of processes is not counted. The same batches whatever the number of processes; gloo on one machine.
Wall time: two processes are for those who wait.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import timing

SETTINGS = {
    "model.d_model": 256,
    "model.n_encoder_layers": 3,
    "model.n_decoder_layers": 3,
    "training.batch_size": 512,
    "training.evaluations": 1,
    "training.evaluation_examples": 8,
}
TOKENS = 17
"""Of an example of arithmetic, source and target together, on average."""


def seconds_a_step(folder: Path, ranks: int, steps: int, shard: bool) -> float:
    """Of a training of so many processes, without its first steps."""
    module = ["-m", "jarilab", "train", "arithmetic", "--out", str(folder), "--threads", "1", "--precision", "float32"]
    if ranks > 1:
        launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone"]
        module = [*launch, *module, *(["--shard"] if shard else [])]
    settings = {**SETTINGS, "training.examples": 512 * steps}
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    subprocess.run([sys.executable, *module, *words], check=True, capture_output=True)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    timed = [(row["step"], row["seconds"]) for row in rows if "seconds" in row]
    (first, begin), (last, end) = timed[0], timed[-1]
    return (end - begin) / (last - first)


def main() -> None:
    parser = timing.arguments(__doc__, rounds=3)
    parser.add_argument("--shard", action="store_true", help="cut the model into parts")
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args()
    times: timing.Times = {"alone": [], "two": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.rounds):
            for name in list(times)[:: -1 if number % 2 else 1]:
                ranks = 2 if name == "two" else 1
                out = Path(folder) / f"{name}-{number}"
                times[name].append(seconds_a_step(out, ranks, given.steps, given.shard))
    table = timing.Table(given.json)
    for name in times:
        table.add(
            processes=name,
            tokens_a_second=round(512 * TOKENS / (timing.milliseconds(times, name) / 1000)),
            over_one=timing.ratio(times, "alone", name),
        )
    table.close()


if __name__ == "__main__":
    main()
