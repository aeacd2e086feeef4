"""Size, background and fonts of a figure for a paper."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jarilab.core.errors import UserError, import_optional, unknown
from jarilab.inspect.explain.steps import visible

MIN_FONT_SIZE = 5
"""Points. Journals take no smaller letters."""
INK, HATCH = "#1e2328", "#b5b2a8"
MAX_LETTERS = 16
"""Letters of a token name; a longer one is cut."""
DEFAULT_FONT = "DejaVu Sans"
TEXT = str(None).lower()
"""Text that stays text in SVG. The literal would be the name of an encoding, which no other package may have."""
FONTS = (
    *("NanumGothic", "Noto Sans KR", "Malgun Gothic", "Apple SD Gothic Neo", "Noto Sans CJK KR"),
    *("Noto Sans CJK JP", "Noto Sans CJK SC", "Arial Unicode MS"),
)
"""Fonts that are tried first for letters that the figure's font lacks."""


@dataclass(frozen=True)
class FigureStyle:
    """Size, letters and background of a figure.

    width, height: in centimetres; without a height, it fits the content. font_size: in points; labels may be smaller,
    to MIN_FONT_SIZE. font: a family or a font file. title: printed above. transparent: no white background.
    Raises UserError for a size that cannot be drawn.
    """

    width: int | float = 8.5
    height: int | float | None = None
    font_size: int | float = 8
    font: str = DEFAULT_FONT
    title: str = ""
    transparent: bool = False

    def __post_init__(self) -> None:
        limits = {"width": (3, 100), "height": (2, 100), "font_size": (MIN_FONT_SIZE, 40)}
        for name, (low, high) in limits.items():
            value = vars(self)[name]
            if value is None and name == "height":
                continue
            if (
                isinstance(value, int | float)
                and not isinstance(value, bool)
                and low <= value <= high
            ):
                continue
            unit = "points" if name == "font_size" else "centimetres"
            raise UserError(
                f"expected {name} from {low:g} to {high} {unit}, got {value!r}; a column of a journal is about 8.5 "
                "centimetres wide, a page 17.5, and letters have 6 to 9 points"
            )

    @staticmethod
    def of(options: Mapping[str, Any]) -> FigureStyle:
        """The style with these options. Raises UserError for an unknown option."""
        names = [field.name for field in dataclasses.fields(FigureStyle)]
        for name in options:
            if name not in names:
                raise unknown("option of figures", name, names)
        return FigureStyle(**options)

    def context(self, families: list[str]) -> AbstractContextManager[Any]:
        """Settings of matplotlib that depend on no file of the user's."""
        style = import_optional("matplotlib.style", "figures")
        settings = {
            "font.family": families,
            "font.size": self.font_size,
            "axes.linewidth": 0.5,
            "axes.edgecolor": INK,
            "axes.labelcolor": INK,
            "text.color": INK,
            "xtick.color": INK,
            "ytick.color": INK,
            "axes.labelsize": "medium",
            "figure.titlesize": "medium",
            "figure.labelsize": "medium",
            "legend.frameon": False,
            "hatch.linewidth": 0.5,
            # Vector files hold each map as an image of its own, whose cells have sharp edges.
            "image.composite_image": False,
            "image.interpolation": "nearest",
            "figure.constrained_layout.h_pad": 0.031,
            "figure.constrained_layout.w_pad": 0.031,
            "svg.fonttype": TEXT,
            "svg.hashsalt": "jarilab",
            "pdf.fonttype": 42,
            "text.parse_math": False,
            "text.hinting": "no_hinting",
        }
        return style.context(["default", settings])


def printable(text: str) -> str:
    """A text with signs for invisible letters."""
    # DejaVu Sans has no control pictures.
    return "".join(f"‹{ord(c) - 0x2400:X}›" if "␀" <= c <= "␟" else c for c in visible(text))


def label(token: str) -> str:
    """A token name as it can be drawn: invisible letters as signs, long names cut."""
    letters = printable(token)
    return letters if len(letters) <= MAX_LETTERS else letters[: MAX_LETTERS - 1] + "…"


@dataclass(frozen=True)
class Fonts:
    """The font families of a figure, and the letters of fonts that PDF files cannot embed as text."""

    families: list[str]
    outlined: frozenset[str]

    @staticmethod
    def of(font: str, texts: Iterable[str]) -> Fonts:
        """Fonts that have all letters. Raises UserError for an unknown font, and if no installed font has a letter."""
        manager = import_optional("matplotlib.font_manager", "figures").fontManager
        if Path(font).is_file():
            font = _added(font, manager)
        # The face of each family whose weight is closest to normal.
        upright = [face for face in manager.ttflist if face.style == "normal"]
        faces = {face.name: face for face in sorted(upright, key=_boldness, reverse=True)}
        if font not in faces:
            raise UserError(
                f"expected a font that is installed, or a font file, got {font!r}; leave font out for {DEFAULT_FONT}"
            )
        preferred = [name for name in FONTS if name in faces]
        others = sorted(name for name in faces if not name.startswith("Last Resort"))
        missing = set("".join(texts)) - {" "}
        families, outlined = [], set()
        for name in dict.fromkeys([font, *preferred, *others]):
            letters = _letters(faces[name], missing)
            if letters or name == font:
                families.append(name)
                missing -= letters
                if letters and _is_postscript(faces[name]):
                    outlined |= letters
            if not missing:
                return Fonts(families, frozenset(outlined))
        raise UserError(
            f"no installed font has the letters {''.join(sorted(missing))[:20]}; install a font that does, such as "
            "NanumGothic or Noto Sans CJK for Korean, or name its file: font='NanumGothic.ttf'"
        )


def _added(file: str, manager: Any) -> str:
    """The family of a font file, which matplotlib knows from now on."""
    try:
        manager.addfont(file)
    except (RuntimeError, OSError) as error:
        raise UserError(
            f"expected a font file, got {file}, which cannot be read ({error}); give a .ttf or .otf file"
        ) from None
    return manager.ttflist[-1].name


def _boldness(face: Any) -> tuple[int, str]:
    """How far the weight of a font is from normal; its file decides between equal ones."""
    return abs(face.weight - 400) if isinstance(face.weight, int) else 300, face.fname


def _letters(face: Any, letters: set[str]) -> set[str]:
    manager = import_optional("matplotlib.font_manager", "figures")
    path = getattr(manager, "FontPath", None)
    font = manager.get_font(path(face.fname, face.index) if path else face.fname)
    return {letter for letter in letters if font.get_char_index(ord(letter))}


def _is_postscript(face: Any) -> bool:
    """Whether a font has PostScript outlines, which matplotlib embeds in PDF files as if they were TrueType."""
    library = import_optional("fontTools.ttLib", "figures")  # which matplotlib depends on
    with library.TTFont(face.fname, fontNumber=getattr(face, "index", 0), lazy=True) as font:
        return "glyf" not in font
