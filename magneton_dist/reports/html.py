"""An audit as one self-contained page: no network, no library, bounded size, everything escaped.

What the page says is gathered here as plain values; `templates/report.html.j2` only lays them out, and
`templates/report.js` draws the state bands from the data island that `compact` makes small.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from magneton_dist.records.audit import Audit, Comparison, Counterfactual, EnergyKind, Finding, Interval, VariantResult
from magneton_dist.reports.audit_json import write_atomically
from magneton_dist.reports.bands import RunBands
from magneton_dist.reports.charts import Values, band_charts, bar_charts, forest
from magneton_dist.reports.figures import (
    KIND_MEANING,
    clean,
    evidence_items,
    interval,
    one_line,
    per_unit,
    percent,
    quantity,
    ranks_text,
    ratio_change,
    step_range,
)
from magneton_dist.reports.palette import LOOKS
from magneton_dist.reports.regions import largest_amount, region_values, shown_regions
from magneton_dist.reports.story import comparison_headline, doubts, headline, is_baseline, saved_joules, saved_words
from magneton_dist.reports.waits import wait_charts

MAX_FINDINGS = 50
MAX_SAVED = 20
MAX_HOSTS = 4
MAX_STATE_ROWS = 1_000
MAX_DIFFERENCES = 100
MAX_LINES = 20  # of how a cause was found


def write_html(audit: Audit, runs: Sequence[RunBands], path: Path) -> None:
    """Write the page to `path`, atomically.

    Args:
        audit: what was found.
        runs: one representative run per variant, for the state bands; may be empty.
        path: file to write.
    """
    loader = PackageLoader("magneton_dist.reports")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    page = environment.get_template("report.html.j2").render(_page(audit, runs))
    write_atomically(path, page.encode())


def _page(audit: Audit, runs: Sequence[RunBands]) -> Values:
    charts, island = band_charts(audit, runs)
    bars, table = bar_charts(audit)
    waits, island["waits"] = wait_charts(runs)
    comparisons = [c for c in (audit.comparison, *audit.other_comparisons) if c is not None]
    states = {row["state"] for row in table}
    return {
        "name": one_line(audit.name, 120),
        "started": one_line(audit.started, 40).replace("T", " "),
        "where": _hosts(audit.machine.hosts),
        "told": headline(audit),
        "doubts": doubts(audit),
        "keys": _keys(audit),
        "runs": charts,
        "slice_note": _slice_note(charts),
        "island": island,
        "max_watts": island["max_watts"],
        "band_looks": [look for look in LOOKS if look.name in states and look.name != "residual"],
        "waits": waits,
        "saved": [_saved(c) for c in audit.counterfactuals[:MAX_SAVED]],
        "saved_kind": audit.counterfactuals[0].energy_kind if audit.counterfactuals else "",
        "saved_words": saved_words(audit),
        "bars": bars,
        "bar_looks": [look for look in LOOKS if look.name in states],
        "all_looks": LOOKS,
        "states_table": table[:MAX_STATE_ROWS],
        "states_hidden": len(table) - MAX_STATE_ROWS if len(table) > MAX_STATE_ROWS else 0,
        "findings": [_finding(finding) for finding in audit.findings[:MAX_FINDINGS]],
        "findings_hidden": max(0, len(audit.findings) - MAX_FINDINGS),
        **_regions(audit, comparisons),
        "comparisons": [_comparison(c, audit.energy_kind) for c in comparisons],
        "variants": _variants(audit),
        "unknown": "unmeasured" if audit.energy_kind == "unmeasured" else "unknown",
        **_units(audit),
        **_differences(audit),
        "notes": [one_line(note, 600) for note in audit.notes],
        "energy_source": one_line(audit.energy_source, 600),
        "kinds": [(kind, KIND_MEANING[kind]) for kind in _kinds(audit, runs)],
        "machine": (f"{one_line(audit.machine.cpu)}, {audit.machine.cores} cores; " if audit.machine.cores else "")
                   + f"devices: {', '.join(one_line(d, 60) for d in audit.machine.devices[:16]) or 'none'}",
        "versions": ", ".join(one_line(f"{k} {v}", 80) for k, v in audit.machine.versions.items()),
    }


def _hosts(hosts: Sequence[str]) -> str:
    more = f" and {len(hosts) - MAX_HOSTS:,} more" if len(hosts) > MAX_HOSTS else ""
    return ", ".join(one_line(host, 60) for host in hosts[:MAX_HOSTS]) + more


def _regions(audit: Audit, comparisons: Sequence[Comparison]) -> Values:
    shown, hidden = shown_regions(audit)
    largest = largest_amount(shown)
    several = len({(region.baseline, region.candidate) for region in shown}) > 1
    rows = []
    for region in shown:
        pair = f"{one_line(region.candidate, 40)} against {one_line(region.baseline, 40)} · " if several else ""
        row = region_values(region, largest)
        rows.append({**row, "tag": f"{pair}{row['tag']}"})
    covered = [c.covered for c in comparisons if c.covered is not None]
    return {
        "regions": rows,
        "regions_hidden": hidden,
        "covered": percent(min(covered)) if covered else None,
    }


def _keys(audit: Audit) -> list[Values]:
    """The few figures of the head of the page."""
    comparison = audit.comparison
    keys: list[Values] = []
    if comparison is None:
        for variant in (v for v in audit.variants.values() if v.runs):
            if variant.energy_j is not None:
                keys.append({"label": "Energy", **_figure(variant.energy_j, "J", audit.energy_kind)})
            keys.append({"label": "Time", **_figure(variant.time_s, "s", "")})
        return keys
    if comparison.energy_ratio is not None:
        mean, ends = ratio_change(comparison.energy_ratio)
        keys.append({"label": "Energy", "mean": mean, "ends": ends, "kind": audit.energy_kind})
    if comparison.saved_j is not None:
        keys.append({"label": "Saved", **_figure(comparison.saved_j, "J", audit.energy_kind)})
    mean, ends = ratio_change(comparison.time_ratio)
    keys.append({"label": "Time", "mean": mean, "ends": ends, "kind": ""})
    if comparison.by == "memory" and comparison.memory_ratio is not None:
        mean, ends = ratio_change(comparison.memory_ratio)
        keys.append({"label": "Memory at a step's peak", "mean": mean, "ends": ends, "kind": ""})
    candidate = audit.variants.get(comparison.candidate)
    if candidate is not None:
        agree, error = _AGREE[candidate.values_agree], _values_error(candidate)
        keys.append({"label": "Values", "mean": agree, "ends": error, "kind": ""})
    return keys


_AGREE = {True: "agree", False: "differ", None: "not checked"}
_PROOF = {
    "none": "not proved",
    "consistent": "consistent with the difference, not proved",
    "proved": "proved: flipped and reverted in fresh processes",
}


def _figure(figure: Interval, unit: str, kind: str) -> Values:
    mean, ends = interval(figure, unit)
    return {"mean": mean, "ends": ends, "kind": kind}


def _values_error(variant: VariantResult) -> str:
    error = variant.values_error
    return "" if error is None else "bit-equal" if error == 0.0 else f"largest difference {error:.1e}"


def _saved(found: Counterfactual) -> Values:
    return {
        "what": one_line(found.what, 120),
        "kind": found.kind,
        "time": quantity(found.time_s, "s"),
        "less": quantity(found.saved_s, "s", 3),
        "share": percent(found.saved_share),
        "joules": saved_joules(found),
    }


def _slice_note(charts: Sequence[Values]) -> str:
    longest = max((float(str(chart["slice_us"])) for chart in charts), default=0.0)
    if not longest:
        return ""
    length = quantity(longest / 1e6, "s", 3)
    return (
        f"Too many intervals to draw each: bands are cut into slices of up to {length}, within which the "
        "seconds of a state are exact but their order is not kept. The Perfetto trace has every interval."
    )


def _finding(finding: Finding) -> Values:
    place, seconds = finding.where, quantity(finding.seconds, "s", 3)
    steps = step_range(place.steps)
    cost, detail = seconds, "joules unmeasured" if finding.energy_kind == "unmeasured" else ""
    if finding.bytes is not None:
        cost, detail = quantity(finding.bytes, "B", 3), "in a step, all ranks together"
    if finding.joules is not None:
        mean, ends = interval(finding.joules, "J")
        share = "" if finding.share is None else f"{percent(finding.share)} of the run"
        cost = f"{mean} {finding.energy_kind}"
        detail = ", ".join(part for part in (ends, share, seconds) if part)
    cause = finding.cause
    return {
        "finding_kind": finding.kind,
        "title": one_line(finding.title),
        "variant": one_line(finding.variant, 60),
        "ranks": ranks_text(finding.ranks),
        "cost": cost,
        "cost_detail": detail,
        "share_width": round(min(1.0, max(0.0, finding.share or 0.0)) * 100.0, 2),
        "fix": _fix(clean(finding.fix, 1_000)),
        "what": ", ".join(part for part in (one_line(place.what), steps) if part),
        "stack": [one_line(frame) for frame in place.stack[:12]],
        "evidence": evidence_items(finding.evidence, finding.energy_kind),
        "cause": None if cause is None else {
            "layer": one_line(cause.layer, 40),
            "name": one_line(cause.name),
            "by_variant": [(one_line(k, 60), one_line(v)) for k, v in cause.values.items()],
        },
        "proof": _PROOF[finding.proof],
        "diagnosis": [one_line(line, 400) for line in finding.diagnosis[:MAX_LINES]],
        "confidence": percent(finding.confidence),
    }


def _fix(text: str) -> Values:
    """A fix as words and code (what stands between backticks), and what to copy: the last code, or all."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:  # a backtick without its partner
        pieces = [text]
    parts = [(piece, index % 2 == 1) for index, piece in enumerate(pieces) if piece]
    return {"parts": parts, "copy": next((piece for piece, code in reversed(parts) if code), text)}


def _comparison(comparison: Comparison, kind: EnergyKind) -> Values:
    candidate, baseline = one_line(comparison.candidate, 60), one_line(comparison.baseline, 60)
    return {
        "title": f"{candidate} against {baseline}",
        "verdict": comparison.verdict,
        "reason": comparison_headline(comparison, kind).reason,
        "lines": forest(comparison, kind),
    }


def _variants(audit: Audit) -> list[Values]:
    commands = [variant.command for variant in audit.variants.values()]
    kind = audit.energy_kind
    rows: list[Values] = []
    for name, variant in audit.variants.items():
        baseline = is_baseline(audit, name)
        failed = any(variant.exit_codes)
        rows.append({
            "name": one_line(name, 60),
            "energy": variant.energy_j and _figure(variant.energy_j, "J", kind),
            "per_unit": variant.energy_per_unit_j and _figure(variant.energy_per_unit_j, "J", kind),
            "time": _figure(variant.time_s, "s", "") if variant.runs else None,
            "steps": f"{variant.steps:,}",
            "units": "unknown" if variant.units is None else f"{variant.units:,.0f}",
            "agree": "baseline" if baseline else _AGREE[variant.values_agree],
            "values_error": "" if baseline else _values_error(variant),
            "runs": variant.runs,
            "exit_codes": f"exit codes {', '.join(map(str, variant.exit_codes))}" if failed else "",
            "command": [
                (one_line(shlex.quote(word), 200), not all(word in command for command in commands))
                for word in variant.command[:80]
            ],
        })
    return rows


def _units(audit: Audit) -> Values:
    unit = next((one_line(v.unit, 20) for v in audit.variants.values() if v.unit), None)
    return {"unit": per_unit(unit), "units": (unit or "units").capitalize()}


def _differences(audit: Audit) -> Values:
    rows = []
    for name, values in list(audit.settings.items())[:MAX_DIFFERENCES]:
        by_variant = [one_line(values.get(variant, "unset")) for variant in audit.variants]
        rows.append({"name": one_line(name, 120), "by_variant": by_variant})
    return {"differences": rows, "differences_hidden": max(0, len(audit.settings) - MAX_DIFFERENCES)}


def _kinds(audit: Audit, runs: Iterable[RunBands]) -> list[EnergyKind]:
    """Every provenance that a figure of the page has, in the order of trust."""
    used = {audit.energy_kind, *(f.energy_kind for f in audit.findings), *(run.energy_kind for run in runs)}
    return [kind for kind in KIND_MEANING if kind in used]
