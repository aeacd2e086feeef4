"""The site as it is built, in a browser: with models that learned nothing, all else as `make docs` has it."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
from axe_playwright_python.sync_playwright import Axe

from helpers.browser import ServedPages, until
from helpers.command import command
from jarilab.encodings.base import registry

BUILD = Path(__file__).parent.parent.parent / "docs" / "build"
sys.path.insert(0, str(BUILD))

import live  # pyright: ignore[reportMissingImports]  # noqa: E402
import pages  # pyright: ignore[reportMissingImports]  # noqa: E402
import runs as trainings  # pyright: ignore[reportMissingImports]  # noqa: E402

pytestmark = [pytest.mark.browser, pytest.mark.slow]
READY = "body[data-md-color-scheme]"
STILL = '<!doctype html><html lang="en"><meta charset="utf-8"><title>page</title><p>A page stands here.</p></html>'


@pytest.fixture(scope="module")
def built(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site. What takes minutes is there before the build asks for it; the page of home is real."""
    if find_spec("zensical") is None:
        pytest.skip("NO ZENSICAL: the site was NOT built and NOT checked (pip install 'jarilab[dev]')")
    cache, site = tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("made") / "site"
    for name in trainings.TRAININGS:
        (cache / "runs" / name).mkdir(parents=True)
        (cache / "runs" / name / "of_the_site").touch()
    (cache / "live").mkdir()
    for name in live.PAGES:
        (cache / "live" / f"{name}.html").write_text(STILL)
    (cache / "laws").mkdir()
    for name in registry.names():
        (cache / "laws" / f"{name}.txt").write_text("nobody asked the laws\n")
    opens = ("--input", "12+7", "--site", "encoder.0", "--head", 0)
    explored = (runs / "none", runs / "rotary", *opens, "--save", cache / "live" / "bag.html")
    jaxtyping.config.update("jaxtyping_disable", True)  # where `torch.export` follows a model, a length is no `int`
    assert command("explore", *explored).returncode == 0
    jaxtyping.config.update("jaxtyping_disable", False)
    (cache / "numbers.json").write_bytes(pages.KEPT_NUMBERS.read_bytes())
    places = {"JARI_DOCS_CACHE": str(cache), "JARI_DOCS_SITE": str(site)}
    environment = {**os.environ, **places, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(BUILD), "--fast"], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return site


class Quiet(SimpleHTTPRequestHandler):
    """Says nothing of what it is asked."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address(built: Path) -> Iterator[str]:
    """Where this machine serves the site."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(built))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def site(browser: Any, tmp_path: Path, address: str) -> Iterator[ServedPages]:
    """Open pages of the site; at the end there was no message, no error, and nothing asked of another machine."""
    watched = ServedPages(browser, tmp_path, address)
    yield watched
    for context in watched.contexts:
        context.close()
    assert (watched.troubles, watched.foreign) == ([], [])


def opened(site: ServedPages, page: str = "index.html", **how: Any) -> Any:
    return site.visit(site.server + page, READY, **how)


@pytest.mark.parametrize("home", ["index.html", pytest.param("ko/index.html", marks=pytest.mark.long)])
def test_the_first_screen_has_a_figure_that_links_set_and_a_page_that_answers_an_edit(
    site: ServedPages, home: str
) -> None:
    page = opened(site, home)
    framed = page.locator(".live iframe")
    assert framed.bounding_box()["y"] < 450, "in the upper half of the first screen"
    figure = framed.content_frame
    figure.locator("html[data-ready]").wait_for(state="attached")
    before = figure.locator("#maps").screenshot()
    page.locator("a.state").last.click()
    until(page, lambda: figure.locator("#maps").screenshot() != before)
    whole = site.visit(site.server + page.locator(".live a").get_attribute("href").split("/", home.count("/"))[-1])
    whole.locator("html[data-engines]").wait_for(state="attached")
    whole.locator("#input").fill("3+0")
    whole.locator("#input").press("Enter")
    until(whole, lambda: whole.locator(".queries").first.inner_text().split() == ["3", "+", "0"])
    whole.locator("[data-site='encoder.0'][data-head='1']").first.press("x")
    until(whole, lambda: whole.locator("#models .edited .answer").count() == 1)


@pytest.mark.parametrize(("home", "word", "found"), [
    ("index.html", "clipped", "Figures"),
    pytest.param("ko/index.html", "사인파", "사인파를 그리다", marks=pytest.mark.long),
])  # fmt: skip
def test_a_word_is_found(site: ServedPages, home: str, word: str, found: str) -> None:
    page = opened(site, home)
    links = page.locator("a", has_text=found)
    before = links.count()
    page.keyboard.press("/")
    page.keyboard.type(word, delay=20)
    page.get_by_role("link", name=found).first.wait_for()
    until(page, lambda: links.count() > before)
    assert links.count() > before, "one more than those that lead there from every page"


@pytest.mark.parametrize("page", ["lessons/sqrt.html", pytest.param("figures.html", marks=pytest.mark.long)])
def test_the_switch_of_languages_leads_to_the_same_page(site: ServedPages, page: str) -> None:
    shown = opened(site, page)
    shown.get_by_role("button", name="Select language").hover()
    shown.locator("header").get_by_role("link", name="한국어").click()
    shown.wait_for_url(f"{site.server}ko/{page}")
    assert shown.locator("html").get_attribute("lang") == "ko"
    shown.locator(".other a").click()
    shown.wait_for_url(f"{site.server}{page}")


def test_it_is_light_by_day_and_dark_by_night(site: ServedPages) -> None:
    def lightness(scheme: str) -> float:
        page = opened(site, "lessons/sqrt.html", color_scheme=scheme)
        until(page, lambda: page.locator("body").get_attribute("data-md-color-media").endswith(f"{scheme})"))
        colour = page.locator("body").evaluate("body => getComputedStyle(body).backgroundColor")
        return sum(map(int, colour.removeprefix("rgb(").rstrip(")").split(",")[:3])) / 3

    assert lightness("light") > 200
    assert lightness("dark") < 60


@pytest.mark.parametrize(
    "page",
    ["ko/index.html", *(pytest.param(page, marks=pytest.mark.long) for page in ("lessons/bag.html", "figures.html"))],
)
def test_nothing_stands_out_of_a_narrow_screen(site: ServedPages, page: str) -> None:
    shown = opened(site, page, width=420)
    assert shown.evaluate("document.scrollingElement.scrollWidth") <= 420


@pytest.mark.long
def test_the_glossary_is_reached_by_keyboard(site: ServedPages) -> None:
    page = opened(site)
    for _ in range(120):
        page.keyboard.press("Tab")
        if page.locator(":focus").get_attribute("href") == "./glossary.html":
            break
    outline = page.locator(":focus").evaluate("node => getComputedStyle(node).outlineStyle")
    assert outline != "none", "it is seen where one is"
    page.keyboard.press("Enter")
    page.wait_for_url(f"{site.server}glossary.html")


@pytest.mark.parametrize(
    ("page", "scheme"),
    [
        ("index.html", "light"),
        ("ko/index.html", "dark"),
        pytest.param("lessons/sqrt.html", "dark", marks=pytest.mark.long),
        ("figures.html", "light"),
        ("tutorials/training.html", "light"),
    ],
)
def test_the_rules_of_accessibility_hold(site: ServedPages, page: str, scheme: str) -> None:
    shown = opened(site, page, color_scheme=scheme)
    # The builder's script puts each button that copies into a `nav` of its own, all without a name.
    found = [one for one in Axe().run(shown).response["violations"] if one["id"] != "landmark-unique"]
    assert [(one["id"], [node["html"][:120] for node in one["nodes"]][:3]) for one in found] == []
