"""The paper's claims as simulations: Proposition 1, Proposition 3 and Theorem 1 (arXiv 2603.03310).

Run ``python -m eval.theory``. Writes one picture per claim to ``docs/img/`` and all figures, with the
condition under which each claim holds and a case where it does not, to ``eval/results/theory.json``.
"""

import json
import platform
from pathlib import Path

import numpy as np

from eval import proposition_1, proposition_3, theorem_1

SEED = 20260303
CLAIMS = {
    "proposition_1": proposition_1.study,
    "proposition_3": proposition_3.study,
    "theorem_1": theorem_1.study,
}
ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "img"
RECORD = ROOT / "eval" / "results" / "theory.json"


def main() -> None:
    """Simulate every claim, draw it, record it."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    figures: dict[str, object] = {}
    for claim, study in CLAIMS.items():
        figures[claim], picture = study(SEED)
        picture.savefig(IMAGES / f"{claim}.png", dpi=110)
        print(f"{claim}: {IMAGES.relative_to(ROOT)}/{claim}.png")
    versions = {"python": platform.python_version(), "numpy": np.__version__}
    RECORD.write_text(json.dumps({"seed": SEED, **versions, **figures}, indent=1) + "\n")
    print(f"figures: {RECORD.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
