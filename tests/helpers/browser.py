"""Pages in Debian's Chromium: what they show, pixel by pixel, and whether they are quiet.

Its fixtures are there for every file of tests; matplotlib and Playwright are imported only where they are used.
"""

import io
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


# A copy is read: Chromium remarks on a canvas that is read twice.
READ_CANVAS = """canvas => {
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
    copy.drawImage(canvas, 0, 0);
    return [canvas.height, canvas.width, [...copy.getImageData(0, 0, canvas.width, canvas.height).data]];
}"""


# Of one file of tests: while Playwright lives, nothing else on its thread can run an event loop.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium under Playwright."""
    executable = shutil.which("chromium")
    if executable is None:
        pytest.skip("NO CHROMIUM: the pages were NOT checked in a browser (apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield chromium
        chromium.close()


class Pages:
    """Pages that are watched: what they say, ask of the network, or interrupt with."""

    def __init__(self, browser: Any, folder: Path):
        self.browser, self.folder = browser, folder
        self.contexts: list[Any] = []
        self.troubles: list[str] = []
        self.requests: list[str] = []

    def open(self, html: str, ready: str = "html[data-ready]", at: str = "", **how: Any) -> Any:
        """Open a document as a file, without a network. ready: what is there when it is drawn. at: behind the #."""
        path = self.folder / f"page-{len(self.contexts)}.html"
        path.write_text(html, encoding="utf-8")
        return self.visit(path.as_uri() + at, ready, offline=True, **how)

    def visit(self, address: str, ready: str = "html[data-ready]", width: int = 1280, **how: Any) -> Any:
        """Open an address in a window of its own."""
        how = {"color_scheme": "light", "locale": "en-GB", **how}
        context = self.browser.new_context(viewport={"width": width, "height": 900}, reduced_motion="reduce", **how)
        self.contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)  # a busy machine may let a new window wait
        page.on("console", lambda message: self.troubles.append(message.text))
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("dialog", lambda dialog: (self.troubles.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(address)
        page.wait_for_selector(ready, state="attached")
        page.evaluate("for (const more of document.querySelectorAll('#how, #options')) more.open = true")
        return page

    @property
    def foreign(self) -> list[str]:
        """Requests for anything but the files that were opened, and scripts that a page makes for its worker."""
        own = (f"{self.folder.as_uri()}/page-", "blob:")
        return [address for address in self.requests if not address.startswith(own)]


class ServedPages(Pages):
    """Pages that may ask the one server they come from."""

    def __init__(self, browser: Any, folder: Path, server: str):
        super().__init__(browser, folder)
        self.server = server

    @property
    def foreign(self) -> list[str]:
        own = (self.server, "blob:")
        return [address for address in self.requests if not address.startswith(own)]


@pytest.fixture
def pages(browser: Any, tmp_path: Path) -> Iterator[Pages]:
    """Open documents; at the end no message, error, dialog or request may have come up."""
    watched = Pages(browser, tmp_path)
    yield watched
    for context in watched.contexts:
        context.close()
    assert (watched.troubles, watched.foreign) == ([], [])


def read_pixels(source: Any) -> numpy.ndarray:
    """Take an image of an element or of the page as numbers 0..255: row, column, red green blue."""
    return decode_png(source.screenshot())


def decode_png(data: bytes) -> numpy.ndarray:
    """Return an image as numbers 0..255: row, column, red green blue."""
    from matplotlib import image

    return numpy.round(255 * image.imread(io.BytesIO(data))[..., :3]).astype(int)


def read_cells(locator: Any, rows: int, columns: int) -> numpy.ndarray:
    """Return the colour in the middle of each cell of a map."""
    pixels = read_pixels(locator)
    height, width = pixels.shape[0] / rows, pixels.shape[1] / columns
    return numpy.array(
        [[pixels[int((r + 0.5) * height), int((c + 0.5) * width)] for c in range(columns)] for r in range(rows)]
    )


def canvas_bytes(page: Any, place: int = 0) -> numpy.ndarray:
    """The pixels of a map's canvas, one for each cell: row, column, red green blue alpha."""
    rows, columns, numbers = page.locator(".field canvas").nth(place).evaluate(READ_CANVAS)
    return numpy.array(numbers).reshape(rows, columns, 4)


IMAGE = ".image-field"
"""Where the explorer shows the image of a run that sees or paints."""


def image_pixels(page: Any, name: str) -> numpy.ndarray:
    """The pixels of a canvas over the image: row, column, red green blue alpha."""
    rows, columns, numbers = page.locator(f"{IMAGE} canvas.{name}").evaluate(READ_CANVAS)
    return numpy.array(numbers).reshape(rows, columns, 4)


def middle_of_patch(page: Any, row: int, column: int, rows: int, columns: int) -> tuple[float, float]:
    """The middle of a patch of the image, on the screen."""
    page.locator(IMAGE).scroll_into_view_if_needed()
    area = page.locator(IMAGE).bounding_box()
    return area["x"] + area["width"] * (column + 0.5) / columns, area["y"] + area["height"] * (row + 0.5) / rows


STOPS = {0: "cfdbe8", 4: "f8f6f0", 5: "fbd7a1", 6: "ee9a3a", 7: "b9540c", 8: "591c02"}
"""Colours by day at so many octaves above 1/16 of the even share."""
DARK_STOPS = {0: "0d1c2b", 4: "262b30", 5: "5f4516", 6: "ad701a", 7: "f0a63c", 8: "fff0c9"}


def colours_at(places: Any, scheme: str = "light") -> numpy.ndarray:
    """The colours at places of the scale, 0 to 1, as straight lines of sRGB between its stops."""
    stops = DARK_STOPS if scheme == "dark" else STOPS
    channels = [[int(stop[at : at + 2], 16) for stop in stops.values()] for at in (0, 2, 4)]
    octaves = 8 * numpy.clip(numpy.array(places), 0, 1)
    return numpy.stack([numpy.interp(octaves, list(STOPS), channel) for channel in channels], -1)


def assert_colours(found: numpy.ndarray, weights: Any, keys: Any = None, scheme: str = "light") -> None:
    """Compare with the scale of the even share. keys: that each query may see (default: all columns)."""
    weights = numpy.array(weights)
    times = weights * (weights.shape[-1] if keys is None else numpy.array(keys))
    places = (numpy.log2(numpy.maximum(times, 1e-30)) + 4) / 8
    assert numpy.abs(found - colours_at(places, scheme)).max() <= 4


def assert_linear_colours(found: numpy.ndarray, shares: Any) -> None:
    """Compare with the scale from 0 to 1, the upper half of the colours."""
    assert numpy.abs(found - colours_at((1 + numpy.array(shares)) / 2)).max() <= 4


def assert_cover(page: Any, shares: Any) -> None:
    """The cover of an image is as opaque as its weights are large: what is faint has few steps."""
    cover, shares = image_pixels(page, "cover"), numpy.array(shares)
    assert numpy.abs(cover[..., 3] - 255 * shares).max() <= 2
    seen = cover[..., :3] * cover[..., 3:] / 255
    assert numpy.abs(seen - colours_at((1 + shares) / 2) * shares[..., None]).max() <= 8


def until(page: Any, is_so: Callable[[], bool], milliseconds: int = 20_000) -> None:
    """Wait for the page to become so."""
    for _ in range(milliseconds // 50):
        if is_so():
            return
        page.wait_for_timeout(50)
    assert is_so()


def assert_count(found: Any, count: int) -> None:
    """Expect so many elements, and wait for them: a page draws a section a moment after it is opened."""
    from playwright.sync_api import expect

    expect(found).to_have_count(count, timeout=20_000)


def read_change(text: str) -> float | None:
    """What a page says that edits changed in the log-probability, in nats a token; None until it says so."""
    found = re.search(r"Log-probability of [^:]+: (\S+) nats", text)
    return float(found[1].replace("−", "-")) if found else None


def change_in(effect: Mapping[str, Any]) -> Any:
    """The same of the payload of an effect, to three decimals."""
    log = effect["log_probability"]
    return pytest.approx((log["after"] - log["before"]) / len(effect["tokens"]), rel=6e-3, abs=6e-4)
