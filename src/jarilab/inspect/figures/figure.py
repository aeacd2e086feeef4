"""A figure for a paper: an area in centimetres to draw on, written as SVG, PDF or PNG.

matplotlib arranges what is drawn. `fit` then prints as many names as have room, and fits the height to the content.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jarilab.core.errors import UserError, import_optional
from jarilab.core.storage.files import write_bytes
from jarilab.inspect.figures.style import HATCH, MIN_FONT_SIZE, FigureStyle, Fonts, printable

INCH = 2.54
POINT = INCH / 72
LINE = 1.25
"""Height of a line, in font sizes."""
MAX_HEIGHT = 23.0
"""Centimetres of a printed page that a figure without a given height may fill."""
RESOLUTION = 600
"""Pixels an inch of a map in a vector file."""
MIN_DPI, MAX_DPI = 10, 2400
BAR_LENGTH, BAR_HEIGHT = 4.0, 0.22
PADDING = 0.08
"""Centimetres around axes."""
MARGIN = 0.06
"""Centimetres that letters may reach over the edge."""
FORMATS = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}
"""Endings of files, and what keeps the date out of their metadata."""


class Figure:
    """A drawing of exact size. A notebook displays it, and `save` writes it.

    options: see `FigureStyle`. texts: all texts that it will have, by which fonts are chosen. height: of the figure in
    centimetres, where it does not follow from the width of the content.
    Raises UserError without matplotlib, for unknown options, and for letters that no installed font has.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        texts: Iterable[str],
        *,
        height: float | None = None,
    ):
        self.style = FigureStyle.of(options)
        title = printable(" ".join(self.style.title.split()) or " ").strip("␣")
        self._fonts = Fonts.of(self.style.font, [*texts, title])
        self._fits_content = self.style.height is None and height is None
        self._names: list[tuple[Any, str, Sequence[str]]] = []
        self._bar: tuple[Any, str] | None = None
        self._legend_height = self._side = 0.0
        tall = self.style.height or min(MAX_HEIGHT, height or MAX_HEIGHT)
        library = import_optional("matplotlib.figure", "figures")
        with self.context():
            size = self.style.width / INCH, tall / INCH
            self.canvas = library.Figure(size, dpi=288, layout="constrained")
            self._has_title = bool(title)
            if title:
                self.canvas.suptitle(title)

    @property
    def size(self) -> tuple[float, float]:
        """Width and height, in centimetres."""
        width, height = self.canvas.get_size_inches()
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
        suffix = suffix.lower()
        if suffix not in FORMATS:
            raise UserError(
                f"expected a file name that ends in {', '.join(FORMATS)}, got the ending {suffix!r}; "
                "name the file such as attention.svg"
            )
        if not MIN_DPI <= dpi <= MAX_DPI:
            raise UserError(
                f"expected dpi from {MIN_DPI} to {MAX_DPI} pixels an inch, got {dpi}; journals ask for 300 or 600"
            )
        outlines = self._outline() if suffix == ".pdf" else []
        buffer = io.BytesIO()
        with self.context():
            self.canvas.savefig(
                buffer,
                format=suffix[1:],
                dpi=dpi if suffix == ".png" else RESOLUTION,
                metadata=FORMATS[suffix],
                transparent=self.style.transparent,
            )
        for text in outlines:
            text.set_path_effects([])
        return buffer.getvalue()

    def _outline(self) -> list[Any]:
        """Make outlines of the texts whose fonts a PDF file cannot hold."""
        texts = self.canvas.findobj(import_optional("matplotlib.text", "figures").Text)
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

    @property
    def line(self) -> float:
        """Height of a line of text, in centimetres."""
        return self.style.font_size * LINE * POINT

    def width_of(self, texts: Sequence[str], size: int | float | None = None) -> float:
        """Width of the widest text, in centimetres."""
        widths = [0.0]
        for text in dict.fromkeys(texts):
            artist = self.canvas.text(0, 0, text, size=size or self.style.font_size)
            widths.append(artist.get_window_extent().width / self.canvas.dpi * INCH)
            artist.remove()
        return max(widths)

    def cells(
        self, rows: Sequence[str], columns: Sequence[str], titles: tuple[str, str], *, on_top: bool
    ) -> Any:
        """Axes with a unit square for each row and column, named beside them. titles: of rows and columns."""
        axes = self.canvas.subplots()
        axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5), aspect="equal")
        axes.set(ylabel=titles[0], xlabel=titles[1])
        if on_top:
            axes.xaxis.tick_top()
            axes.xaxis.set_label_position("top")
        self.name(axes, "y", rows)
        self.name(axes, "x", columns)
        return axes

    def name(self, axes: Any, axis: str, names: Sequence[str]) -> None:
        """Print names at 0, 1, 2, ... of an axis, `x` or `y`, once `fit` has found out how many have room."""
        self._names.append((axes, axis, names))

    def hatch(self, axes: Any, extent: tuple[float, float, float, float]) -> None:
        """Hatch an area, left, right, bottom and top, behind images."""
        left, right, bottom, top = extent
        patches = import_optional("matplotlib.patches", "figures")
        area = patches.Rectangle((left, top), right - left, bottom - top, **_HATCHED, zorder=-1)
        axes.add_patch(area)

    def add_bar(self, image: Any, name: str, blank: str = "") -> None:
        """Add the colour scale of an image with its name, and what hatched cells mean, below the axes."""
        self._bar = image, name
        if blank:
            patches = import_optional("matplotlib.patches", "figures")
            self.add_legend([patches.Patch(**_HATCHED | {"linewidth": 0.5})], [blank])

    def add_legend(self, handles: Sequence[Any], names: Sequence[str], title: str = "") -> None:
        """Explain signs at the lower edge, in as many columns as fit."""
        column = self.width_of(names) + 5 * self.style.font_size * POINT
        columns = max(1, min(len(names), int(self.style.width / column)))
        rows = -(-len(names) // columns) + bool(title)
        self._legend_height = (1.25 * rows + 0.5) * self.line
        where = {"loc": "lower center", "ncols": columns, "title": title or None}
        self.canvas.legend(handles, names, borderaxespad=0.2, **where)

    @property
    def _below(self) -> float:
        """Height of the legend and the colour scale, in centimetres."""
        bar = 0.0 if self._bar is None else BAR_HEIGHT + 2.8 * self.line
        return self._legend_height + bar

    def fit(self, max_cell: float) -> float:
        """Print the names, and fit the height to the content. Returns the distance of columns, in centimetres.

        max_cell: the largest one. Raises UserError if there is no room.
        """
        first, cell = self.canvas.axes[0], max_cell
        for turn in range(5):  # the room for cells depends on the names, and the names on the cells
            self._lay_out()
            for axes, axis, names in self._names:
                cell = self._print_names(axes, axis, names)
                if axis == "x" and cell > 1.01 * max_cell:
                    self._side += (cell - max_cell) * len(names) / 2
            # A title beside a map of few rows needs cells that are higher than wide.
            title = self.width_of([first.get_ylabel()]) + 2 * MARGIN
            beside = first.get_window_extent().height / self.canvas.dpi * INCH
            if turn == 1 and first.get_aspect() != "auto" and beside < title:
                first.set_aspect(first.get_aspect() * title / beside)
            if self._fits_content and turn > 1:
                # matplotlib leaves what is around square cells as it is.
                rows = first.get_subplotspec().get_gridspec().nrows
                row = first.get_tightbbox().height / self.canvas.dpi * INCH + 2 * PADDING
                height = rows * row + self._below + (1.5 * self.line if self._has_title else 0)
                self.canvas.set_figheight(height / INCH)
        if self._bar is not None:
            image, name = self._bar
            (width, height), length = self.size, min(BAR_LENGTH, 0.7 * self.style.width)
            where = (width - length) / 2 / width, self._legend_height + 2.4 * self.line
            where = where[0], where[1] / height, length / width, BAR_HEIGHT / height
            bar = self.canvas.colorbar(
                image, cax=self.canvas.add_axes(where), orientation="horizontal", label=name
            )
            bar.solids.set_rasterized(True)  # viewers draw gaps between the colours of vectors
            bar.ax.tick_params(length=2, width=0.5, pad=1.5)
        self._lay_out()
        content, (width, height) = self.canvas.get_tightbbox(), self.canvas.get_size_inches()
        outside = max(-content.x0, -content.y0, content.x1 - width, content.y1 - height)
        if outside * INCH > MARGIN:
            raise self._no_room()
        return cell

    def _print_names(self, axes: Any, axis: str, names: Sequence[str]) -> float:
        """Print the names of an axis, or every second or third with a tick; returns their distance in centimetres."""
        box, dpi = axes.get_window_extent(), self.canvas.dpi
        length = box.width if axis == "x" else box.height
        start, end = axes.get_xlim() if axis == "x" else axes.get_ylim()
        cell = float(length / abs(end - start)) / dpi * INCH
        fitting = cell / POINT / LINE
        size = min(self.style.font_size, max(MIN_FONT_SIZE, fitting))
        every = max(1, -int(-size // fitting)) if fitting < size else 1
        getattr(axes, f"set_{axis}ticks")(range(0, len(names), every), names[::every])
        is_rotated = axis == "x" and self.width_of(names, size) > 0.9 * cell * every
        ticks = {"length": 1.5 if every > 1 else 0, "width": 0.5, "labelsize": size}
        axes.tick_params(axis, labelrotation=90 if is_rotated else 0, **ticks)
        return cell

    def _lay_out(self) -> None:
        width, height = self.size
        side, below = self._side / width, self._below / height
        if below > 0.9:
            raise self._no_room()
        self.canvas.get_layout_engine().set(rect=(side, below, 1 - 2 * side, 1 - below))
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*collapsed to zero")
            try:
                self.canvas.draw_without_rendering()
            except UserWarning:
                raise self._no_room() from None

    def _no_room(self) -> UserError:
        width, height = self.size
        return UserError(
            f"the drawing has no room in {width:g} x {height:.3g} centimetres; give a larger width and height, a "
            "smaller font_size or shorter names, or draw less"
        )


_HATCHED = {"fill": False, "hatch": "/////", "linewidth": 0, "edgecolor": HATCH}
