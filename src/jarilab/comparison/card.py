"""A model card of a run, in Markdown with the YAML head that model hubs read.

The card contains only facts from the run's own files. Names may hold any character: they are escaped in Markdown and
written as JSON strings in YAML.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch

from jarilab.comparison.curves import UNKNOWN
from jarilab.comparison.examples import LONGEST_INPUT
from jarilab.comparison.statistics import mean_interval
from jarilab.core.errors import UserError
from jarilab.core.private_paths import without_home
from jarilab.core.storage.files import sha256, write_bytes, write_text
from jarilab.inspect.record.capture import record
from jarilab.pages.kit.image_data import png
from jarilab.runs.environment import recorded_command
from jarilab.runs.folder import read_run
from jarilab.runs.loaded import OpenRun
from jarilab.runs.origins import history
from jarilab.runs.results import read_result
from jarilab.tasks.base import full_names
from jarilab.tasks.metrics import METRICS, Metric, confusion_table, score_notes

CELL, GAP = 16, 8
"""Pixels of a link between two tokens, and between maps."""
LIGHT, DARK = np.array([240, 244, 250]), np.array([8, 48, 107])
"""The colours of weight 0 and 1: one hue that darkens, so that the colour-blind see the same order."""


def card(loaded: OpenRun, picture: str | None = None) -> str:
    """The model card of a run. picture: the address of the image from `maps`, if there is one."""
    run = read_run(loaded.folder)
    has_result = (loaded.folder / "result.json").exists()
    result = read_result(loaded.folder, loaded.experiment.hash) if has_result else None
    sections = [
        _head(loaded, result),
        _title(loaded),
        _figures(loaded, result),
        _data(run),
        _use(),
        _attention(loaded, picture),
        _limits(loaded, result),
        _settings(loaded),
        _versions(loaded, run),
    ]
    return without_home("\n\n".join(sections) + "\n")


def write(loaded: OpenRun, out: Path) -> Path | None:
    """Write the card, and beside it a picture of an example's attention; return the picture's path.

    Creates the folder if it is missing. Returns None if the task has no example at hand. Raises UserError if a file
    cannot be written.
    """
    if out.is_dir():
        raise UserError(f"{out} is a folder; expected the name of a file, such as README.md")
    picture_path = out.with_name(f"{out.stem}-attention.png")
    picture = maps(loaded)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error}") from None
    if picture is not None:
        write_bytes(picture_path, picture)
    write_text(out, card(loaded, None if picture is None else picture_path.name))
    return None if picture is None else picture_path


@torch.no_grad()
def maps(loaded: OpenRun) -> bytes | None:
    """A PNG of all attention weights of the example: a row for each site, a map for each head.

    None if the task has no example at hand, because its data are elsewhere.
    """
    try:
        trace = loaded.predictor.trace(loaded.example(), LONGEST_INPUT)
        model = loaded.predictor.traced_model
        with record(model) as tape:
            model(*trace.inputs)
    except UserError:
        return None
    rows = [_row(tape.weights(site)[0].float().cpu().numpy()) for site in tape.sites]
    width = max(row.shape[1] for row in rows)
    padded_rows = [
        np.pad(row, ((0, GAP), (0, width - row.shape[1])), constant_values=-1) for row in rows
    ]
    shares_HW1 = np.concatenate(padded_rows)[..., None]
    pixels = LIGHT + (DARK - LIGHT) * shares_HW1.clip(0, 1)
    return png(np.where(shares_HW1 < 0, 255, pixels))


def _row(weights_HQK: np.ndarray) -> np.ndarray:
    """The maps of all heads side by side, with -1 between them."""
    enlarged = weights_HQK.repeat(CELL, 1).repeat(CELL, 2)
    padded = np.pad(enlarged, ((0, 0), (0, 0), (0, GAP)), constant_values=-1)
    return np.concatenate(list(padded), 1)


# Sections ------------------------------------------------------------------------------------------------------------


def _head(loaded: OpenRun, result: Mapping[str, Any] | None) -> str:
    """The YAML head for model hubs."""
    experiment = loaded.experiment
    tags = ["jarilab", "attention", experiment.model, experiment.encoding]
    head: dict[str, Any] = {"library_name": "jarilab", "tags": tags}
    if result is not None:
        name = str(result["metric"])
        measured = {
            "task": {"type": experiment.task},
            "dataset": {"name": experiment.task, "type": experiment.task},
            "metrics": [{"type": name, "value": result[name]}],
        }
        head["model-index"] = [{"name": _name(loaded), "results": [measured]}]
    # JSON is YAML, too, so every name is quoted.
    lines = [f"{key}: {json.dumps(value)}" for key, value in head.items()]
    return "\n".join(["---", *lines, "---"])


def _title(loaded: OpenRun) -> str:
    experiment = loaded.experiment
    purpose, _ = loaded.task.purpose()
    count = sum(parameter.numel() for parameter in loaded.model.parameters())
    what = (
        f"A model of the kind {plain(experiment.model)} with {count:,} parameters, trained for the task "
        f"{plain(experiment.task)} with the positional encoding {plain(experiment.encoding)}, seed {experiment.seed}."
    )
    return f"# {plain(_name(loaded))}\n\n{what} {plain(purpose)}".rstrip()


def _figures(loaded: OpenRun, result: Mapping[str, Any] | None) -> str:
    if result is None:
        return "## Figures\n\nNothing was measured yet: this run has no result."
    metric = METRICS.get(str(result["metric"]), UNKNOWN)
    examples, key = int(result["examples"]), str(result["metric"])
    rows = [_figure("all", metric, result[key], examples)]
    for group, count in result.get("group_examples", {}).items():
        if f"{key}_{group}" in result:  # groups may be measured by another metric alone
            rows.append(_figure(group, metric, result[f"{key}_{group}"], count))
    head = [f"| of | {metric.title} | interval | examples |", "| --- | --- | --- | --- |"]
    how = mean_interval([result[key]], examples, share=metric.share).how
    notes = [f"- {plain(note)}" for note in score_notes(result)]
    notes += _confusion(result)
    sentence = f"Measured on held-out examples at step {result['steps']:,}. Interval: {plain(how)}."
    if "signature" in result:
        sentence += f" BLEU by sacreBLEU, {plain(result['signature'])}."
    return "\n".join(
        [
            "## Figures",
            "",
            *head,
            *rows,
            "",
            sentence,
            *_ceiling(metric, result),
            "",
            *notes,
        ]
    )


def _confusion(result: Mapping[str, Any]) -> list[str]:
    """The table of classes and answers, if there is one."""
    heads, *rows = confusion_table(result) or [[]]
    if not rows:
        return []
    table = [f"| {' | '.join(map(plain, row))} |" for row in [heads, *rows]]
    return [
        "Answers (columns) to each class:",
        "",
        table[0],
        f"|{' --- |' * len(heads)}",
        *table[1:],
    ]


def _figure(name: str, metric: Metric, value: float, examples: int) -> str:
    estimate = mean_interval([value], examples, share=metric.share)
    interval = "not known"
    if estimate.low is not None and estimate.high is not None:
        interval = f"{metric.text(estimate.low)} to {metric.text(estimate.high)}"
    return f"| {plain(name)} | {metric.text(value)} | {interval} | {examples:,} |"


def _ceiling(metric: Metric, result: Mapping[str, Any]) -> Iterator[str]:
    ceiling = result.get("ceiling")
    share = ceiling.get("all") if isinstance(ceiling, dict) else ceiling
    if share is not None:
        yield f"Without positions at most {metric.text(share)} on average."


def _data(run: Mapping[str, Any]) -> str:
    lines = [f"- {plain(run['data'])}"]
    lines += [f"- {plain(name)}: sha256 `{plain(digest)}`" for name, digest in run["kept"].items()]
    lines += [f"- before: {plain(line)}" for line in history(run)]
    return "\n".join(["## Data", "", *lines])


def _use() -> str:
    return f"""## Use

    {_installation()}

In Python, where the folder of the run is at hand:

    import jarilab

    for answer in jarilab.predict("RUN", [...]):
        print(answer)

`jarilab predict RUN --help` lists what it can do, and `jarilab explore RUN` shows what it attends to. Other programs
read an export, which has an example in its README.md. A format that cannot hold this model says why:

    jarilab export RUN --to onnx --out FOLDER  # ONNX Runtime and others
    jarilab export RUN --to torch --out FOLDER  # PyTorch
    jarilab export RUN --to huggingface --out FOLDER  # transformers
    jarilab export RUN --to ctranslate2 --out FOLDER  # CTranslate2, for encoder-decoders"""


def _installation() -> str:
    """A command that installs jari, from the address that the installed package names, or else a checkout."""
    with contextlib.suppress(PackageNotFoundError):
        for entry in metadata("jarilab").get_all("Project-URL", []):
            name, _, address = entry.partition(", ")
            if name == "Repository":
                return f"pip install 'jarilab[text,vision] @ git+{address}'"
    return "pip install -e '.[text,vision]'  # in a checkout of jari"


def _attention(loaded: OpenRun, picture: str | None) -> str:
    if picture is None:
        return "## What it looks at\n\n`jarilab explore RUN` draws its attention; this card has no picture of it."
    caption = (
        f"The attention weights for the input {plain(loaded.example())}: a row of maps for each site of attention, "
        "a map for each head. Rows of a map are queries, columns are keys; dark is 1, light is 0."
    )
    return (
        f"## What it looks at\n\n![Attention weights of every head]({quote(picture)})\n\n{caption}"
    )


def _limits(loaded: OpenRun, result: Mapping[str, Any] | None) -> str:
    """Limits that follow from the model and its measurements."""
    lines = [
        "It was measured on held-out examples of the data above alone; nothing is known of other data."
        if result is not None
        else "It was not measured."
    ]
    max_positions = getattr(loaded.model, "max_positions", dict)()
    lines += [
        f"It cannot read more than {count:,} positions of the {side}."
        for side, count in max_positions.items()
        if count is not None
    ]
    lines += [
        f"It was trained on sequences of up to {count:,} tokens of the {side}."
        for side, count in loaded.task.longest.items()
    ]
    lines.append("It is one run of one seed: another seed may learn more or less.")
    return "\n".join(["## What it is not for", "", *(f"- {line}" for line in lines)])


def _settings(loaded: OpenRun) -> str:
    experiment = loaded.experiment
    settings = full_names(
        task=experiment.task_options, model=experiment.model_options, training=experiment.training
    )
    rows = [
        f"| {plain(name)} | {plain(value)} |"
        for name, value in settings.items()
        if value is not None
    ]
    return "\n".join(["## Settings", "", "| setting | value |", "| --- | --- |", *rows])


def _versions(loaded: OpenRun, run: Mapping[str, Any]) -> str:
    environment = run["environment"]
    names = ("jari", "python", "torch", "cpu", "device", "system", "started", "command")
    shown = {**environment, "command": recorded_command(environment)}
    rows = [f"| {name} | {plain(shown[name])} |" for name in names if name in shown]
    weights = loaded.folder / "checkpoints" / f"step-{loaded.step:09d}" / "model.safetensors"
    if weights.is_file():
        rows.append(f"| weights at step {loaded.step:,} | sha256 `{sha256(weights)}` |")
    rows.append(f"| experiment | `{loaded.experiment.hash}` |")
    return "\n".join(["## Versions", "", "| what | which |", "| --- | --- |", *rows])


def _name(loaded: OpenRun) -> str:
    return loaded.folder.resolve().name


_MARKS = re.compile(r"^[#+\-=]|^[0-9](?=[0-9]*[.)](?:\s|$))|[\\`*_{}\[\]|~@&<>!]|:(?=//)")
"""What would begin a heading or a list, emphasis, a link, an image or a cell of a table."""


def plain(value: Any) -> str:
    """A text that Markdown, and HTML inside it, shows literally, on one line and without control characters."""
    text = " ".join(str(value).split())
    text = "".join(letter for letter in text if letter.isprintable())
    return _MARKS.sub(lambda found: f"&#{ord(found[0])};", text)
