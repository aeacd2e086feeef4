"""Runs from somebody who means harm: strings that name code in every field, and code in place of every file.

    python -m drills.hostile [--whole], from tests/: prints what was opened, how often it was refused, what was executed

Without --trust-code nothing of it may be executed: a canary file would lie there, and an audit hook looks on.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")

from drills.families import FAMILIES, make_materials
from drills.payloads import MARKER, STRINGS, hostile_strings, make_places, payloads
from drills.promises import SEALED
from drills.watch import RefusedError, Watch, WatchedServer
from helpers.folders import bert
from jarilab.cli import main as command
from jarilab.comparison.launchers import processes
from jarilab.comparison.study import FORMAT
from jarilab.core.storage.files import seal_record, sha256, write_json
from jarilab.runs.experiment import Experiment

NAMING = ("task", "model", "positions")
"""Fields that name code, and those that end in encoding."""


def commands_on(run: Path, line: str, root: Path) -> dict[str, list[Any]]:
    """Every command line that opens the run at `run`, by name. `root/bert` is a harmless Hugging Face folder."""
    page = ["--input", line, "--still", "--save", root / "page.html"]
    again = ["--out", root / "again"]
    study = ["--data", root / "bert" / "sums.txt", "--threads", "1", "--out", root / "study"]
    verbs_of_a_run = ("predict", "evaluate", "explore", "walk", "report", "card", "export", "serve", "verify")
    helps = {f"{verb} --help": [verb, run, "--help"] for verb in verbs_of_a_run}
    return {
        "predict": ["predict", run, line],
        "evaluate": ["evaluate", run],
        "explore": ["explore", run, *page],
        "explore --model": ["explore", "--model", run, *page],
        "explore --against": ["explore", "--model", root / "bert", "--against", run, *page],
        "explore RUN --model": ["explore", run, "--model", root / "bert", *page],
        "heads": ["heads", run, *study],
        "heads --help": ["heads", run, "--help"],
        "heads --against": ["heads", root / "bert", "--against", run, *study],
        "causes": ["causes", run, "--text", line],
        "causes --against": ["causes", run, "--text", line, "--against", run],
        "causes --help": ["causes", run, "--help"],
        "laws --model": ["laws", "--model", run],
        "walk": ["walk", run, "--input", line],
        "report": ["report", run, "--out", root / "report.html"],
        "card": ["card", run],
        "verify": ["verify", run],
        "export": ["export", run, "--to", "torch", "--out", root / "exported"],
        "runs": ["runs", run.parent],
        "compare": ["compare", run.parent, "--seeds", "1"],
        "compare --report": ["compare", run.parent, "--report"],
        "compare --help": ["compare", run.parent, "--help"],
        "train --from": ["train", "--from", run, *again],
        "train --from, run.json": ["train", f"--from={run / 'run.json'}", *again],
        "train --from --help": ["train", "--from", run, "--help"],
        "train --from --model": ["train", "--from", run, "--model", "encoder_decoder", *again],
        "train --help --from": ["train", "--help", "--from", run, "--d-model", "16"],
        **helps,
    }


CODE_FIELDS = (("task",), ("model",), ("model_options", "encoding"), ("training", "positions"))
"""Fields of an experiment that may name a Python file."""
CODE_OF_FOLDERS = {
    "config.json": {
        "architectures": ["evil.Mine"],
        "auto_map": {"AutoConfig": "evil.Mine", "AutoModelForMaskedLM": "evil.Mine"},
    },
    "tokenizer_config.json": {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["evil.Mine", None]}},
}
"""Fields of a Hugging Face folder that name code."""
REFUSED = ("explore --model", "explore --against", "compare --report", "heads --against")
"""Command lines that refuse a harmless run: they need a Hugging Face folder or a finished trial."""
VERBS = ("train", *commands_on(Path(), "", Path()))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where strings stand in a record, and where one could: options that are not set."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, str) or (value is None and path):
        yield path


class Attack:
    """Opens hostile runs by every verb that takes a run. counts: what came of it."""

    def __init__(self, root: Path):
        self.root = root
        self.watch = Watch(root, MARKER)
        self.counts: Counter[str] = Counter()
        self.tracebacks: Counter[str] = Counter()
        self.places = make_places(root)

    def open(self, run: Path, verb: str, line: str) -> str:
        """By one verb, as a person would type it in the folder of the attack; gives what came of it."""
        return self.open_with({**commands_on(run, line, self.root), "train": self.again}[verb])

    def open_with(self, words: list[Any]) -> str:
        """By one command line; gives what came of it."""
        self.counts["opened"] += 1
        said = io.StringIO()
        self.watch.on = True
        try:
            with (
                mock.patch.object(processes, "trial_server", return_value=WatchedServer(self.watch)),
                contextlib.redirect_stdout(said),
                contextlib.redirect_stderr(said),
            ):
                code = command([str(word) for word in words])
        except SystemExit as ended:
            code = ended.code
        except RefusedError as error:
            code = str(error) if str(error) == "a trial" else "executed"
        except BaseException as error:
            code = "traceback"
            self.tracebacks[f"{words[:2]}: {type(error).__name__}: {str(error)[:120]}"] += 1
        self.watch.on = False
        outcome = {0: "done", 2: "refused"}.get(code, str(code))  # type: ignore[call-overload]
        self.counts[outcome] += 1
        self.counts["canaries"] += (self.root / MARKER).exists()
        return outcome

    def prepare(self, family: str, name: str) -> Path:
        """A run that nobody has touched."""
        found = next(one for one in FAMILIES if one.name.startswith(family))
        run = self.root / name / "run"
        self.again = found.command(self.root / "materials", run)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            assert command(self.again) == 0
        return run


def seal(run: Path, record: dict[str, Any]) -> None:
    """Write run.json, and make all that names its hash fit: what somebody who means harm would do."""
    record.pop(SEALED, None)
    with contextlib.suppress(Exception):
        record["hash"] = Experiment(**record["experiment"]).hash
    write_json(run / "run.json", seal_record(record))
    newest = max((run / "checkpoints").iterdir())
    for file in (newest / "state.json", run / "result.json"):
        held = json.loads(file.read_text())
        held.pop(SEALED, None)
        held |= {"run": record["hash"]} if file.name == "state.json" else {"hash": record["hash"]}
        file.write_text(json.dumps(held if file.name == "state.json" else seal_record(held)))
    seal_checkpoint(newest)
    study = {"format": FORMAT, "experiment": record["experiment"], "seeds": 1, "snapshots": 0, "rates": []}
    encodings = [record["experiment"].get("model_options", {}).get("encoding")]
    (run.parent / "study.json").write_text(json.dumps({**study, "encodings": encodings}))


def seal_checkpoint(path: Path) -> None:
    names = ("model.safetensors", "optimizer.safetensors", "state.json")
    manifest = {name: sha256(path / name) for name in names if (path / name).is_file()}
    (path / "manifest.json").write_text(json.dumps(manifest))


def attack_by_strings(attack: Attack, run: Path, *, whole: bool) -> None:
    """Each string in each field of run.json, and so in the record of a study; each by one verb after the other. whole:
    every string in every field, instead of every string in one that names code, and some in another."""
    record = json.loads((run / "run.json").read_text())
    fields = [path for path in leaves(record) if path[0] != "environment" and path != ("hash",)]
    fields.append(("experiment", "model_options", "decoder_encoding"))
    fields.append(("kept", "evil.py"))
    fields = list(dict.fromkeys(fields))
    naming = [path for path in fields if path[-1] in NAMING or str(path[-1]).endswith("encoding")]
    others = [path for path in fields if path not in naming]
    number = 0
    for place, text in enumerate(hostile_strings(attack.root)):
        some = [naming[place % len(naming)]]
        if place % 10 == 0:
            some.append(others[place // 10 % len(others)])
        for path in fields if whole else some:
            changed = json.loads(json.dumps(record))
            inner = changed
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = text
            seal(run, changed)
            attack.watch.text = text
            attack.open(run, VERBS[number % len(VERBS)], "1+2")
            number += 1
    attack.counts["fields"] = len(fields)
    attack.counts["strings"] = STRINGS


def attack_by_paths(attack: Attack, run: Path) -> None:
    """A file in the run's own folder, in each field that names code, by every verb."""
    record = json.loads((run / "run.json").read_text())
    (run / "evil.py").write_text((attack.places / "evil.py").read_text())
    for field, verb in itertools.product(CODE_FIELDS, VERBS):
        seal(run, with_code(record, field, run / "evil.py"))
        attack.watch.text = "evil.py"
        attack.open(run, verb, "1+2")
    (run / "evil.py").unlink()
    seal(run, record)


def with_code(record: dict[str, Any], field: tuple[str, ...], file: Path) -> dict[str, Any]:
    """A copy of the record of a run, which names a class in `file` in this field of its experiment."""
    changed = json.loads(json.dumps(record))
    section = changed["experiment"]
    for key in field[:-1]:
        section = section[key]
    section[field[-1]] = f"{file}:Mine"
    return changed


def attack_by_folders(attack: Attack) -> None:
    """A Hugging Face folder whose JSON files name code of their own, by each option that takes one."""
    folder = shutil.copytree(attack.root / "bert", attack.root / "hostile")
    (folder / "evil.py").write_text((attack.places / "evil.py").read_text())
    for file, names in CODE_OF_FOLDERS.items():
        held = (folder / file).read_text()
        (folder / file).write_text(json.dumps(json.loads(held) | names))
        for words in (
            ["explore", "--model", folder],
            ["explore", "--model", attack.root / "bert", "--against", folder],
        ):
            attack.open_with([*words, "--input", "it was", "--still", "--save", attack.root / "page.html"])
        attack.open_with(["laws", "--model", folder])
        (folder / file).write_text(held)


def attack_by_files(attack: Attack, run: Path, line: str, *, whole: bool) -> None:
    """Code in place of each file of a run, with the hashes that fit. whole: by every verb and of every kind."""
    verbs = VERBS if whole else ("predict",)
    kept = shutil.copytree(run, run.parent.parent / f"{run.parent.name}-kept")
    files = [path.relative_to(run) for path in sorted(run.rglob("*")) if path.is_file() and path.name != ".lock"]
    for name, payload in itertools.product(files, payloads(attack.root, whole=whole).values()):
        (run / name).write_bytes(payload)
        if name.parent.parent.name == "checkpoints" and name.name != "manifest.json":
            seal_checkpoint(run / name.parent)
        record = json.loads((kept / "run.json").read_text())
        if str(name) in record["kept"]:
            record["kept"][str(name)] = sha256(payload)
            seal(run, record)
        for verb in verbs:
            attack.open(run, verb, line)
        shutil.rmtree(run)
        shutil.copytree(kept, run)
    attack.counts["files"] += len(files)


def attack_data(attack: Attack, *, whole: bool) -> None:
    """Code in place of the data that are trained on."""
    for name, payload in payloads(attack.root, whole=whole).items():
        data = attack.root / "data"
        (data / "images" / "one").mkdir(parents=True, exist_ok=True)
        files = ("t.txt", "t.tsv", "t.csv", "t.json", "t-images-idx3-ubyte", "t.pt", "t.npy", "t.py", "t.txt.gz")
        for file in (*files, "images/one/p.png", "images/p.txt", "images/one/p.npy"):
            (data / file).write_bytes(payload)
        for task, file in [("text", one) for one in files] + [
            ("images", "t.csv"),
            ("images", "t-images-idx3-ubyte"),
            ("images", "images"),
            ("captions", "images"),
            ("detection", "t.json"),
            ("detection", "images"),
            ("translation", "t.tsv"),
        ]:
            out = attack.root / "of-data"
            attack.again = [
                "train",
                task,
                "--train",
                str(data / file),
                "--out",
                str(out),
                "--set",
                "training.examples=8",
            ]
            attack.again += ["--set", "training.evaluations=1", "--set", "model.d_model=16", "--threads", "1"]
            attack.open(out, "train", name)
            shutil.rmtree(out, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--whole", action="store_true", help="every string in every field, every file by every verb")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="jari-hostile-"))
    os.environ["JARILAB_CACHE"] = str(root / "cache")
    make_materials(root / "materials")
    bert(root / "bert")
    (root / "bert" / "sums.txt").write_text("1+2\n3+4\n")
    attack = Attack(root)
    begun = time.monotonic()
    before = Path.cwd()
    os.chdir(attack.places)
    sys.path.insert(0, "")  # the worst case: the folder that one stands in is searched for modules
    try:
        run = attack.prepare("seq2seq, rotary", "strings")
        record = json.loads((run / "run.json").read_text())
        for verb in VERBS:
            seal(run, dict(record))
            outcome = attack.open(run, verb, "1+2")  # what is harmless is used, with the hook looking on
            if outcome not in ("done", "a trial") and verb not in REFUSED:
                print(f"{verb} of a harmless run: {outcome}")
                return 1
        attack_by_paths(attack, run)
        attack_by_folders(attack)
        attack_by_strings(attack, run, whole=options.whole)
        painter = attack.prepare("text_to_image", "painter")
        attack_by_files(attack, painter, "dark", whole=options.whole)
        decoder = attack.prepare("decoder", "decoder")
        attack_by_files(attack, decoder, "one two", whole=options.whole)
        attack_data(attack, whole=options.whole)
    finally:
        os.chdir(before)
    attack.counts["seconds"] = round(time.monotonic() - begun)
    told = {"counts": attack.counts, "executed": attack.watch.seen, "tracebacks": attack.tracebacks}
    print(json.dumps(told, ensure_ascii=False, indent=1))
    shutil.rmtree(root)
    return 1 if attack.watch.seen or attack.counts["canaries"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
