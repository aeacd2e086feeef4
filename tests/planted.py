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
PACKAGE = ROOT / "src" / "jarilab"
REQUIRED = 0.95
"""The share of faults that the tests must catch."""
SECONDS = 300
"""Time limit for the tests of one fault."""
QUICK = "not slow and not long and not browser"


@dataclass(frozen=True)
class Fault:
    """A mistake: a text of the sources, what replaces it, and the tests that should fail then.

    folder: below src/jarilab; one module in it has the text, once. tests: below tests, a file or a folder.
    """

    folder: str
    correct: str
    wrong: str
    tests: str

    def modules(self) -> list[Path]:
        """The modules that have the text, as often as they have it."""
        modules: list[Path] = []
        for path in sorted((PACKAGE / self.folder).rglob("*.py")):
            modules += [path] * path.read_text(encoding="utf-8").count(self.correct)
        return modules

    @property
    def label(self) -> str:
        return f"{self.folder}: {self.correct!r} -> {self.wrong!r}"

    def problem(self) -> str | None:
        """Why it cannot be planted, or no test could catch it; None if all is well."""
        count = len(self.modules())
        if count != 1:
            return f"src/jarilab/{self.folder} has {self.correct!r} {count} times, expected once"
        return None if (ROOT / "tests" / self.tests).exists() else f"tests/{self.tests} does not exist"


FAULTS = [
    # Positions
    Fault("positions", "k_order[k]).abs() < window", "k_order[k]).abs() <= window", "unit/positions/test_masks.py"),
    Fault(
        "positions", "keep_BL.long().cumsum(-1) - 1", "keep_BL.long().cumsum(-1)", "unit/positions/test_positions.py"
    ),
    Fault("positions", "permute(0, 2, 4, 1, 3, 5)", "permute(0, 2, 4, 1, 5, 3)", "unit/positions/test_patches.py"),
    Fault("positions", "(around - union) / around", "(around - union) / union", "unit/positions/test_boxes.py"),
    # Encodings
    Fault("encodings", "base, 2 / rotated, device", "base, 1 / rotated, device", "unit/encodings/test_rotaries.py"),
    Fault("encodings", "2 ** (-8 * (h + 1) / below)", "2 ** (-8 * h / below)", "unit/encodings/test_biases.py"),
    Fault(
        "encodings",
        "(ahead > 0).long() * (self.buckets",
        "(ahead >= 0).long() * (self.buckets",
        "unit/encodings/test_traps.py",
    ),
    Fault(
        "encodings",
        "(queries * distances, distances - 1, 1)",
        "(queries * distances, distances, 1)",
        "unit/encodings/test_skew.py",
    ),
    # Layers
    Fault("nn", "(smoothing - 1) * share_R1", "-share_R1", "unit/nn/test_loss.py"),
    Fault("nn", "std=value[0].numel() ** -0.5", "std=value.shape[0] ** -0.5", "unit/nn/test_init.py"),
    # Attention
    Fault(
        "attention",
        "if mask.plain_causal and q_pos is k_pos:",
        "if mask.plain_causal:",
        "unit/attention/test_module.py",
    ),
    Fault("attention", "self.positions = self.positions.select_rows(rows)", "pass", "unit/attention/test_cache.py"),
    Fault("attention", "scores_QKN.softmax(1)", "scores_QKN.softmax(0)", "unit/attention/cpu/test_short_sequences.py"),
    # Models
    Fault("models", "(enough_B & behind_B)", "enough_B", "unit/models/decoding/test_search.py"),
    Fault("models", "cumsum(-1) <= 1 - p", "cumsum(-1) <= p", "unit/models/decoding/test_sample.py"),
    Fault(
        "models",
        'first = 1 if answer_only and self.pool == "class" else None',
        "first = 1 if answer_only else None",
        "unit/models/test_vision.py",
    ),
    # Looking inside
    Fault(
        "inspect",
        "mixed_QK.sum(-1, keepdim=True)",
        "mixed_QK.sum(-2, keepdim=True)",
        "unit/inspect/measure/test_maps.py",
    ),
    Fault(
        "inspect",
        "entropy_HQ / largest_Q, map.count > 1",
        "entropy_HQ / largest_Q, map.count > 0",
        "unit/inspect/measure/test_measures.py",
    ),
    Fault(
        "inspect", "expected = allowed.any(-1).expand_as(sums).to(sums)", "pass", "unit/inspect/record/test_capture.py"
    ),
    Fault(
        "inspect", "sum(changes[1:]) / draws", "sum(changes) / draws", "unit/inspect/intervene/test_interventions.py"
    ),
    # Laws
    Fault(
        "laws",
        "if (output_BHQE * without_key).any():",
        "if (output_BHQE * without_key).isnan().any():",
        "laws/test_broken.py",
    ),
    # Hugging Face
    Fault(
        "huggingface",
        "weight.t().chunk(3)[number]",
        "weight.t().chunk(3)[2 - number]",
        "unit/huggingface/test_whole_models.py",
    ),
    # Data
    Fault(
        "data",
        "(side_B11 < 1, to_cxcywh(inside_BM4), boxes_BM4)",
        "(side_B11 < 1, to_cxcywh(whole_BM4), boxes_BM4)",
        "unit/data/images/test_augment.py",
    ),
    Fault(
        "data",
        "scale = min(outer[0] / height, outer[1] / width)",
        "scale = max(outer[0] / height, outer[1] / width)",
        "unit/data/images/test_resize.py",
    ),
    Fault("data", "any(len(piece) != 1 for", "any(len(piece) > 2 for", "unit/data/text/test_tokenizers.py"),
    # Tasks
    Fault(
        "tasks",
        "cost_SBNM -= COST_GIOU * giou_SBNM",
        "cost_SBNM += COST_GIOU * giou_SBNM",
        "unit/tasks/test_detection.py",
    ),
    Fault(
        "tasks", ">= counts_P.cpu().unsqueeze(1)", "> counts_P.cpu().unsqueeze(1)", "unit/tasks/policies/test_places.py"
    ),
    # Runs and storage
    Fault("core", "if paths and not allowed:", "if paths and allowed is None:", "unit/core/test_registry.py"),
    Fault("runs", " if step_of(path) <= step]", "]", "unit/runs/test_checkpoint.py"),
    Fault("runs", "missing = row_number - last_number - 1 - damaged", "missing = 0", "unit/runs/test_metrics_log.py"),
    # Training
    Fault("runs", "* remaining_steps / decay_steps", "* remaining_steps / steps", "unit/training/test_experiments.py"),
    Fault(
        "training",
        '{"params": rest, "weight_decay": 0.0}',
        '{"params": rest, "weight_decay": decay}',
        "unit/training/test_experiments.py",
    ),
    # Pages
    Fault("pages", "zlib.crc32(checked)", "zlib.crc32(data)", "unit/pages/kit/test_png.py"),
    Fault("pages", '.replace("<", r"\\u003c")', "", "unit/pages/kit/test_page.py"),
    # Comparison
    Fault(
        "comparison",
        "GAP_FACTOR * gap",
        "0 * gap",
        "unit/comparison/test_pairs.py",
    ),
    Fault(
        "comparison",
        "metric.better(difference.difference, 0.0)",
        "difference.difference > 0",
        "unit/comparison/test_verdicts.py",
    ),
    # Explorer
    Fault("explorer", "self.popitem(last=False)", "self.popitem()", "unit/explorer/test_lru.py"),
    # Export
    Fault(
        "export",
        "real * cosine - imaginary * sine",
        "real * cosine + imaginary * sine",
        "unit/export/test_ctranslate2.py",
    ),
    # Serving
    Fault("serving", "if origin is not None and", "if origin is None and", "unit/serving/test_guard.py"),
    Fault("serving", "job.options == first.options and len", "len", "unit/serving/test_batches.py"),
    # Command line
    Fault("cli", "return 128 + number", "return 1", "unit/cli/test_exit_codes.py"),
]
"""The list. A folder stands for the modules in it, so that a fault moves with its code."""


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Plant faults and run the nearest tests.")
    parser.add_argument("--only", default="", help="plant the faults of folders whose name contains this")
    parser.add_argument("--jobs", type=int, default=2, help="faults at a time (default: 2)")
    parser.add_argument("--list", action="store_true", help="list the faults, and check that they can be planted")
    options = parser.parse_args(words)
    faults = [fault for fault in FAULTS if options.only in fault.folder]
    problems = [problem for fault in faults if (problem := fault.problem())]
    for problem in problems:
        print(f"NOT PLANTED: {problem}; correct tests/planted.py", file=sys.stderr)
    if options.list:
        print("\n".join(fault.label for fault in faults))
    if problems or options.list:
        return 2 if problems else 0
    names = sorted({fault.tests for fault in faults})
    print(f"the tests without any fault: {len(names)} files or folders", flush=True)
    code, output = run(ROOT / "src", names, f"--numprocesses={options.jobs}", "--dist=loadfile", seconds=3600)
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
        (module,) = fault.modules()
        path = sources / module.relative_to(ROOT / "src")
        path.write_text(path.read_text(encoding="utf-8").replace(fault.correct, fault.wrong), encoding="utf-8")
        code, output = run(sources, [fault.tests], "--exitfirst")
    word = {0: "MISSED", 1: "caught"}.get(code, f"pytest ended with {code}")
    print(f"{word}  {time.monotonic() - begun:4.0f} s  {fault.label}", flush=True)
    if code not in (0, 1):
        print(output, file=sys.stderr)
    return code


def run(sources: Path, tests: Sequence[str], *options: str, seconds: int = SECONDS) -> tuple[int, str]:
    """Run quick tests with the package from `sources`; returns pytest's exit code and the end of its output."""
    environment = {**os.environ, "PYTHONPATH": str(sources), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "--quiet", "-m", QUICK, "-p", "no:cacheprovider", *options]
    command += [f"tests/{name}" for name in tests]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:  # an endless loop is a fault that everybody notices
        return 1, f"no answer within {seconds} seconds"
    return done.returncode, done.stdout[-3000:] + done.stderr[-1000:]


if __name__ == "__main__":
    sys.exit(main())
