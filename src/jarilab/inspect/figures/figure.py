"""A figure for a paper: an area in centimetres to draw on, written as SVG, PDF or PNG."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from jarilab.core.errors import UserError, import_optional
from jarilab.core.storage.files import write_bytes
from jarilab.inspect.figures.style import MIN_FONT_SIZE, FigureStyle, Fonts, printable

INCH = 2.54
POINT = INCH / 72
LINE = 1.25
"""Height of a line, in font sizes."""
MIN_CELL = 0.005
MAX_HEIGHT = 23.0
"""Centimetres of a printed page that a figure without a given height may fill."""
RESOLUTION = 600
"""Pixels an inch of a map, at least approximately."""
MIN_DPI, MAX_DPI = 10, 2400
BAR_LENGTH, BAR_HEIGHT, GAP = 3.0, 0.22, 0.2
FORMATS = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}
"""Endings of files, and what keeps the date out of their metadata."""
INK, HATCH = "#1e2328", "#b5b2a8"


class Figure:
    """A drawing of exact size. A notebook displays it, and `save` writes it.

    style: size, letters and background. texts: all texts that it will have, by which fonts are chosen.
    Raises UserError without matplotlib, and for letters that no installed font has.
    """

    def __init__(self, style: FigureStyle, texts: Iterable[str]):
        self.style = style
        self._title = printable(" ".join(style.title.split()) or " ").strip("␣")
        self._fonts = Fonts.of(style.font, [*texts, self._title])
        library = import_optional("matplotlib.figure", "figures")
        with self.context():
            self._figure = library.Figure((style.width / INCH, 1), dpi=288)
        agg = import_optional("matplotlib.backends.backend_agg", "figures")
        self._renderer = agg.FigureCanvasAgg(self._figure).get_renderer()

    @property
    def size(self) -> tuple[float, float]:
        """Width and height, in centimetres."""
        width, height = self._figure.get_size_inches()
        return float(width) * INCH, float(height) * INCH

    def save(self, path: str | Path, dpi: int | float = 300) -> Path:
        """Write an SVG, PDF or PNG file, by the ending of its name, and return its path.

        dpi: pixels an inch of a PNG file. Raises UserError for another ending and for a file that cannot be written.
        """
        path = Path(path)
        write_bytes(path, self.to_bytes(path.suffix, dpi))
        return path

    def to_bytes(self, suffix: str, dpi: int | float = 300) -> bytes:
        """The file with this ending. Equal figures give equal bytes on one machine."""
        metadata = FORMATS.get(suffix.lower())
        if metadata is None:
            raise UserError(
                f"expected a file name that ends in {', '.join(FORMATS)}, got the ending {suffix!r}; "
                "name the file such as attention.svg"
            )
        if not MIN_DPI <= dpi <= MAX_DPI:
            raise UserError(
                f"expected dpi from {MIN_DPI} to {MAX_DPI} pixels an inch, got {dpi}; journals ask for 300 or 600"
            )
        outlines: list[Any] = []
        if suffix.lower() == ".pdf":
            outlines = self._outline()
        buffer = io.BytesIO()
        with self.context():
            self._figure.savefig(
                buffer,
                format=suffix[1:].lower(),
                dpi=dpi,
                metadata=metadata,
                transparent=self.style.transparent,
            )
        for text in outlines:
            text.set_path_effects([])
        return buffer.getvalue()

    def _outline(self) -> list[Any]:
        """Make outlines of the texts whose fonts a PDF file cannot hold."""
        texts = self._figure.findobj(import_optional("matplotlib.text", "figures").Text)
        outlined = [text for text in texts if self._fonts.outlined & set(text.get_text())]
        effects = import_optional("matplotlib.patheffects", "figures")
        for text in outlined:
            text.set_path_effects([effects.Normal()])
        return outlined

    def _repr_png_(self) -> bytes:
        return self.to_bytes(".png", 150)

    # Drawing ------------------------------------------------------------------------------------------------------

    def context(self) -> Any:
        """Settings of matplotlib within which everything is drawn."""
        return self.style.context(self._fonts.families)

    def line(self, size: int | float | None = None) -> float:
        """Height of a line of text, in centimetres."""
        return (self.style.font_size if size is None else size) * LINE * POINT

    def width_of(self, texts: Sequence[str], size: int | float | None = None) -> float:
        """Width of the widest text, in centimetres."""
        widths = [0.0]
        for text in dict.fromkeys(texts):
            artist = self._figure.text(0, 0, text, size=size or self.style.font_size)
            extent = artist.get_window_extent(self._renderer)
            widths.append(float(extent.width) / self._figure.dpi * INCH)
            artist.remove()
        return max(widths)

    @property
    def space(self) -> float:
        """Height that content may have, in centimetres."""
        return (self.style.height or MAX_HEIGHT) - self._title_height

    @property
    def _title_height(self) -> float:
        return self.line() + GAP if self._title else 0.0

    def check_fits(self, cell: float, content: str) -> None:
        """Raises UserError if the cells of a content, in centimetres, are too small to draw."""
        if cell < MIN_CELL:
            raise UserError(
                f"{content} has no room in {self.style.width:g} x {self.space:.3g} centimetres; give a larger width "
                "and height, a smaller font_size or shorter names, or draw less"
            )

    def begin(self, content: float) -> float:
        """Set the height and print the title; returns where content of that height begins, in centimetres."""
        height = self.style.height or content + self._title_height
        self._figure.set_size_inches(self.style.width / INCH, height / INCH)
        top = self._title_height + (height - self._title_height - content) / 2
        if self._title:
            self.text(self.style.width / 2, GAP / 2, self._title, ha="center")
        return top

    def axes(self, x: float, y: float, width: float, height: float) -> Any:
        """Axes without ticks whose left upper corner is at x, y, in centimetres from that of the figure."""
        across, down = self.size
        axes = self._figure.add_axes(
            (x / across, 1 - (y + height) / down, width / across, height / down)
        )
        axes.set_xticks([])
        axes.set_yticks([])
        axes.patch.set_visible(False)
        for spine in axes.spines.values():
            spine.set_color(INK)
        return axes

    def text(self, x: float, y: float, text: str, **options: Any) -> None:
        """Text whose left upper corner is at x, y, in centimetres."""
        across, down = self.size
        placed = {"va": "top", "ha": "left", "color": INK, **options}
        self._figure.text(x / across, 1 - y / down, text, **placed)

    @cached_property
    def sheet(self) -> Any:
        """Axes over the figure, behind all others, whose unit is the centimetre, with y downwards."""
        width, height = self.size
        axes = self.axes(0, 0, width, height)
        axes.set(xlim=(0, width), ylim=(height, 0), zorder=-1)
        axes.set_axis_off()
        return axes

    def picture(
        self,
        colours: np.ndarray,
        x: float,
        y: float,
        width: float,
        height: float,
        frame: int | float = 0,
    ) -> None:
        """An image `(rows, columns, 3 or 4)` in centimetres. frame: width of its frame, in points."""
        # Programs that smooth what they enlarge blur an image of few pixels.
        sides = zip((height, width), colours.shape, strict=False)
        down, across = (max(1, round(side / INCH * RESOLUTION / count)) for side, count in sides)
        image = colours.repeat(down, 0).repeat(across, 1)
        where = (x, x + width, y + height, y)
        limits = self.sheet.axis()
        # matplotlib lowers the case: vector files then hold the pixels themselves.
        self.sheet.imshow(image, extent=where, aspect="auto", interpolation="None")
        self.sheet.axis(limits)
        if frame:
            self._rectangle(x, y, width, height, lw=frame, ec=INK, zorder=2)

    def hatch(
        self, x: float, y: float, width: float, height: float, *, dense: bool = False
    ) -> None:
        """Hatch an area, in centimetres, behind images."""
        lines = "/" * (9 if dense else 5)
        self._rectangle(x, y, width, height, hatch=lines, lw=0, ec=HATCH, zorder=-1)

    def _rectangle(self, x: float, y: float, width: float, height: float, **look: Any) -> None:
        patches = import_optional("matplotlib.patches", "figures")
        self.sheet.add_patch(patches.Rectangle((x, y), width, height, fill=False, **look))

    def label_size(self, distance: float) -> tuple[int | float, int]:
        """The font size of labels that are `distance` centimetres apart, and of how many labels one is printed."""
        fitting = distance / POINT / LINE
        size = min(self.style.font_size, max(MIN_FONT_SIZE, fitting))
        return size, max(1, -int(-size // fitting)) if fitting < size else 1
