"""Causes that are known, in real jobs of two ranks among settings that do not matter; build/bench/diagnosis.json.

    cases       pairs of variants, also some that differ in nothing that matters
    proved      causes that were named rightly and proved
    expected    causes that there are
    wrong       pairs of which something was said that is not so
    skipped     pairs that this processor does not tell apart
    slowest_s   longest time that `explain` took for one
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from diagnosis_cases import CASES, explain, launch, wrong


def main() -> None:
    figures: dict[str, float] = dict.fromkeys(("cases", "proved", "expected", "wrong", "skipped", "slowest_s"), 0)
    print(f"{'case':14}{'proof':12}{'explain':>10}  cause")
    for case in CASES:
        figures["cases"] += 1
        if not case.possible:
            figures["skipped"] += 1
            continue
        with tempfile.TemporaryDirectory() as folder:
            found, seconds = explain(case, launch(case, Path(folder)))
        faults = wrong(case, found)
        cause = found["cause"]["name"] if found["cause"] else "no cause"
        print(f"{case.name:14}{found['proof']:12}{seconds:8.1f} s  {'; '.join(faults) or cause}", flush=True)
        figures["expected"] += case.cause is not None
        figures["proved"] += case.cause is not None and not faults and found["proof"] == "proved"
        figures["wrong"] += bool(faults)
        figures["slowest_s"] = max(figures["slowest_s"], seconds)
    print("  ".join(f"{name} {value:g}" for name, value in figures.items()))
    out = Path("build/bench/diagnosis.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
