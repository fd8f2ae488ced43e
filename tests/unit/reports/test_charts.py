from __future__ import annotations

import msgspec
import pytest

from magneton_dist.records.audit import Audit, Interval
from magneton_dist.reports.charts import bar_charts


@pytest.mark.parametrize("ends", [(-5000.0, 90_000.0), (10.0, 1e9)])
def test_an_interval_that_says_nothing_stays_within_the_chart_and_leaves_the_bars_long(
    audit: Audit, ends: tuple[float, float]
) -> None:
    name = next(iter(audit.variants))
    vague = msgspec.structs.replace(audit.variants[name], energy_j=Interval(100.0, ends))
    charts, _ = bar_charts(msgspec.structs.replace(audit, variants=audit.variants | {name: vague}))
    bars = charts["groups"][0]["bars"]  # type: ignore[index]
    for bar in bars:
        left, width = bar["whisker"]
        assert left >= 0
        assert left + width <= 100.001
    assert max(sum(part["width"] for part in bar["parts"]) for bar in bars) >= 49  # at least half of the chart
