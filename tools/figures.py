"""The card's pictures: values in, SVG text out, the same bytes for the same values.

No one colour reads well on both a white and a dark page: 4.5:1 on #ffffff needs a luminance of at most 0.18, on #0d1117
at least 0.20. So a picture brings its own ground, is drawn in the light colours, and has a rule for each of them that
replaces it where the reader prefers a dark scheme. Text stays text.
"""

import io
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

COLOURS = {  # in the light scheme -> in the dark scheme
    "ground": ("#ffffff", "#0d1117"),
    "ink": ("#1f2328", "#f0f6fc"),
    "muted": ("#59636e", "#9198a1"),
    "grid": ("#d8dee4", "#30363d"),
    "blue": ("#0969da", "#58a6ff"),
    "orange": ("#bc4c00", "#f0883e"),
    "green": ("#1a7f37", "#3fb950"),
    "purple": ("#8250df", "#bc8cff"),
}
GROUND, INK, MUTED, GRID = (COLOURS[name][0] for name in ("ground", "ink", "muted", "grid"))
SERIES = [COLOURS[name][0] for name in ("blue", "orange", "green", "purple")]
DASHES = ["-", "--", "-.", ":"]  # so that lines differ without colour too
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tools.figures",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "text.color": INK,
    "axes.titlesize": 10,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.facecolor": GROUND,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "figure.facecolor": GROUND,
    "legend.frameon": False,
    "lines.linewidth": 2,
}
WIDTH, HEIGHT = 9.0, 3.3  # inches of 72 units: about as wide as a card's text
BINS, LONG = 40, 50  # LONG: characters, from which on a logarithmic axis helps


def draw_recall(panels: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Panel title -> config -> recall at 1, 2, 3 … candidates, as curves over a logarithmic k."""
    highest = max((max(recall) for curves in panels.values() for recall in curves.values()), default=0)
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure(len(panels))
        for ax, (title, curves) in zip(axes, panels.items(), strict=True):
            for number, (config, recall) in enumerate(curves.items()):
                ranks = np.arange(1, len(recall) + 1)
                ax.plot(ranks, recall, DASHES[number % 4], color=SERIES[number % 4], label=config)
            ax.set(
                title=title,
                xscale="log",
                xlim=(1, None),
                ylim=(0, min(1.02, 1.1 * highest) or 1),
                xlabel="candidates k",
            )
            show_plain_powers(ax)
        axes[0].set_ylabel("recall@k")
        return render(figure, axes[0])


def draw_labels(histograms: Mapping[str, Mapping[int, int]]) -> str:
    """Qrels config -> label -> number of judgments, as bars side by side."""
    labels = sorted({label for histogram in histograms.values() for label in histogram})
    width = 0.8 / len(histograms)
    with matplotlib.rc_context(STYLE):
        figure, (ax,) = new_figure(1)
        for number, (config, histogram) in enumerate(histograms.items()):
            places = np.arange(len(labels)) - 0.4 + width * (number + 0.5)
            counts = [histogram.get(label, 0) for label in labels]
            bars = ax.bar(places, counts, 0.94 * width, color=SERIES[number % 4], label=config)
            ax.bar_label(bars, [f"{count:,}" for count in counts], padding=2, color=INK)
        ax.set_xticks(range(len(labels)), [f"label {label}" for label in labels])
        ax.set_ylabel("judgments")
        ax.grid(axis="x", visible=False)
        ax.margins(y=0.1)
        return render(figure, ax)


def draw_lengths(panels: Mapping[str, Mapping[str, np.ndarray]]) -> str:
    """Panel title -> name -> characters of each text, as outlines of histograms."""
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure(len(panels))
        for ax, (title, named) in zip(axes, panels.items(), strict=True):
            edges = length_bins(np.concatenate(list(named.values())))
            for number, (name, lengths) in enumerate(named.items()):
                counts, _ = np.histogram(np.maximum(lengths, 1), edges)
                filled = np.flatnonzero(counts)
                first, last = (filled[0], filled[-1] + 1) if len(filled) else (0, 1)
                share = 100 * counts[first:last] / max(1, len(lengths))
                style = {"color": SERIES[number % 4], "ls": DASHES[number % 4], "lw": 2}
                ax.stairs(share, edges[first : last + 1], label=name, **style)
            ax.set(title=title, xlabel="characters", ylim=(0, None))
            if edges[-1] > LONG:
                ax.set_xscale("log")
                show_plain_powers(ax)
            if len(named) > 1:
                ax.legend(fontsize=9)
        axes[0].set_ylabel("% of texts")
        return render(figure, None)


def length_bins(lengths: np.ndarray) -> np.ndarray:
    """Edges of BINS bins, each a tenth or so longer than the one before; of one character each for short texts."""
    shortest, longest = (max(1, int(of(lengths))) if len(lengths) else 1 for of in (np.min, np.max))
    if longest <= LONG:
        return np.arange(shortest, longest + 2)
    return np.unique(np.rint(np.geomspace(shortest, longest + 1, BINS + 1)))


def new_figure(panels: int) -> tuple[Figure, list[Axes]]:
    """A figure with that many axes side by side, and room under them for labels and a legend."""
    figure = Figure((WIDTH, HEIGHT))
    FigureCanvasSVG(figure)
    axes = figure.subplots(1, panels, squeeze=False)[0]
    figure.subplots_adjust(left=0.07, right=0.985, top=0.92, bottom=0.25, wspace=0.16)
    return figure, list(axes)


def show_plain_powers(ax: Axes) -> None:
    """10,000 and not 10 to the 4th on a logarithmic axis."""
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.xaxis.set_minor_locator(NullLocator())


def render(figure: Figure, legend_of: Axes | None) -> str:
    """The figure as SVG text with the rules for the dark scheme; a legend under it if `legend_of` has series."""
    if legend_of is not None:
        handles, labels = legend_of.get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncols=len(labels))
    svg = io.StringIO()
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    before, opening, after = svg.getvalue().partition("<defs>")
    return f"{before}<style>{dark_rules()}</style>\n {opening}{after}"


def dark_rules() -> str:
    """CSS that replaces each light colour, wherever an element's style names it, by its dark one."""
    rules = "".join(
        f'[style*="{what}: {light}"]{{{what}:{dark} !important}}'
        for light, dark in COLOURS.values()
        for what in ("fill", "stroke")
    )
    return f"@media (prefers-color-scheme: dark){{{rules}}}"
