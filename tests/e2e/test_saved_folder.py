"""A page in a folder: its models as ONNX beside it, run by ONNX Runtime Web (`npm install onnxruntime-web`)."""

import functools
import http.server
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jaxtyping
import pytest

import jarilab
from helpers import folders
from helpers.browser import Pages, change_in, read_change, until
from helpers.command import command
from jarilab.explorer import open_explorer, save_folder
from jarilab.explorer.page_folder import DEFAULT_RUNTIME, RUNTIME_FILES

READY = "html[data-engines]"
NOTE = "#input-note"


@pytest.fixture(scope="session")
def runtime() -> Path:
    """The folder of ONNX Runtime Web."""
    folder = Path(os.environ.get("JARILAB_ONNX_RUNTIME", DEFAULT_RUNTIME)).resolve()
    if not (folder / RUNTIME_FILES[0]).is_file():
        pytest.skip("NO ONNX RUNTIME WEB: pages in folders were NOT checked (npm install onnxruntime-web)")
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name, reason=f"NO {name}: pages in folders were NOT checked (pip install 'jarilab[onnx]')")
    return folder


@pytest.fixture(scope="module")
def unchecked() -> Iterator[None]:
    """As a person runs it: where `torch.export` follows a model, a length is a symbol and no `int`."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def saved(runs: Path, runtime: Path, unchecked: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("folder") / "page"
    opens = ("--site", "encoder.0", "--head", 0, "--save", f"{out}/", "--onnx-runtime", runtime)
    done = command("explore", runs / "none", runs / "rotary", "--input", "12+7", *opens)
    assert done.returncode == 0, done.stderr
    assert "python -m http.server" in done.stdout
    return out


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def serve() -> Iterator[Any]:
    """The address of a folder on a server of files."""
    servers = []

    def started(folder: Path) -> str:
        handler = functools.partial(Quiet, directory=folder)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/"

    yield started
    for server in servers:
        server.shutdown()
        server.server_close()


class Served(Pages):
    """Pages that may ask for what lies in their own folder."""

    @property
    def foreign(self) -> list[str]:
        return [address for address in self.requests if not address.startswith(("http://127.0.0.1:", "blob:"))]


@pytest.fixture
def served(browser: Any, tmp_path: Path) -> Iterator[Served]:
    watched = Served(browser, tmp_path)
    yield watched
    for context in watched.contexts:
        context.close()
    assert watched.foreign == []


pytestmark = pytest.mark.browser


def told(page: Any, view: int) -> str:
    return page.locator(".model").nth(view).locator(".said .token.big").text_content()


def test_a_page_in_a_folder_answers(served: Served, saved: Path, serve: Any, runs: Path) -> None:
    page = served.visit(serve(saved), READY)
    note = page.locator(NOTE).text_content()
    assert "without Python. Verified here: within" in note
    for line in ("3+0", "47-12="):
        page.locator("#input").fill(line)
        page.keyboard.press("Enter")
        until(page, lambda line=line: page.title().startswith(line))
        for view, run in enumerate(("none", "rotary")):
            (answer,) = jarilab.predict(runs / run, [line])
            assert told(page, view) == (answer.answer or "∅")
    assert served.troubles == []


@pytest.mark.parametrize(
    "edit",
    [
        {"kind": "head", "site": "encoder.0", "head": 1},
        {"kind": "link", "site": "encoder.0", "head": 0, "query": 0, "key": 0, "how": "erase"},
    ],
    ids=lambda edit: edit["kind"],
)
def test_an_edit_does_in_a_folder_what_it_does_in_python(
    served: Served, saved: Path, serve: Any, runs: Path, edit: dict[str, Any]
) -> None:
    page = served.visit(serve(saved), READY)
    if edit["kind"] == "head":
        page.locator("[data-view='1'][data-site='encoder.0'][data-head='1']").press("x")
    else:
        page.locator("[data-keep=cutting]").check()
        page.locator(".field").nth(1).click(position={"x": 4, "y": 4})
    edited = page.locator("#models .edited").first
    until(page, lambda: "other places" in edited.text_content())
    effect = open_explorer([runs / "none", runs / "rotary"]).operate("12+7", 1, [edit])["effect"]
    assert read_change(edited.text_content()) == change_in(effect)
    assert edited.locator(".token.big").text_content() == (effect["answer"] or "∅")


def test_a_folder_writes_another_answer_as_python_does(
    served: Served, serve: Any, runtime: Path, unchecked: None, tmp_path: Path
) -> None:
    rules = {"bad_words_ids": [[1], [2], [4]], "no_repeat_ngram_size": 2}
    folder = folders.writer(tmp_path / "marian", lambda folder: folders.marian(folder, vocab_size=17), **rules)
    explorer = open_explorer(models=[folder])
    save_folder(explorer, tmp_path / "page", folders.SENTENCE, runtime=runtime)
    edits = [{"kind": "head", "site": "decoder.1.cross", "head": 1}]
    effect = explorer.operate(folders.SENTENCE, 0, edits)["effect"]
    address = f"{serve(tmp_path / 'page')}#edited={quote(json.dumps([[0, edits]]))}"
    edited = served.visit(address, READY).locator("#models .edited").first
    until(edited.page, lambda: "other places" in edited.text_content())
    change = (effect["log_probability"]["after"] - effect["log_probability"]["before"]) / len(effect["tokens"])
    assert read_change(edited.text_content()) == pytest.approx(change, abs=6e-3)
    assert edited.locator(".token.big").text_content() == effect["answer"]
    assert effect["answer"] != explorer.look(folders.SENTENCE, live=False)["views"][0]["answer"]
    assert served.troubles == []


def stays(page: Any) -> str:
    """Why the page computes nothing; its maps are there."""
    assert page.locator(".field").count() >= 2
    assert page.locator("#input").get_attribute("readonly") is not None
    return page.locator(NOTE).text_content()


def test_from_disk_it_stays_still_and_says_how_to_serve_it(served: Served, saved: Path) -> None:
    page = served.visit((saved / "index.html").as_uri(), READY)
    assert "python -m http.server" in stays(page)
    served.requests.clear()


# Models run in a worker, whose script is made of a Blob.
WITHOUT_WEBASSEMBLY = """
    const Plain = Blob;
    globalThis.Blob = class extends Plain {
        constructor(parts, options) {
            const before = options?.type === "text/javascript" ? ["delete globalThis.WebAssembly;\\n"] : [];
            super([...before, ...parts], options);
        }
    };
    delete globalThis.WebAssembly;
"""


def test_without_webassembly_it_stays_still(served: Served, saved: Path, serve: Any) -> None:
    context = served.browser.new_context()
    context.add_init_script(WITHOUT_WEBASSEMBLY)
    served.contexts.append(context)
    page = context.new_page()
    page.goto(serve(saved))
    page.wait_for_selector(READY, state="attached", timeout=60_000)
    assert "no WebAssembly" in stays(page)


@pytest.mark.parametrize("name", ["onnxruntime/ort.wasm.min.mjs", "model-1.onnx"])
def test_a_missing_file_is_named(served: Served, saved: Path, serve: Any, tmp_path: Path, name: str) -> None:
    shutil.copytree(saved, tmp_path / "part")
    (tmp_path / "part" / name).unlink()
    page = served.visit(serve(tmp_path / "part"), READY)
    assert f"{name} cannot be read" in stays(page)


def test_another_model_than_the_page_was_made_of_is_told(
    served: Served, saved: Path, serve: Any, tmp_path: Path
) -> None:
    shutil.copytree(saved, tmp_path / "swapped")
    shutil.copy(saved / "model-0.onnx", tmp_path / "swapped" / "model-1.onnx")
    assert "differ from those of Python" in stays(served.visit(serve(tmp_path / "swapped"), READY))


def test_what_cannot_be_saved_as_a_folder_is_told_first(runs: Path, runtime: Path, tmp_path: Path) -> None:
    def said(*words: object) -> str:
        done = command("explore", runs / "rotary", "--input", "12+7", *words)
        assert done.returncode == 2
        return done.stderr

    new = f"{tmp_path / 'page'}/"
    assert "npm install onnxruntime-web" in said("--save", new, "--onnx-runtime", tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    assert "thesis.tex, which is of no saved page" in said("--save", tmp_path / "mine", "--onnx-runtime", runtime)
    assert "write such as --save page.html" in said("--save", new, "--still", "--onnx-runtime", runtime)
    assert not Path(new).exists()
