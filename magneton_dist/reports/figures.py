"""How figures and foreign text are worded, the same in every report.

Numbers are SI in, words out: ``1.412e3, "J"`` becomes ``1,412 J``. An interval is shown with as many digits
as its width deserves. Names come from the audited job and may hold anything: `clean` makes them harmless.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence

from magneton_dist.records.audit import EnergyKind, Interval

KIND_MEANING: dict[EnergyKind, str] = {
    "measured": "read from a meter of the device",
    "replayed": "operators run again in a loop long enough for the meter",
    "apportioned": "a measured total, split by what ran when",
    "modelled": "time in each state times the watts of a device profile; no meter was read",
    "unmeasured": "no meter and no profile; not zero, unknown",
}

_PREFIXES: dict[str, tuple[tuple[float, str], ...]] = {
    "J": ((1e9, "GJ"), (1e6, "MJ"), (1e4, "kJ"), (1.0, "J"), (1e-3, "mJ"), (1e-6, "µJ"), (1e-9, "nJ")),
    "W": ((1e6, "MW"), (1e4, "kW"), (1.0, "W"), (1e-3, "mW")),
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "B": ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
}
_SUFFIXES = {"_j": "J", "_w": "W", "_s": "s", "_seconds": "s", "_bytes": "B"}


def quantity(value: float, unit: str, digits: int = 4) -> str:
    """`value` in SI `unit` (J, W, s or B) with a fitting prefix and `digits` significant digits."""
    scale, name = _scale(value, unit)
    text = _fixed(value / scale, _decimals(value / scale, digits))
    if unit == "B" and "." in text:  # sizes are exact: 76 MB, not 76.00 MB
        text = text.rstrip("0").rstrip(".")
    return f"{text} {name}"


def interval(figure: Interval, unit: str) -> tuple[str, str | None]:
    """Mean and 95 % interval in words, with one prefix; the second is None without an interval."""
    scale, name = _scale(figure.mean, unit)
    mean = figure.mean / scale
    if figure.ci95 is None:
        return f"{_fixed(mean, _decimals(mean, 4))} {name}", None
    low, high = (end / scale for end in figure.ci95)
    places = min(_decimals(mean, 4), _decimals((high - low) / 2, 2))
    return f"{_fixed(mean, places)} {name}", f"{_fixed(low, places)} to {_fixed(high, places)} {name}"


def step_range(steps: tuple[int, int] | None) -> str:
    """The first and the last step of something: ``step 8`` or ``steps 8 to 12``; empty when not known."""
    if steps is None:
        return ""
    first, last = steps
    return f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"


FACTOR = 10  # times, and a change in per cent is hard to read


def ratio_change(figure: Interval) -> tuple[str, str | None]:
    """A ratio as a change in per cent, and its 95 % interval: 0.79 becomes ``-21 %``."""
    if figure.ci95 is None:
        return percent_change(figure.mean), None
    low, high = figure.ci95
    places = 0 if (high - low) >= 0.04 else 1 if (high - low) >= 0.004 else 2
    ends = f"{percent_change(low, places)} to {percent_change(high, places)}"
    return percent_change(figure.mean, places), ends


def percent_change(ratio: float, places: int = 1) -> str:
    """A ratio as a signed change in per cent: 1.03 becomes ``+3.0 %``; a large one, 215, as the factor ``×215``."""
    if ratio >= FACTOR:
        return f"×{ratio:,.0f}"
    change = round((ratio - 1.0) * 100.0, places) + 0.0
    return f"{change:+.{places}f} %".replace("-", "−") if change else f"{change:.{places}f} %"


def percent(share: float) -> str:
    """A share in per cent, at least two significant digits below 10 %."""
    value = share * 100.0
    if abs(value) >= 9.95:
        return f"{value:.0f} %"
    return f"{value:.1f} %" if abs(value) >= 0.1 else f"{value:.2g} %"


def per_unit(unit: str | None) -> str:
    """What one unit of work is called: ``tokens`` becomes ``token``."""
    return unit.removesuffix("s") if unit else "unit"


def ranks_text(ranks: Sequence[int], most: int = 8) -> str:
    """Ranks in words, runs joined: ``rank 0``, ``ranks 0–3, 7``; beyond `most` runs, how many more."""
    if not ranks:
        return "no rank"
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    shown = [str(a) if a == b else f"{a}–{b}" for a, b in runs[:most]]
    hidden = sum(b - a + 1 for a, b in runs[most:])
    more = f" and {hidden} more" if hidden else ""
    return f"{'rank' if len(set(ranks)) == 1 else 'ranks'} {', '.join(shown)}{more}"


def evidence_items(evidence: Mapping[str, object], kind: EnergyKind) -> list[tuple[str, str]]:
    """Evidence as (label, text); its name tells a value's unit: x_j and x_w (of that kind), x_s, x_bytes, share_x."""
    return [_item(key, value, kind) for key, value in evidence.items()]


def clean(text: str, limit: int = 300) -> str:
    """`text` without control and direction-changing characters, cut to `limit` characters.

    Newlines stay; what a terminal or a page could obey (escape sequences, bidirectional overrides) becomes
    the replacement character. A cut says how much is left out.
    """
    left_out = len(text) - limit
    if left_out > 0:
        text = text[:limit]
    safe = "".join(c if c == "\n" or unicodedata.category(c) not in _CONTROL else "\ufffd" for c in text)
    return f"{safe}… (+{left_out:,} characters)" if left_out > 0 else safe


def one_line(text: str, limit: int = 300) -> str:
    """`clean`, with every run of white space as one blank."""
    return " ".join(clean(text, limit).split())


_CONTROL = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def _item(key: str, value: object, kind: EnergyKind) -> tuple[str, str]:
    if isinstance(value, int | float) and (key.startswith("share_") or key.endswith("_share")):
        return _label(key), percent(float(value))
    for suffix, unit in _SUFFIXES.items():
        if key.endswith(suffix) and isinstance(value, int | float):
            label = key if unit == "B" else key.removesuffix(suffix)
            return _label(label), quantity(float(value), unit) + (f" {kind}" if unit in "JW" else "")
    return _label(key), _plain(value)


def _label(key: str) -> str:
    return one_line(key.replace("_", " "), 60)


def _plain(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        shown = ", ".join(one_line(str(v), 120) for v in value[:12])
        return f"{shown} and {len(value) - 12:,} more" if len(value) > 12 else shown
    return one_line(str(value), 400)


def _scale(value: float, unit: str) -> tuple[float, str]:
    prefixes = _PREFIXES[unit]
    if value == 0.0:
        return 1.0, unit
    for smallest, name in prefixes:
        # 1e4 J is where four digits no longer suffice; the prefix itself still means a thousand
        if abs(value) >= smallest * (1 - 1e-9):
            return (1e3 if smallest == 1e4 else smallest), name
    return prefixes[-1]


def _decimals(value: float, digits: int) -> int:
    """Decimals that give `value` that many significant digits, never more than six."""
    if value == 0.0 or not math.isfinite(value):
        return 0
    return min(6, max(0, digits - 1 - math.floor(math.log10(abs(value)))))


def _fixed(value: float, places: int) -> str:
    return f"{value:,.{places}f}".replace("-", "−")
