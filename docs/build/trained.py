"""The numbers of lessons that come from the runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

import jarilab
from jarilab.inspect.intervene.effects import ablation
from jarilab.inspect.intervene.interventions import HeadOff, operate
from jarilab.inspect.record.capture import Tape, look_inside
from jarilab.inspect.record.model_io import to_float64
from jarilab.pages.kit.data_blocks import unpacked
from jarilab.runs.loaded import OpenRun
from live import PRONOUNS
from places import CACHE, RUNS
from places import jarilab as command
from planted_heads import ANSWERS, TEXT
from runs import ARITHMETIC

Numbers = dict[str, Any]
LONGEST = 2048
CONTEXT = 64


def opened(name: str) -> OpenRun:
    """A run."""
    return jarilab.load(RUNS / name)


def measured(name: str) -> dict[str, Any]:
    """What a run gives on its held-out data; measured once."""
    path = CACHE / "measured" / f"{name}.json"
    record = (RUNS / name / "run.json").stat().st_mtime
    if not path.exists() or path.stat().st_mtime < record:
        path.parent.mkdir(exist_ok=True)
        path.write_text(command("evaluate", f"runs/{name}", "--threads", "1", "--json"))
    return json.loads(path.read_text())


def taped(run: OpenRun, line: str) -> tuple[Any, Tape]:
    """An input as a run reads it, and all its attentions in float64."""
    trace = run.predictor.trace(line, LONGEST)
    model = run.predictor.traced_model.double()
    tape = look_inside(model, to_float64(trace.inputs))
    run.model.float()
    return trace, tape


def answers(run: OpenRun, lines: Sequence[str]) -> list[str]:
    """What a run says."""
    return [str(one.record()["answer"]) for one in jarilab.predict(run, lines)]


def bag() -> Numbers:
    """With and without positions: how many answers are right, and how far equal digits differ."""
    found: Numbers = {"bag.examples": int(ARITHMETIC[ARITHMETIC.index("--examples") + 1])}
    for name, run in (("none", "add-none"), ("rotary", "add-rotary")):
        metrics = measured(run)
        found[f"bag.{name}"] = 100 * metrics["exact_match"]
        found["bag.ceiling"] = 100 * metrics["ceiling"]["all"]
        _, tape = taped(opened(run), "21+211")
        rows = [tape.weights(site)[0][:, [1, 4, 5]].float() for site in tape.sites_of("encoder")]
        found[f"bag.{name}_rows"] = max(
            float((row[:, :1] - row[:, 1:]).abs().max()) for row in rows
        )
        said = answers(opened(run), ["21+211", "12+112"])
        found[f"bag.{name}_answer"] = said[0]
        found[f"bag.{name}_answers"] = ", ".join(said)
        found[f"bag.{name}_same"] = "the same" if len(set(said)) == 1 else "another"
    return found


def query_key_value() -> Numbers:
    """One score, one row of weights, and one output, from the numbers of a walk."""
    walk = json.loads(command("walk", "runs/add-none", "--input", "12+1", "--json"))
    steps = {step["name"]: step["matrix"] for step in walk["steps"]}
    q, k = steps["Q"][0], steps["K"][2]
    weights, values = steps["weights"][0], steps["V"]
    product = sum(a * b for a, b in zip(q, k, strict=True))
    output = [sum(w * row[i] for w, row in zip(weights, values, strict=True)) for i in range(8)]
    return {
        "qkv.q": q,
        "qkv.k": k,
        "qkv.product": product,
        "qkv.score": steps["scores"][0][2],
        "qkv.off": abs(product / 8**0.5 - steps["scores"][0][2]),
        "qkv.scores": steps["scores"][0],
        "qkv.weights": weights,
        "qkv.sum": sum(weights),
        "qkv.output": output[0],
        "qkv.output_off": abs(output[0] - steps["weights V"][0][0]),
        "qkv.error": walk["error"],
    }


def masks() -> Numbers:
    """Hidden cells, and what a token knows of the future."""
    run = opened("count-rotary")
    trace, tape = taped(run, "four, six, eight, ten")
    length = len(trace.target)
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    hidden = max(float(tape.weights(site)[0][:, later].max()) for site in tape.sites)
    whole, part = (run.predictor.trace(line, LONGEST) for line in ("four, six, nine", "four, six"))
    with torch.no_grad():
        model = run.model.double()
        seen, alone = (model(*to_float64(one.inputs))[0] for one in (whole, part))
    short = len(part.target) - 1
    return {
        "masks.hidden": hidden,
        "masks.first": float(tape.weights(tape.sites[0])[0, 0, 0, 0]),
        "masks.future": float((seen[:short] - alone[:short]).abs().max()),
    }


def seq2seq() -> Numbers:
    """A recurrent model that reverses: where each step of the decoder looks."""
    run = opened("reverse")
    line = "3 1 4 1 5 9"
    trace, tape = taped(run, line)
    site = tape.sites[0]
    weights = tape.weights(site)[0, 0]
    steps = range(len(line.split()))
    mirrored = [float(weights[step, len(steps) - 1 - step]) for step in steps]
    return {
        "seq2seq.exact": 100 * measured("reverse")["exact_match"],
        "seq2seq.answer": str(trace.answer),
        "seq2seq.mirrored": sum(mirrored) / len(mirrored),
        "seq2seq.even": 1 / weights.shape[1],
    }


def _loss(run: OpenRun, length: int, last: int) -> float:
    """Nats per character of the `last` characters of held-out windows of a length."""
    task: Any = run.task
    tokens = task.read((CACHE / "counting.txt").read_text(encoding="utf-8")[-70_000:])
    starts = range(0, 64 * 1024, 1024)
    ids = torch.tensor([tokens[start : start + length + 1] for start in starts])
    with torch.no_grad():
        scores = run.model(ids[:, :-1])
    found = torch.nn.functional.cross_entropy(scores[:, -last:].mT, ids[:, -last:])
    return float(found)


def beyond() -> Numbers:
    """The loss of the last 16 characters of windows as long as trained on, and four times as long."""
    found: Numbers = {}
    for name in ("none", "sinusoidal", "rotary", "alibi"):
        run = opened(f"count-{name}")
        found[f"beyond.{name}"] = _loss(run, CONTEXT, 16)
        found[f"beyond.{name}_far"] = _loss(run, 4 * CONTEXT, 16)
    model = jarilab.LanguageModel(
        12, d_model=16, n_heads=2, n_layers=1, encoding="learned:positions=64"
    )
    try:
        model(torch.ones(1, 65, dtype=torch.long))
        found["beyond.refused"] = "nothing"
    except jarilab.UserError as error:
        found["beyond.refused"] = str(error)
    return found


def language() -> Numbers:
    """Held-out losses with and without positions, of two layers."""
    return {
        f"language.{name}": measured(f"count-{name}")["loss"] for name in ("none", "sinusoidal")
    }


def images() -> Numbers:
    """Which digit a scan shows, with and without places; and patches dealt out anew."""
    found: Numbers = {}
    for name in ("none", "rotary2d"):
        run = opened(f"digits-{name}")
        found[f"images.{name}"] = 100 * measured(f"digits-{name}")["accuracy"]
        trace = run.predictor.trace("#0", LONGEST)
        pixels = trace.inputs[0].pixels.double()
        patch = 2
        cut = pixels.unflatten(-1, (-1, patch)).unflatten(-3, (-1, patch))
        dealt = cut.transpose(-2, -3).flatten(-4, -3)
        dealt = dealt[..., torch.randperm(dealt.shape[-3], generator=_seeded()), :, :]
        dealt = dealt.unflatten(-3, (4, 4)).transpose(-2, -3).flatten(-2).flatten(-3, -2)
        with torch.no_grad():
            model = run.model.double()
            before, after = (model(jarilab.Images(one)) for one in (pixels, dealt))
        found[f"images.{name}_dealt"] = float((before - after).abs().max())
    return found


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def norms() -> Numbers:
    """How long the row of a token is on its way through the encoder: before the first layer, and after the last."""
    run = opened("add-rotary")
    lengths: dict[str, float] = {}

    def note(name: str) -> Any:
        def hook(module: Any, arguments: Any) -> None:
            lengths.setdefault(name, float(arguments[0].norm(dim=-1).mean()))

        return hook

    layers: Any = run.model.get_submodule("encoder.layers")
    handles = [layers[0].register_forward_pre_hook(note("in"))]
    handles.append(run.model.get_submodule("encoder.norm").register_forward_pre_hook(note("out")))
    trace = run.predictor.trace("999-1", LONGEST)
    lengths.clear()
    with torch.no_grad():
        run.model(*trace.inputs)
    for handle in handles:
        handle.remove()
    return {"norms.before": lengths["in"], "norms.after": lengths["out"]}


def break_a_head() -> Numbers:
    """The head that an answer needs most, and the one that it needs least."""
    run = opened("add-rotary")
    trace = run.predictor.trace("21+211", LONGEST)
    rises = ablation(run.model, trace.inputs, trace.written)
    ranked = sorted(
        (float(rise), site, head)
        for site, found in rises.items()
        for head, rise in enumerate(found.tolist())
    )
    lines = [f"{i}+{j}" for i in range(7, 1000, 97) for j in range(3, 1000, 91)]
    right = [str(sum(map(int, line.split("+")))) for line in lines]

    def share(said: list[str]) -> float:
        return 100 * sum(a == b for a, b in zip(said, right, strict=True)) / len(right)

    found: Numbers = {"break.heads": len(ranked), "break.lines": len(lines)}
    found["break.whole"] = share(answers(run, lines))
    for name, (rise, site, head) in (("most", ranked[-1]), ("least", ranked[0])):
        with operate(run.model, [HeadOff(site, head)], free=True):
            found[f"break.{name}"] = share(answers(run, lines))
            found[f"break.{name}_answer"] = answers(run, ["21+211"])[0]
        found[f"break.{name}_head"] = f"{site}, head {head}"
        found[f"break.{name}_rise"] = rise
    _, tape = taped(opened("pronouns"), PRONOUNS)
    return found | {"break.pronoun_head": _looking(tape, 8, 1)}


def _looking(tape: Tape, query: int, key: int) -> str:
    """The head of the cross-attentions with the largest weight from a query to a key."""
    weights = {site: tape.weights(site)[0, :, query, key] for site in tape.sites_of("cross")}
    site = max(weights, key=lambda one: float(weights[one].max()))
    return f"{site}, head {int(weights[site].argmax())}"


def _weight(causes: Any, row: dict[str, Any], query: int, key: int) -> float:
    """The weight of a head from one token to another."""
    site = next(each for each in causes.maps["sites"] if each["site"] == row["site"])
    return float(unpacked(site["weights"])[row["index"]][query, key])


def causes() -> Numbers:
    """Heads that look at the right word, a decoy, and a backup: what the answer loses without them."""
    run = RUNS / "pronouns"
    asked = jarilab.causes(run, PRONOUNS, answer="es", rival="sie", at=8)
    crossing = [row for row in asked.rows if row["head"].startswith("cross")]
    watching = {row["head"]: _weight(asked, row, 8, 1) for row in crossing}
    rows = {row["head"]: row for row in asked.rows}
    strongest = rows[asked.conclusion["strongest"]]
    on_animal = [rows[name] for name, weight in watching.items() if weight > 0.9]
    found: Numbers = {
        "causes.heads": asked.conclusion["all"],
        "causes.lead": asked.about["score"],
        "causes.watching": len(on_animal),
        "causes.deciding": len(asked.conclusion["heads"]),
        "causes.least": min(asked.about["score"] - row["total"] for row in on_animal),
        "causes.strongest": strongest["head"],
        "causes.left": asked.about["score"] - strongest["total"],
        "causes.passing": asked.conclusion["passing"],
        "causes.chance": asked.conclusion["by_chance"],
    }
    decoy = jarilab.causes(CACHE / "circuits/decoy", TEXT, answer=ANSWERS["decoy"])
    silent = [row for row in decoy.rows if _weight(decoy, row, -1, -2) > 0.9]
    (real,) = decoy.conclusion["heads"]
    found |= {
        "causes.decoys": ", ".join(row["head"] for row in silent),
        "causes.decoy_weight": min(_weight(decoy, row, -1, -2) for row in silent),
        "causes.decoy_effect": max(abs(row["total"]) for row in silent),
        "causes.real": real,
        "causes.real_effect": {row["head"]: row["total"] for row in decoy.rows}[real],
    }
    backup = jarilab.causes(CACHE / "circuits/backup", TEXT, answer=ANSWERS["backup"])
    (pair,) = backup.pairs
    primary = next(row for row in backup.rows if row["head"] == pair["head"])
    return found | {
        "causes.primary": pair["head"],
        "causes.backup": pair["other"],
        "causes.primary_effect": abs(primary["total"]),
        "causes.primary_direct": primary["direct"],
        "causes.both": pair["total"],
    }


def all_numbers() -> Numbers:
    """Those of all lessons."""
    found: Numbers = {}
    lessons = (
        *(bag, query_key_value, masks, seq2seq, beyond, language, images, norms, break_a_head),
        causes,
    )
    for lesson in lessons:
        found |= lesson()
    return found
