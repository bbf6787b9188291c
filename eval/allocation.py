"""Where to spend a limited number of tokens: ten policies, six worlds, seven budgets.

    OMP_NUM_THREADS=1 python -m eval.allocation

Writes `eval/results/allocation.json` (all rows, with intervals) and `docs/img/allocation.png`, and prints the
table. What the world is: `allocation_world`; what the policies do: `allocation_policies`.

Every policy sees the same queries, answers and belief. A row's `against_kg` is the mean over queries of the
policy's nDCG@10 minus KG's, with a percentile bootstrap over queries (95 %). KG loses where that interval is
above 0; it is tied where the interval holds 0. `against_rescaled` and `against_guarded` are the same against
the second and the third way. No correction is made for the number of comparisons.
"""

import json
import platform
import time
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import scipy
from matplotlib.figure import Figure

from eti_rank.control.domain import FloatArray
from eval.allocation_policies import (
    GUARD_SDS,
    GUARDED,
    KNOWLEDGE_GRADIENT,
    LATE_FROM,
    PLANS_BY_BUDGET,
    POLICIES,
    RESCALED,
    RESCALES,
    quality_at,
)
from eval.allocation_world import CELLS, FULL_COST, MEASURES, Cell, draw_query

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "eval" / "results" / "allocation.json"
PICTURE = ROOT / "docs" / "img" / "allocation.png"
SEED = 20261201
QUERIES = 200
RESAMPLES = 2000
Row: TypeAlias = dict[str, Any]
REFERENCES = {"against_kg": KNOWLEDGE_GRADIENT, "against_rescaled": RESCALED, "against_guarded": GUARDED}
FRACTIONS = np.array([0.025, 0.05, 0.10, 0.15, 0.30, 0.50, 1.00])


def main() -> None:
    """Run, compare, print, write, draw."""
    begin = time.perf_counter()
    quality = {cell.name: run_cell(cell, number) for number, cell in enumerate(CELLS)}
    resampled = (
        np.random.default_rng(SEED).multinomial(QUERIES, np.full(QUERIES, 1 / QUERIES), RESAMPLES) / QUERIES
    )
    rows = [row for cell in quality for row in compare(cell, quality[cell], resampled)]
    for measure in MEASURES:
        print_table([row for row in rows if row["measure"] == measure])
    lost = {against: losses(rows, against) for against in REFERENCES}
    setting = {
        "seed": SEED, "queries": QUERIES, "resamples": RESAMPLES, "full_cost_units": FULL_COST,
        "python": platform.python_version(), "numpy": np.__version__, "scipy": scipy.__version__,
        "wall_s": round(time.perf_counter() - begin, 1),
    }  # fmt: skip
    RESULT.parent.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(row) for row in rows)
    RESULT.write_text(f'{{"setting": {json.dumps(setting)},\n"rows": [\n{lines}\n]}}\n')
    draw(rows)
    for against, loser in REFERENCES.items():
        print(f"{loser} loses {len(lost[against])} comparisons at up to {LATE_FROM:.0%} of the full cost")
    print(f"{setting['wall_s']} s")


def run_cell(cell: Cell, number: int) -> dict[str, FloatArray]:
    """Of each policy, nDCG@10 [queries, budgets, measures]."""
    random = np.random.default_rng([SEED, number])
    queries = [draw_query(random, cell) for _ in range(QUERIES)]
    budgets, quality = FRACTIONS * FULL_COST, {}
    for name, policy in POLICIES.items():
        plans = budgets[:, None] if name in PLANS_BY_BUDGET else budgets[None]
        quality[name] = np.array([
            np.concatenate([
                quality_at(policy, query, cell.believed, plan, np.random.default_rng([SEED, number, place]),
                           rescale=name in RESCALES, guard_sds=GUARD_SDS if name == GUARDED else np.inf)
                for plan in plans
            ])
            for place, query in enumerate(queries)
        ])  # fmt: skip
    return quality


def compare(cell: str, quality: dict[str, FloatArray], resampled: FloatArray) -> list[Row]:
    """One row per policy, budget and measure; `resampled` [resamples, queries] are bootstrap weights."""
    rows: list[Row] = []
    for name, values in quality.items():
        columns = {"ndcg10": values} | {key: values - quality[other] for key, other in REFERENCES.items()}
        spreads = {
            key: np.quantile(np.tensordot(resampled, column, 1), [0.025, 0.975], axis=0)
            for key, column in columns.items()
        }
        for b, fraction in enumerate(FRACTIONS):
            for m, measure in enumerate(MEASURES):
                row: Row = {
                    "cell": cell,
                    "measure": measure,
                    "policy": name,
                    "fraction": float(fraction),
                }
                for key, column in columns.items():
                    row[key] = round(float(column[:, b, m].mean()), 5)
                    row[f"{key}_low"], row[f"{key}_high"] = spreads[key][:, b, m].round(5).tolist()
                rows.append(row)
    return rows


def losses(rows: list[Row], against: str) -> list[Row]:
    """The rows, at budgets up to the target's, of policies that beat the reference for certain; printed."""
    rivals = [
        row for row in rows if row["policy"] not in REFERENCES.values() and row["fraction"] <= LATE_FROM
    ]
    lost = [row for row in rivals if row[f"{against}_low"] > 0]
    for row in lost:
        print(
            f"{REFERENCES[against]} loses: {row['measure']}, {row['cell']}, {row['fraction']:.1%}, to "
            f"{row['policy']}: {row[against]:+.4f} "
            f"[{row[f'{against}_low']:+.4f}, {row[f'{against}_high']:+.4f}]"
        )
    return lost


def print_table(rows: list[Row]) -> None:
    """NDCG@10 per cell, policy and budget: `+` where a policy is above KG for certain, `-` where below."""
    print(f"\nnDCG@10, {rows[0]['measure']} gain".ljust(48) + "".join(f"{f:>8.1%}" for f in FRACTIONS))
    for cell in CELLS:
        for policy in POLICIES:
            line = [row for row in rows if row["cell"] == cell.name and row["policy"] == policy]
            signs = [
                "+" if r["against_kg_low"] > 0 else "-" if r["against_kg_high"] < 0 else " " for r in line
            ]
            cells = "".join(f"{row['ndcg10']:>7.3f}{sign}" for row, sign in zip(line, signs, strict=True))
            print(f"{cell.name:22s} {policy:24s}{cells}")


def draw(rows: list[Row]) -> None:
    """One panel per cell, linear gain above, graded below."""
    figure = Figure(figsize=(3.1 * len(CELLS), 6.4), layout="constrained")
    panels = figure.subplots(len(MEASURES), len(CELLS), sharex=True, sharey="row")
    for i, measure in enumerate(MEASURES):
        for j, cell in enumerate(CELLS):
            panel = panels[i, j]
            for policy in POLICIES:
                line = [
                    r for r in rows if (r["cell"], r["measure"], r["policy"]) == (cell.name, measure, policy)
                ]
                bold = policy == KNOWLEDGE_GRADIENT
                panel.plot(
                    FRACTIONS,
                    [r["ndcg10"] for r in line],
                    label=policy,
                    marker=".",
                    color="black" if policy in REFERENCES.values() else None,
                    ls={RESCALED: "--", GUARDED: ":"}.get(policy, "-"),
                    lw=2.2 if bold else 1.0,
                )
                if bold:
                    low, high = ([r[f"ndcg10_{end}"] for r in line] for end in ("low", "high"))
                    panel.fill_between(FRACTIONS, low, high, color="black", alpha=0.12, lw=0)
            panel.set_xscale("log")
            panel.set_xticks(FRACTIONS, [f"{f:.3g}" for f in 100 * FRACTIONS])
            panel.minorticks_off()
            panel.set_title(cell.name if i == 0 else "", fontsize=10)
        panels[i, 0].set_ylabel(f"nDCG@10, {measure} gain")
    figure.supxlabel("% of the cost of reading everything; shaded: 95 % interval of KG", fontsize=10)
    panels[0, -1].legend(fontsize=7, loc="lower right")
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    main()
