"""The table and the plot of `eval.ablation`, in ``docs/ablation.md``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

PAGE: Final = Path(__file__).parents[1] / "docs" / "ablation.md"
PLOT: Final = PAGE.parent / "img" / "ablation.png"
BEGIN, END = "<!-- begin: written by eval.ablation -->", "<!-- end -->"
COLUMNS: Final = ("latency", "throughput", "efficiency", "quality")
PAPER: Final = {
    (False, False, False): (1.00, 1.00, 1.00, 1.00),
    (False, False, True): (0.98, 1.02, 1.08, 1.00),
    (True, False, False): (0.88, 1.15, 1.12, 1.00),
    (False, True, False): (0.85, 1.20, 1.25, 0.98),
    (True, True, True): (0.70, 1.40, 1.55, 1.00),
}
"""arXiv 2603.03310: by (scheduling, pruning, sampling), in the order of `COLUMNS`."""


def write(rows: Sequence[Mapping[str, Any]]) -> None:
    """Replace the table in the page, and draw the plot."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{markdown(rows)}\n{END}{after}", encoding="utf-8")
    draw(rows)


def name_of(row: Mapping[str, Any]) -> str:
    """The parts that are on."""
    return " + ".join(part for part in ("scheduling", "pruning", "sampling") if row[part]) or "all off"


def paper_of(row: Mapping[str, Any]) -> tuple[float, ...] | None:
    """The paper's figures for the same parts; None where it gives none."""
    return PAPER.get((row["scheduling"], row["pruning"], row["sampling"]))


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line per arm: our ratio, its interval, and the paper's."""
    lines = [f"| parts that are on | {' | '.join(COLUMNS)} |", f"|---|{'---|' * len(COLUMNS)}"]
    for row in rows:
        paper = paper_of(row)
        cells = []
        for place, column in enumerate(COLUMNS):
            theirs = f", paper {paper[place]:.2f}" if paper else ""
            low, high = row[f"{column}_low"], row[f"{column}_high"]
            cells.append(f"**{row[column]:.2f}** ({low:.2f} to {high:.2f}{theirs})")
        lines.append(f"| {name_of(row)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(rows: Sequence[Mapping[str, Any]]) -> None:
    """Ratios with intervals, and the paper's as crosses; one panel per column."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, len(COLUMNS), figsize=(13, 3.6), sharey=True, layout="constrained")
    places = range(len(rows))
    for place, (panel, column) in enumerate(zip(panels, COLUMNS, strict=True)):
        values = [row[column] for row in rows]
        below = [row[column] - row[f"{column}_low"] for row in rows]
        above = [row[f"{column}_high"] - row[column] for row in rows]
        panel.axvline(1.0, color="0.7", linewidth=1)
        panel.errorbar(values, places, xerr=[below, above], fmt="o", capsize=3, label="here")
        theirs = [(paper[place], n) for n, row in enumerate(rows) if (paper := paper_of(row))]
        panel.plot(*zip(*theirs, strict=True), "x", color="0.3", label="arXiv 2603.03310")
        panel.set_title(f"{column}, all off = 1")
    panels[0].set_yticks(list(places), [name_of(row) for row in rows])
    panels[0].invert_yaxis()
    panels[-1].legend(fontsize=8)
    PLOT.parent.mkdir(exist_ok=True)
    figure.savefig(PLOT, dpi=110)
    plt.close(figure)
