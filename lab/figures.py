"""What the experiments' figures share: colours that differ in grey too, and the way to a PNG."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Okabe & Ito's colours: told apart by colour-blind readers, and of different lightness.
BLACK, BLUE, ORANGE, GREEN, RED, PURPLE, SKY = (
    "black",
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
)

# Background, necrosis, oedema, non-enhancing and enhancing tumour: the paper's hues, ever lighter
# from necrosis over non-enhancing tumour and oedema to enhancing tumour.
LABEL_COLOURS = ("#f2f2f2", "#8c2d2f", "#6fbf73", "#4c72b0", "#f0dc50")


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches, which draws without a screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_png(figure: Figure, file: IO[bytes]) -> None:
    """Write a figure; the same figure gives the same bytes."""
    figure.savefig(file, format="png", dpi=150, metadata={"Software": None})
