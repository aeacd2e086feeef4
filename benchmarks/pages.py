"""What the explorer's pages take in a browser: their code, the first frame, another head, a head that is switched off.

    python benchmarks/pages.py RUN [RUN ...] --input 21+211   # about 3 minutes; 3 more for the pages of others
    python benchmarks/pages.py --only tapes                   # pages of synthetic tapes, without a run
    python benchmarks/pages.py --only model --model FOLDER --input TEXT   # the live page of a Hugging Face model

code: bytes of the script and of the style of a page, which is before any compression; aim: 120 kB without what computes
in a saved page.
run: the page of runs, saved and live: its first contentful paint, and a head that is switched off, from the click until
the frame that shows the answer without it; aims: 300 ms and 100 ms.
model: the same switch in the live page of a Hugging Face model, in its first, its middle and its last layer.
tapes: pages made from synthetic tapes: when they are drawn, and how long another head takes; aims: 200 ms for another
of 48 heads at 64 tokens; 8 MB and 1 s with 12 x 12 heads at 128 tokens; 100 ms for another of 48 heads at 512 tokens.

Wall times in Chromium on a machine that others use too, so the load is shown: medians, and the fastest in brackets. To
hold a change against what was before: the same command with PYTHONPATH at either source, in turns.

Pages of others, in the same Chromium, where they are installed; what is not is said:

    pip install bertviz circuitsvis ipython importlib_metadata

Seen on 2 shared cores of an AMD EPYC, Chromium, 2026-11-22, before -> after the first screen came first and edits
redrew only what they change; two runs of arithmetic, 96 heads:
code: 203 -> 192 kB without what computes, of which some 40 are words in two languages; the aim is missed. What is left
would need shorter names, by a parser that is installed with jarilab; tdewolff-minify has none for Apple's processors,
and rjsmin loses spaces of a template literal inside another.
run: a head switched off 338 [194] at load 5 -> 121 [63] ms at load 8 in the saved page, and 110 [65] live at load 7;
first contentful paint of the saved page 328 [284] -> 316 [244] in turns at load 8, of which some 70 are the reading of
3 MB of data: all of the gain may be chance. Out of turns it was anything between 320 and 608.
model: the BERT-base of explorer.py, 1 thread, load 6, in turns, 2026-11-27, ms in the first, the middle and the last
layer: 768 [725], 792 [702] and 756 [714] -> 823 [729], 635 [490] and 430 [376]; some 30 of it after the response came.
48 heads at 64 tokens: first contentful paint 332 [276] -> 236 [208] ms, in turns.
The other tapes, on 2 cores of an Intel Xeon, 2026-11-21, load 2 to 5: 12 x 12 heads at 128 tokens are 6.5 MB and drawn
after 0.62 s; another head takes 31 ms there, 26 ms with 48 heads at 512 tokens (34 MB, drawn after 0.84 s). The same
as pages of BertViz 1.4.1: 104 MB and 1.9 to 2.1 s, 570 MB and 7.5 to 8.9 s; of CircuitsVis 1.43.3: 52 MB and 1.0 s,
285 MB and 8.0 s.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import timing
import torch

import jarilab
from jarilab import explorer
from jarilab.inspect.record.capture import record
from jarilab.pages.kit.page import bundle, read, slim_style
from jarilab.training.determinism import deterministic

PAGES = [
    # layers, heads, tokens, which aims
    (6, 8, 64, {"drawn_ms": 1000, "other_ms": 200}),
    (12, 12, 128, {"mb": 8, "drawn_ms": 1000}),
    (6, 8, 512, {"other_ms": 100}),
]
CHROMIUM = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
COMPUTING = ("kit/program.js", "kit/program/", "engine.js")

# After the next frame is on the screen: a task that is queued while that frame is made.
PAINTED = """new Promise((done) => requestAnimationFrame(() => {
  const channel = new MessageChannel();
  channel.port1.onmessage = () => done(performance.now());
  channel.port2.postMessage(null);
}))"""
OTHER = f"""async (turn) => {{
  const heads = document.querySelectorAll("#overview button");
  const begin = performance.now();
  heads[turn % heads.length].click();
  const worked = performance.now() - begin;
  return [worked, await {PAINTED} - begin];
}}"""


# The code of a page --------------------------------------------------------------------------------------------------


def code(table: timing.Table) -> None:
    modules = {}
    for module in bundle("jarilab.explorer", "main.js").split("\n// "):
        name, _, text = module.removeprefix("// ").partition("\n")
        modules[name] = len(text.encode())
    computing = sum(size for name, size in modules.items() if name.startswith(COMPUTING))
    style = sum(len(slim_style(read("jarilab.explorer", name)).encode()) for name in explorer.STYLES)
    table.add(
        page="explorer",
        script_kb=round(sum(modules.values()) / 1000),
        computing_kb=round(computing / 1000),
        style_kb=round(style / 1000),
        without_computing_kb=round((sum(modules.values()) - computing + style) / 1000),
        aim=120,
    )


# The page of runs ----------------------------------------------------------------------------------------------------

PAINTS = """Object.fromEntries(performance.getEntriesByType("paint").map((entry) => [entry.name, entry.startTime]))"""
# The time until the answer under the edit is on the screen; undone again, after what it is held against is known.
SWITCH = """async (turn) => {
  const heads = document.querySelectorAll(".heads [data-head]");
  const edited = () => document.querySelector(".edited .answer");
  const rest = (wait) => new Promise((resume) => setTimeout(resume, wait));
  const begin = performance.now();
  const shown = new Promise((resume) => {
    const watch = new MutationObserver(() => edited() && (watch.disconnect(), resume()));
    watch.observe(document.getElementById("models"), { childList: true, subtree: true });
  });
  heads[turn % heads.length].dispatchEvent(new MouseEvent("dblclick", { bubbles: true }));
  await shown;
  await PAINTED;
  const taken = performance.now() - begin;
  await rest(1200);
  document.querySelectorAll(".edited button").forEach((button) => button.click());
  await rest(200);
  return taken;
}"""


def runs(table: timing.Table, chromium: Any, rounds: int, folders: list[str], line: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "page.html"
        explorer.explore(*folders, input=line).save(saved)
        one_page(table, chromium, rounds, "saved", saved.as_uri())
    with served([*folders, "--input", line]) as address:
        one_page(table, chromium, rounds, "live", address)


def model(table: timing.Table, chromium: Any, rounds: int, folder: str, line: str) -> None:
    with served(["--model", folder, "--input", line]) as address:
        opened = chromium.new_context(viewport={"width": 1280, "height": 900}).new_page()
        opened.goto(address, wait_until="load")
        opened.wait_for_selector("html[data-engines]", state="attached")
        switch = SWITCH.replace("PAINTED", PAINTED)
        heads = opened.evaluate("document.querySelectorAll('.heads [data-head]').length")
        layers = opened.evaluate("document.querySelectorAll('.heads .layer').length")
        opened.evaluate(switch, 0)  # the first warms it up
        for layer in (0, layers // 2, layers - 1):
            first = layer * heads // layers
            switches = [opened.evaluate(switch, first + 1 + turn % (heads // layers - 1)) for turn in range(rounds)]
            table.add(page="model", layer=layer, switch_ms=shown(switches), load=round(os.getloadavg()[0], 1))


@contextmanager
def served(words: list[str]) -> Iterator[str]:
    """The address of `jarilab explore` with these words, in a process of its own, as a person has it."""
    command = [sys.executable, "-u", "-m", "jarilab", "explore", *words, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        found = (re.search(r"http://[\w.:]+/?", told) for told in process.stdout)
        try:
            yield next(address[0] for address in found if address)
        finally:
            process.terminate()


def one_page(table: timing.Table, chromium: Any, rounds: int, kind: str, address: str) -> None:
    paints, switches = [], []
    for number in range(rounds):
        context = chromium.new_context(viewport={"width": 1280, "height": 900})
        opened = context.new_page()
        opened.goto(address, wait_until="load")
        opened.wait_for_selector("html[data-engines]", state="attached")
        opened.wait_for_function(f"{PAINTS}['first-contentful-paint']")
        paints.append(opened.evaluate(PAINTS)["first-contentful-paint"])
        switch = SWITCH.replace("PAINTED", PAINTED)
        opened.evaluate(switch, 0)  # the first warms it up
        switches += [opened.evaluate(switch, 7 * number + turn) for turn in (1, 2)]
        context.close()
    table.add(
        page=kind,
        first_paint_ms=shown(paints),
        aim_paint=300,
        switch_ms=shown(switches),
        aim_switch=100,
        load=round(os.getloadavg()[0], 1),
    )


def shown(values: list[float]) -> str:
    """The median, and the fastest."""
    return f"{statistics.median(values):.0f} [{min(values):.0f}]" if values else ""


# Pages of tapes ------------------------------------------------------------------------------------------------------


def tape_of(layers: int, heads: int, tokens: int) -> jarilab.Tape:
    encoder = jarilab.Encoder(16 * heads, heads, layers, encoding="rotary").eval()
    with torch.no_grad(), record(encoder) as tape:
        encoder(4 * torch.randn(1, tokens, 16 * heads))
    return tape


def tapes(table: timing.Table, chromium: Any, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for layers, heads, tokens, aims in PAGES:
            tape, names = tape_of(layers, heads, tokens), [f"w{place}" for place in range(tokens)]
            for by, html in pages_of(tape, names):
                path = Path(folder) / f"{by}-{layers}-{heads}-{tokens}.html"
                path.write_text(html, encoding="utf-8")
                measured = page_one(chromium, path, by == "jari", rounds)
                aim = " ".join(f"{name}<={most}" for name, most in aims.items()) if by == "jari" else ""
                table.add(
                    by=by, heads=f"{layers}x{heads}", tokens=tokens, mb=round(len(html) / 1e6, 2), **measured, aim=aim
                )


def pages_of(tape: jarilab.Tape, names: list[str]) -> Iterator[tuple[str, str]]:
    """The same maps as pages of jari and of others."""
    yield "jari", jarilab.show(tape, names).html
    for by, module, make in (
        ("bertviz head", "bertviz", bertviz("head_view")),
        ("bertviz model", "bertviz", bertviz("model_view")),
        ("circuitsvis", "circuitsvis.attention", circuitsvis),
    ):
        try:
            importlib.import_module(module)
        except ImportError as error:
            print(f"NOT MEASURED: {by} ({error}); pip install bertviz circuitsvis ipython importlib_metadata")
            continue
        yield by, make(tape, names)


def bertviz(view: str) -> Callable[[jarilab.Tape, list[str]], str]:
    def make(tape: jarilab.Tape, names: list[str]) -> str:
        weights = [tape.weights(site) for site in tape.sites]
        return getattr(importlib.import_module("bertviz"), view)(weights, names, html_action="return").data

    return make


def circuitsvis(tape: jarilab.Tape, names: list[str]) -> str:
    """All heads of all layers beside each other."""
    weights = torch.cat([tape.weights(site)[0] for site in tape.sites])
    attention: Any = importlib.import_module("circuitsvis.attention")
    return str(attention.attention_heads(weights, names))


def page_one(chromium: Any, path: Path, ours: bool, rounds: int) -> dict[str, Any]:
    """drawn: from the start of the navigation until all scripts ran and a frame is on the screen. other: from a click
    on a head until the frame that shows it; worked: the part of that in which the page's own script ran."""
    drawn, other, worked = [], [], []
    for _ in range(rounds):
        context = chromium.new_context(viewport={"width": 1280, "height": 900})
        opened = context.new_page()
        opened.goto(path.as_uri(), wait_until="load")
        drawn.append(opened.evaluate(PAINTED))
        if ours:
            for turn in range(1, 9):
                script, whole = opened.evaluate(OTHER, 7 * turn)
                worked.append(script)
                other.append(whole)
        context.close()

    return {
        "drawn_ms": shown(drawn),
        "other_ms": shown(other),
        "worked_ms": shown(worked),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = timing.arguments(__doc__, rounds=7)
    kinds = ("code", "run", "model", "tapes")
    parser.add_argument("runs", nargs="*", help="folders of runs")
    parser.add_argument("--model", help="folder of a Hugging Face model")
    parser.add_argument("--input", default="21+211", help="what their models read")
    parser.add_argument("--only", nargs="+", choices=kinds, default=list(kinds))
    given = parser.parse_args()
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        raise SystemExit("NO CHROMIUM: nothing was measured in a browser (apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    deterministic(threads=1)
    table = timing.Table(given.json)
    if "code" in given.only:
        code(table)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=CHROMIUM)
        if "run" in given.only and given.runs:
            runs(table, chromium, given.rounds, given.runs, given.input)
        if "model" in given.only and given.model:
            model(table, chromium, given.rounds, given.model, given.input)
        if "tapes" in given.only:
            tapes(table, chromium, given.rounds)
        chromium.close()
    table.close()


if __name__ == "__main__":
    main()
