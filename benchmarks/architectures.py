"""Measure what `jarilab.record` records of many architectures with random weights: one row for each.

Each model runs one forward in eval mode, plain and recorded. A row has the maps on the tape, the largest difference to
the model's own maps (`output_attentions` of eager attention), whether outputs are equal bit for bit, whether the kinds
are those that `architecture_list.py` counts by hand, what is missing, the error of the proof, and the cost.

    python benchmarks/architectures.py                    # all, writes the results to --json
    python benchmarks/architectures.py --only bert gpt2   # prints them
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GROUP, SECONDS = 12, 60
"""Rows of a process, and seconds of a row."""
GAP = 1e-5
"""Largest difference to the model's own map."""
PROOF = 1e-4


class RowTimeoutError(BaseException):
    """A row ran too long. No Exception, so that no model catches it."""


# One row ------------------------------------------------------------------------------------------------------------


def measure_row(family: str, name: str) -> dict[str, Any]:
    """All that is known of one architecture. Never raises: `stage` and `error` say what went wrong."""
    import architecture_models

    row: dict[str, Any] = {"family": family, "name": name, "stage": "build"}
    signal.signal(signal.SIGALRM, _raise_timeout)
    signal.alarm(SECONDS)
    try:
        case = architecture_models.make(family, name)
        row |= {"expected": case.counts, "class": type(case.model).__name__, "remark": case.remark}
        row["parameters"] = sum(parameter.numel() for parameter in case.model.parameters())
        _measure(row, case)
        row["stage"] = "done"
    except (Exception, RowTimeoutError) as error:
        row["error"] = f"{type(error).__name__}: {str(error)[:600]}"
        row["where"] = _origin_of(error)
    finally:
        signal.alarm(0)
    row["problems"] = problems_of(row)
    return row


def _measure(row: dict[str, Any], case: Any) -> None:
    import torch

    import jarilab

    row["stage"] = "plain"
    plain = _forward(case)
    row["deterministic"] = equal(plain, _forward(case))
    row["stage"] = "record"
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        torch.manual_seed(1)
        with torch.no_grad(), jarilab.record(case.model) as tape:
            output = case.call(case.model)
    row["warnings"] = [str(each.message)[:300] for each in messages if "tape." in str(each.message)]
    row["equal"] = equal(plain, output)
    row["stage"] = "read"
    _read(row, case, tape)
    row["stage"] = "own maps"
    _own_maps(row, case, tape, plain)
    row["stage"] = "cost"
    _cost(row, case)


def _forward(case: Any) -> Any:
    import torch

    torch.manual_seed(1)  # some models draw in eval mode
    with torch.no_grad():
        return case.call(case.model)


def _read(row: dict[str, Any], case: Any, tape: Any) -> None:
    """Sites, kinds, layers and proofs of a tape."""
    row["missing"] = list(getattr(tape, "missing", ()))
    row["partial"] = {site: str(what) for site, what in dict(getattr(tape, "partial", {})).items()}
    row["not_attending"] = list(getattr(tape, "not_attending", ()))
    runs = _runs_of(case, {_path_of(tape, name) for name in tape.sites})
    sites, counts, maps = {}, Counter(), 0
    worst = {"rebuild_error": 0.0, "row_sum_error": 0.0, "masked_weight": 0.0}
    for name in tape.sites:
        site, calls, path = tape.site(name), len(tape.calls[name]), _path_of(tape, name)
        # A module that attends in pieces makes several calls a layer.
        layers = runs[path] if runs[path] and calls % runs[path] == 0 else calls
        counts[letter_of(site)] += layers
        shape = list(tape.weights(name, 0).shape)
        maps += calls * shape[1]
        fields = {key: getattr(site, key, None) for key in ("relation", "causal", "note", "queries", "keys")}
        sites[name] = {"kind": site.kind, **fields, "path": path, "calls": calls, "layers": layers, "shape": shape}
        for index in range(calls):
            trust = tape.trust(name, index)
            for key in worst:
                worst[key] = max(worst[key], float(getattr(trust, key)), key=_nan_last)
    if row["not_attending"]:
        counts["n"] = len(row["not_attending"])
    row |= {"sites": sites, "counts": spelled(counts), "maps": maps, "trust": worst}


def _nan_last(value: float) -> float:
    return float("inf") if value != value else value


def _path_of(tape: Any, site: str) -> str:
    path = getattr(tape.site(site), "path", None)
    return tape._calls(site)[0].placed.path if path is None else path


def _runs_of(case: Any, paths: set[str]) -> Counter:
    """How often one forward runs each of these modules."""
    runs: Counter = Counter()
    modules = dict(case.model.named_modules(remove_duplicate=False))
    handles = []
    for path in paths & set(modules):
        handles.append(modules[path].register_forward_pre_hook(lambda *_, path=path: runs.update([path])))
    _forward(case)
    for handle in handles:
        handle.remove()
    return runs


def letter_of(site: Any) -> str:
    """The letter of `architecture_list.py`, or `u` for what the tape does not know."""
    relation = getattr(site, "relation", None) or ("cross" if site.kind == "cross" else "self")
    causal = getattr(site, "causal", site.kind == "decoder")
    if relation == "unknown" or site.kind == "unknown":
        return "u"
    if relation == "cross":
        return "c"
    if causal:
        return "d"
    return "o" if site.kind == "decoder" else "e"


def spelled(counts: Mapping[str, int]) -> str:
    return " ".join(f"{letter}{counts[letter]}" for letter in "edocun" if counts.get(letter))


def counts_of(text: str) -> Counter:
    return Counter({part[0]: int(part[1:]) for part in text.split()})


# The model's own maps -----------------------------------------------------------------------------------------------


def _own_maps(row: dict[str, Any], case: Any, tape: Any, plain: Any) -> None:
    """The largest difference of any map that the model gives to the recorded map of its shape that is nearest."""
    own = []
    try:
        output, own = case.own_maps()
        if own and not _is_close(plain, output):
            row["own_remark"], own = "its eager forward has other outputs", []
    except Exception as error:
        row["own_error"] = f"{type(error).__name__}: {str(error)[:160]}"
    if any(_is_no_map(weights) for weights in own):
        row["own_remark"] = "some of its own maps are scores before the softmax"
        own = [weights for weights in own if not _is_no_map(weights)]
    row["own_maps"] = len(own)
    if not own:
        return
    recorded: dict[tuple[int, ...], list[Any]] = {}
    for name in tape.sites:
        for index in range(len(tape.calls[name])):
            weights = tape.weights(name, index)
            recorded.setdefault(tuple(weights.shape), []).append(weights)
    gaps = []
    for weights in own:
        rivals = recorded.get(tuple(weights.shape), [])
        if rivals and weights.ndim == 4 and weights.shape[1] > 1 and bool((weights == weights[:, :1]).all()):
            row["own_remark"] = "its own maps are means over heads"
            rivals = [rival.mean(1, keepdim=True).expand_as(rival) for rival in rivals]
        if rivals:
            gaps.append(min(float((weights.float() - rival.float()).abs().max()) for rival in rivals))
    row["own_compared"] = len(gaps)
    if gaps:
        row["gap"] = max(gaps, key=_nan_last)
    row["own_shapes"] = sorted({str(tuple(each.shape)) for each in own})[:4]


def _is_no_map(weights: Any) -> bool:
    """Whether a map that a model gives has negative weights, as scores do."""
    return bool((weights < 0).any())


def _is_close(x: Any, y: Any) -> bool:
    """Whether the first tensors of two outputs agree."""
    first, second = next(tensors_in(x)), next(tensors_in(y))
    if first.shape != second.shape:
        return False
    return float((first.float() - second.float()).abs().max()) <= 1e-3 * float(first.float().abs().max())


def tensors_in(value: Any) -> Iterator[Any]:
    """All tensors of a nested output, in order."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)
    elif hasattr(value, "__dict__") and not callable(value):
        for each in vars(value).values():
            if isinstance(each, torch.Tensor | list | tuple | Mapping):
                yield from tensors_in(each)


def equal(x: Any, y: Any) -> bool:
    import torch

    pairs = list(zip(tensors_in(x), tensors_in(y), strict=True))
    return bool(pairs) and all(
        a.shape == b.shape and a.dtype == b.dtype and bool(torch.equal(a.nan_to_num(), b.nan_to_num()))
        for a, b in pairs
    )


def _cost(row: dict[str, Any], case: Any, rounds: int = 5) -> None:
    import torch

    import jarilab

    plain, recorded = [], []
    for _ in range(rounds):
        start = time.perf_counter()
        _forward(case)
        middle = time.perf_counter()
        with torch.no_grad(), warnings.catch_warnings(), jarilab.record(case.model):
            warnings.simplefilter("ignore")
            case.call(case.model)
        plain.append(middle - start)
        recorded.append(time.perf_counter() - middle)
    row["ms"] = round(1000 * min(plain), 2)
    row["cost"] = round(min(recorded) / min(plain), 3)


def _origin_of(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"


def _raise_timeout(*_: Any) -> None:
    raise RowTimeoutError(f"ran longer than {SECONDS} s")


# What is wrong with a row -------------------------------------------------------------------------------------------


def problems_of(row: Mapping[str, Any]) -> dict[str, str]:
    """By group, what is wrong: nothing for a row that is right."""
    if row["stage"] in ("build", "plain"):
        return {"not built": f"{row['stage']}: {row.get('error', '')}"}
    if row["stage"] == "record":
        if "nothing was recorded" in row.get("error", ""):
            attends = set(counts_of(row["expected"])) != {"n"}
            return {"not recorded": row["error"]} if attends else {}
        return {"raises": f"{row.get('error', '')} ({row.get('where')})"}
    if row["stage"] != "done":
        return {"raises": f"{row['stage']}: {row.get('error', '')} ({row.get('where')})"}
    problems = dict(_count_problems(row))
    if row.get("gap", 0.0) > GAP or row.get("gap", 0.0) != row.get("gap", 0.0):
        problems["map differs from eager"] = f"by {row['gap']:.1e}"
    if row["deterministic"] and not row["equal"]:
        problems["output changed"] = "outputs of the recorded forward differ"
    for key, error in row["trust"].items():
        if not error <= PROOF:
            problems["proof fails"] = f"{key} {error:.1e}"
    return problems


def _count_problems(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    expected, counts = counts_of(row["expected"]), counts_of(row["counts"])
    text = f"expected {row['expected']}, got {row['counts']}"
    layers, recorded = (sum(each.values()) - each["n"] for each in (expected, counts))
    said = row["missing"] or row["partial"]
    if recorded < layers:
        yield ("incomplete, said" if said else "incomplete"), f"{text}; missing {row['missing'][:4]}"
    elif recorded > layers:
        yield "too many", text
    elif counts["u"]:
        yield "unknown", text
    elif counts["c"] != expected["c"]:
        yield "wrong relation", text
    elif counts["d"] != expected["d"]:
        yield "wrong causal", text
    elif counts["e"] != expected["e"]:
        yield "wrong sequence", text
    if recorded >= layers and said:
        yield "false warning", f"missing {row['missing'][:4]} {row['partial']}"


# All rows -----------------------------------------------------------------------------------------------------------


def run_rows(family: str, names: list[str], path: list[str]) -> Iterator[dict[str, Any]]:
    """Rows, in processes of their own. A process that dies loses one row."""
    rest = list(names)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    environment["PYTHONPATH"] = os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")])
    while rest:
        group = rest[:GROUP]
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", family, *group]
        done: list[str] = []
        try:
            lines = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=60 + SECONDS * len(group)
            )
            output, problem = lines.stdout, f"exit code {lines.returncode}: {lines.stderr[-300:]}"
        except subprocess.TimeoutExpired as error:
            partial = error.stdout or b""
            output = partial.decode() if isinstance(partial, bytes) else partial
            problem = "the process ran too long"
        for line in output.splitlines():
            if line.startswith('{"family"'):
                row = json.loads(line)
                done.append(row["name"])
                yield row
        rest = [name for name in rest if name not in done]
        if lost := [name for name in group if name not in done]:
            row = {"family": family, "name": lost[0], "stage": "build", "error": problem}
            yield row | {"problems": {"not built": problem}}
            rest.remove(lost[0])


def work(family: str, names: list[str]) -> None:
    """Print a line of JSON for each row."""
    import torch

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name in names:
        print(json.dumps(measure_row(family, name)), flush=True)


def summary(rows: list[dict[str, Any]]) -> str:
    """Failures, one line each, grouped by kind."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        for group, text in row["problems"].items():
            line = f"{row['family']}:{row['name']} ({row.get('class', '?')}): {text}"
            groups.setdefault(group, []).append(line.replace("\n", " "))
    right = sum(not row["problems"] for row in rows)
    lines = [f"{len(rows)} rows, {right} right"]
    for group, members in sorted(groups.items(), key=lambda each: -len(each[1])):
        lines += ["", f"## {group}: {len(members)}", *members]
    return "\n".join(lines)


def main() -> None:
    import architecture_models

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", nargs="*", default=list(architecture_models.families()), help="which families")
    parser.add_argument("--only", nargs="*", help="names of rows")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--path", nargs="*", default=[], help="folders of packages to add")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker[0], arguments.worker[1:])
        return
    rows = []
    for family in arguments.family:
        names = architecture_models.families()[family][0]
        names = [name for name in names if not arguments.only or name in arguments.only]
        for row in run_rows(family, names, arguments.path):
            rows.append(row)
            print(family, row["name"], row["stage"], row.get("counts"), row.get("gap"), row["problems"], flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    print(summary(rows))


if __name__ == "__main__":
    main()
