"""Plant faults in a copy of the sources, one at a time, and see whether the nearest quick tests catch them.

`make planted` plants them all. `make planted ONLY=positions` plants those of one room. Each fault is a mistake that a
colleague could make: off by one, a wrong axis or sign, a mask that is dropped, a check that is missing.

The exit code is 0 if at least `REQUIRED` of all faults are caught. It is 2 if a fault cannot be planted (its text is
not in the file, or there more than once) or if a test fails without any fault: then correct the list below.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
REQUIRED = 0.95
"""The share of faults that the tests must catch."""
SECONDS = 300
"""Time limit for the tests of one fault."""
QUICK = "not slow and not long and not browser"


@dataclass(frozen=True)
class Fault:
    """A mistake: the text to replace in one file, what replaces it, and the tests that should fail then.

    file: below src/jarilab. tests: below tests/unit, files or folders.
    """

    file: str
    correct: str
    wrong: str
    tests: tuple[str, ...]

    @property
    def room(self) -> str:
        return self.file.partition("/")[0]

    @property
    def label(self) -> str:
        return f"{self.file}: {self.correct.strip()!r} -> {self.wrong.strip()!r}"

    def problem(self) -> str | None:
        """Why it cannot be planted or no test can catch it; None if all is well."""
        path = ROOT / "src" / "jarilab" / self.file
        if not path.is_file():
            return f"src/jarilab/{self.file} does not exist"
        count = path.read_text(encoding="utf-8").count(self.correct)
        if count != 1:
            return f"src/jarilab/{self.file} has {self.correct!r} {count} times, expected once"
        missing = [name for name in self.tests if not (ROOT / "tests" / name).exists()]
        return f"tests/{missing[0]} does not exist" if missing else None


FAULTS = [
    # Positions
    Fault(
        "positions/masks.py",
        "k_order[k]).abs() < window",
        "k_order[k]).abs() <= window",
        ("unit/positions/test_masks.py",),
    ),
    Fault(
        "positions/coordinates.py",
        "keep_BL.long().cumsum(-1) - 1",
        "keep_BL.long().cumsum(-1)",
        ("unit/positions/test_positions.py",),
    ),
    Fault(
        "positions/patches.py",
        "permute(0, 2, 4, 1, 3, 5)",
        "permute(0, 2, 4, 1, 5, 3)",
        ("unit/positions/test_patches.py",),
    ),
    Fault(
        "positions/boxes.py", "(around - union) / around", "(around - union) / union", ("unit/positions/test_boxes.py",)
    ),
    # Encodings
    Fault(
        "encodings/rotary/rotary.py",
        "base, 2 / rotated, device",
        "base, 1 / rotated, device",
        ("unit/encodings/test_rotaries.py",),
    ),
    Fault(
        "encodings/bias/alibi.py",
        "2 ** (-8 * (h + 1) / below)",
        "2 ** (-8 * h / below)",
        ("unit/encodings/test_biases.py", "unit/encodings/test_traps.py"),
    ),
    Fault(
        "encodings/bias/t5.py",
        "(ahead > 0).long() * buckets",
        "(ahead >= 0).long() * buckets",
        ("unit/encodings/test_biases.py", "unit/encodings/test_traps.py"),
    ),
    Fault(
        "encodings/skew.py",
        "(queries * distances, distances - 1, 1)",
        "(queries * distances, distances, 1)",
        ("unit/encodings/test_hooks.py",),
    ),
    # Layers
    Fault("nn/loss.py", "(smoothing - 1) * share_R1", "-share_R1", ("unit/nn",)),
    Fault("nn/init.py", "std=value[0].numel() ** -0.5", "std=value.shape[0] ** -0.5", ("unit/nn/test_init.py",)),
    # Attention
    Fault(
        "attention/geometry.py",
        "if mask.plain_causal and q_pos is k_pos:",
        "if mask.plain_causal:",
        ("unit/attention/test_module.py",),
    ),
    Fault(
        "attention/cache.py",
        "self.positions = positions_of(self.positions, rows)",
        "self.positions = self.positions",
        ("unit/attention",),
    ),
    Fault(
        "attention/cpu/short_sequences.py",
        "scores_QKN.softmax(1)",
        "scores_QKN.softmax(0)",
        ("unit/attention/test_short.py",),
    ),
    # Models
    Fault(
        "models/decoding/beam_search.py", "(enough_B & behind_B)", "enough_B", ("unit/models/decoding/test_search.py",)
    ),
    Fault(
        "models/decoding/sample.py", "cumsum(-1) <= 1 - p", "cumsum(-1) <= p", ("unit/models/decoding/test_sample.py",)
    ),
    Fault(
        "models/vision.py",
        'first = 1 if answer_only and self.pool == "class" else None',
        "first = 1 if answer_only else None",
        ("unit/models/test_vision.py",),
    ),
    # Looking inside
    Fault(
        "inspect/measure/rollout.py",
        "mixed_QK.sum(-1, keepdim=True)) @ rolled_QK",
        "mixed_QK.sum(-2, keepdim=True)) @ rolled_QK",
        ("unit/inspect/test_rollout.py",),
    ),
    Fault(
        "inspect/measure/measures.py",
        "_mean(entropy_HQ / largest_Q, map.count > 1)",
        "_mean(entropy_HQ / largest_Q, map.count > 0)",
        ("unit/inspect/test_measures.py",),
    ),
    Fault(
        "inspect/record/trust.py",
        "largest(sums - expected)",
        "0.0 * largest(sums - expected)",
        ("unit/inspect/test_capture.py",),
    ),
    Fault(
        "inspect/intervene/erasure.py",
        "sum(changes[1:]) / draws",
        "sum(changes) / draws",
        ("unit/inspect/test_interventions.py",),
    ),
    # Laws
    Fault(
        "laws/computing_laws.py",
        "if (output_BHQE * without_key).any():",
        "if (output_BHQE * without_key).isnan().any():",
        ("laws",),
    ),
    # Hugging Face
    Fault(
        "huggingface/families.py",
        "weight.t().chunk(3)[number]",
        "weight.t().chunk(3)[2 - number]",
        ("unit/huggingface",),
    ),
    # Data
    Fault(
        "data/images/augment.py",
        "(side_B11 < 1, to_cxcywh(inside_BM4), boxes_BM4)",
        "(side_B11 < 1, to_cxcywh(whole_BM4), boxes_BM4)",
        ("unit/data/images/test_augment.py",),
    ),
    Fault(
        "data/images/resize.py",
        "scale = min(outer[0] / height, outer[1] / width)",
        "scale = max(outer[0] / height, outer[1] / width)",
        ("unit/data/images/test_files.py",),
    ),
    Fault(
        "data/text/pieces.py",
        'if kind == "characters" and any(len(piece) != 1',
        'if kind == "characters" and any(len(piece) > 2',
        ("unit/data/text/test_tokenizers.py",),
    ),
    # Tasks
    Fault(
        "tasks/detection_metrics.py",
        "torch.tensor([width, height, width, height])",
        "torch.tensor([height, width, height, width])",
        ("unit/tasks/test_detection.py",),
    ),
    Fault(
        "tasks/policies/randomized.py",
        ">= counts_P.cpu().unsqueeze(1)",
        "> counts_P.cpu().unsqueeze(1)",
        ("unit/tasks/policies",),
    ),
    # Runs and storage
    Fault("core/storage/files.py", "value, allow_nan=False).encode()", "x", ("unit/runs",)),
    Fault(
        "core/registry.py",
        "if paths and not allowed:",
        "if paths and allowed is None:",
        ("unit/core/test_registry.py",),
    ),
    Fault("runs/checkpoint.py", "if step_of(path) <= step][KEPT:]", "][KEPT:]", ("unit/runs/test_checkpoint.py",)),
    # Training
    Fault("training/options.py", "left / falling", "left / steps", ("unit/training",)),
    # Pages
    Fault("pages/kit/png.py", "zlib.crc32(checked)", "zlib.crc32(data)", ("unit/pages",)),
    Fault("pages/kit/page.py", '.replace("<", r"\\u003c")', "", ("unit/pages",)),
    # Comparison
    Fault(
        "comparison/pairs.py",
        "tukey_quantile(encodings, seeds - 1)",
        "tukey_quantile(encodings, seeds)",
        ("unit/comparison/test_pairs.py",),
    ),
    Fault(
        "comparison/verdicts.py",
        "found.first if metric.better(found.difference, 0.0) else found.second",
        "found.first if found.difference > 0 else found.second",
        ("unit/comparison/test_verdicts.py",),
    ),
    # Explorer
    Fault("explorer/lru.py", "held.popitem(last=False)", "held.popitem()", ("unit/explorer",)),
    # Export
    Fault(
        "export/positions.py", "real * cosine - imaginary * sine", "real * cosine + imaginary * sine", ("unit/export",)
    ),
    # Serving
    Fault("serving/guard.py", "if origin is not None and", "if origin is None and", ("unit/serving/test_guard.py",)),
    Fault("serving/batches.py", "job.options == first.options and len", "len", ("unit/serving/test_batches.py",)),
    # Command line
    Fault("cli/__init__.py", "return 128 + number", "return 1", ("unit/cli",)),
]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Plant faults and run the nearest tests.")
    parser.add_argument("--only", default="", help="plant the faults whose file contains this")
    parser.add_argument("--jobs", type=int, default=2, help="faults at a time (default: 2)")
    parser.add_argument("--list", action="store_true", help="list the faults, and check that they can be planted")
    options = parser.parse_args(words)
    faults = [fault for fault in FAULTS if options.only in fault.file]
    problems = [problem for fault in faults if (problem := fault.problem())]
    for problem in problems:
        print(f"NOT PLANTED: {problem}; correct tests/planted.py", file=sys.stderr)
    if options.list:
        print("\n".join(fault.label for fault in faults))
    if problems or options.list:
        return 2 if problems else 0
    names = sorted({name for fault in faults for name in fault.tests})
    print(f"the tests without any fault: {len(names)} files or folders", flush=True)
    code, output = run(ROOT / "src", names)
    if code:
        print(f"{output}\nNOT PLANTED: these tests fail without any fault; repair them first", file=sys.stderr)
        return 2
    with ThreadPoolExecutor(options.jobs) as pool:
        codes = list(pool.map(tried, faults))
    caught = codes.count(1)
    broken = [fault for fault, code in zip(faults, codes, strict=True) if code not in (0, 1)]
    for fault in broken:
        print(f"NOT DECIDED: {fault.label}: its tests did not run; correct tests/planted.py", file=sys.stderr)
    print(f"caught {caught} of {len(faults)}; expected {REQUIRED:.0%} or more")
    if broken:
        return 2
    return 0 if caught >= REQUIRED * len(faults) else 1


def tried(fault: Fault) -> int:
    """Plant one fault in a copy of the sources; returns pytest's exit code: 1 if a test failed, 0 if none did."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        sources = Path(shutil.copytree(ROOT / "src", Path(folder) / "src"))
        path = sources / "jarilab" / fault.file
        path.write_text(path.read_text(encoding="utf-8").replace(fault.correct, fault.wrong), encoding="utf-8")
        code, output = run(sources, fault.tests, "--exitfirst")
    word = {0: "MISSED", 1: "caught"}.get(code, f"pytest ended with {code}")
    print(f"{word}  {time.monotonic() - begun:4.0f} s  {fault.label}", flush=True)
    if code not in (0, 1):
        print(output, file=sys.stderr)
    return code


def run(sources: Path, tests: Sequence[str], *options: str) -> tuple[int, str]:
    """Run quick tests with the package from `sources`; returns pytest's exit code and the end of its output."""
    environment = {**os.environ, "PYTHONPATH": str(sources), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "--quiet", "-m", QUICK, "-p", "no:cacheprovider", *options]
    command += [f"tests/{name}" for name in tests]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:  # an endless loop is a fault that everybody notices
        return 1, f"no answer within {SECONDS} seconds"
    return done.returncode, done.stdout[-3000:] + done.stderr[-1000:]


if __name__ == "__main__":
    sys.exit(main())
