"""How figures look: names, colours and dashes, sizes on paper, and how a figure is made and saved.

Sizes on paper are inches from the figure's upper left corner, so that text never shares space with axes. matplotlib
is imported inside functions, without pyplot and under its own defaults: a notebook's figures and style stay as
they are, and equal curves give equal bytes.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagegram_io.output import new_path
from pagegram_io.sizes import format_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CurveKey = tuple[str, int | None, int | None]  # layout, slots, variant: table_params, or cache_bytes of a device

# Okabe and Ito's palette: told apart with any common colour blindness. Its yellow is too pale for lines on white.
COLOURS: dict[tuple[str, int | None], str] = {
    ("none", None): "#7F7F7F",
    ("flat", None): "#000000",
    ("engram", None): "#D55E00",
    ("pagegram", 1): "#56B4E9",
    ("pagegram", 4): "#0072B2",
    ("pagegram", 15): "#009E73",
}
OTHER_COLOURS = ("#CC79A7", "#E69F00", "#882255", "#999933", "#44AA99")
NAMES = {"none": "no memory", "flat": "flat", "engram": "Engram-style", "pagegram": "PageGram"}
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.2, 1.4)), (0, (7, 2, 1.4, 2)), (0, (11, 2.5)))  # points
INK = "#333333"
FONT_PT = 8.0
WIDTH_IN = 7.0
LEFT_IN = 0.62
LINE_IN = 0.15  # one line of a caption
AXIS_IN = 0.54  # tick labels and axis label under a panel
HEADING_IN = 0.36  # above a panel
KEY_IN = 0.18  # the key of the table sizes, where it does not fit beside the heading
DPI = 300


def curve_order(key: CurveKey) -> tuple[Any, ...]:
    """Sort key: our layouts first, in the order of the tables, then others by name."""
    layout, slots, params = key
    known = list(NAMES)
    return (known.index(layout) if layout in known else len(known), layout, slots or 0, params or 0)


class Styles:
    """Colour by layout, dashes and width by variant, for all the curves of one panel.

    Variants of a layout are table sizes, or what ``variant_name`` names.
    """

    def __init__(self, keys: Iterable[CurveKey], variant_name: Callable[[int], str] = format_count) -> None:
        self.variant_name = variant_name
        spare = itertools.cycle(OTHER_COLOURS)
        ordered = sorted(set(keys), key=curve_order)
        self._colours: dict[tuple[str, int | None], str] = {}
        for layout, slots, _ in ordered:
            if (layout, slots) not in self._colours:
                self._colours[layout, slots] = COLOURS.get((layout, slots)) or next(spare)
        self.sizes = sorted({params for _, _, params in ordered if params is not None}, reverse=True)

    @property
    def key_in(self) -> float:
        """The extra room above a panel for the key of the table sizes."""
        return KEY_IN if len(self.sizes) > 3 else 0.0

    def colour(self, key: CurveKey) -> str:
        return self._colours[key[0], key[1]]

    def dashes(self, params: int | None) -> dict[str, Any]:
        rank = self.sizes.index(params) if params is not None else 0
        return {"linestyle": DASHES[rank % len(DASHES)], "linewidth": max(1.3 - 0.15 * rank, 0.9)}

    def line(self, key: CurveKey) -> dict[str, Any]:
        """Layouts drawn first get wider lines, so that all the colours show where curves lie on one another."""
        style = self.dashes(key[2])
        later = len(self._colours) - 1 - list(self._colours).index((key[0], key[1]))
        return {**style, "linewidth": style["linewidth"] + 0.4 * min(later, 4), "color": self.colour(key)}

    def name(self, key: CurveKey) -> str:
        """The layout's name, with its variant where the panel holds several."""
        layout, slots, params = key
        name = NAMES.get(layout, printable(layout)) + (f" S={slots}" if slots is not None else "")
        return f"{name}, {self.variant_name(params)}" if len(self.sizes) > 1 and params is not None else name


@contextmanager
def own_style() -> Iterator[None]:
    """matplotlib's own defaults and ours, whatever the user's style is: equal records, equal bytes."""
    try:
        import matplotlib
    except ImportError:
        raise ImportError("figures need matplotlib, which is not installed: pip install matplotlib") from None
    style: dict[Any, Any] = {key: value for key, value in matplotlib.rcParamsDefault.items() if key != "backend"}
    style |= {
        "font.family": ["DejaVu Sans"],
        "font.size": FONT_PT,
        "axes.labelsize": FONT_PT,
        "xtick.labelsize": FONT_PT,
        "ytick.labelsize": FONT_PT,
        "legend.fontsize": FONT_PT,
        "lines.scale_dashes": False,
        "axes.linewidth": 0.6,
        "axes.edgecolor": INK,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": "#E3E3E3",
        "grid.linewidth": 0.5,
        "pdf.fonttype": 42,
        "svg.fonttype": "none",
        "svg.hashsalt": "pagegram-io",
        "text.parse_math": False,  # a dollar sign in a file's name is a dollar sign
    }
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a name in another script shows as boxes, no more
        yield


def new_figure(height_in: float) -> Figure:
    """A white figure of WIDTH_IN × height_in inches that no pyplot knows of; use inside `own_style`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: Path, *, force: bool) -> None:
    """Write .png, .svg or .pdf without dates or versions; FileExistsError where the path exists, unless force."""
    suffix = path.suffix.lower()
    metadata: dict[str, dict[str, str | None]] = {
        ".png": {"Software": None},
        ".svg": {"Date": None, "Creator": None},
        ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    }
    with new_path(path, force=force) as temporary:
        figure.savefig(temporary, format=suffix[1:], dpi=DPI, metadata=metadata[suffix])


def put_text(figure: Figure, left_in: float, top_in: float, text: str, **style: Any) -> None:
    """Write text with its baseline top_in below the figure's upper edge."""
    place = (left_in / WIDTH_IN, 1 - top_in / figure.get_figheight())
    figure.text(*place, printable(text), **{"color": INK, **style})


def printable(text: str) -> str:
    """The text with a question mark for what no file can hold: control characters, bytes that are not UTF-8."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
