"""An audit in a terminal: verdict, variants, whose joules, the findings, what is doubtful.

Reads at 80 columns, without colour, through a pipe and on a terminal that knows ASCII only.
"""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from magneton_dist.records.audit import (
    Audit,
    Comparison,
    EnergyKind,
    Finding,
    Interval,
    RankResult,
    VariantResult,
)
from magneton_dist.reports.figures import (
    KIND_MEANING,
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
from magneton_dist.reports.regions import differing, region_change, region_title, short_frame, side_amount
from magneton_dist.reports.story import (
    comparison_headline,
    doubts,
    headline,
    idle_sentence,
    is_baseline,
    saved_joules,
    saved_words,
    shown_states,
    worst_ranks,
)

MAX_RANKS = 8
MAX_FINDINGS = 10
MAX_REGIONS = 10
MAX_UNSHOWN = 3  # regions of a comparison that none is shown to differ in
MAX_SAVED = 8
MAX_SETTINGS = 8
MAX_LINES = 8  # of how a cause was found
_LABEL, _VALUE = 12, 32  # columns for a rank's name and for its figures beside the bar
_TO_ASCII = str.maketrans(
    {"−": "-", "–": "-", "…": "...", "·": "-", "µ": "u", "→": "->", "×": "x", "\ufffd": "?"}
)


def render_terminal(audit: Audit, console: Console) -> None:
    """Print `audit` on `console`."""
    ascii_only = console.options.ascii_only
    page = _page(audit, console.width, ascii_only=ascii_only)
    if not ascii_only:
        console.print(page)
        return
    # names from the job may hold characters that this terminal's encoding does not have
    with console.capture() as capture:
        console.print(page)
    console.file.write(capture.get().translate(_TO_ASCII).encode("ascii", "replace").decode("ascii"))


def render_finding(finding: Finding, console: Console) -> None:
    """Print one finding with its cause, and how that was found."""
    console.print(_first_finding(finding))


def _page(audit: Audit, width: int, *, ascii_only: bool) -> Group:
    parts: list[RenderableType] = [_head(audit), _variants(audit), _bars(audit, width, ascii_only=ascii_only)]
    parts += _counterfactuals(audit)
    comparisons = [c for c in (audit.comparison, *audit.other_comparisons) if c is not None]
    parts += [_comparison(c, audit.energy_kind) for c in comparisons]
    parts += [_first_finding(f) for f in audit.findings[:1]]
    if len(audit.findings) > 1:
        parts.append(_other_findings(audit.findings[1:]))
    parts += _regions(audit)
    parts += _list("Settings that differ", _settings(audit), "bold")
    parts += _list("Missing", doubts(audit), "bold yellow")
    kind = audit.energy_kind
    energy = f"Energy: {one_line(audit.energy_source)}. {kind} = {KIND_MEANING[kind]}."
    parts += _list("Notes", [energy, *(one_line(note, 600) for note in audit.notes)], "bold")
    return Group(*[item for part in parts for item in (part, Text())])


def _head(audit: Audit) -> Text:
    told = headline(audit)
    text = Text(one_line(audit.name, 60), "bold")
    text.append(f"  {told.verdict.upper()}\n", "bold red" if told.waste else "bold")
    text.append(told.sentence, "not bold")
    if audit.comparison is None and told.reason:
        text.append(f"\n{told.reason}", "not bold")
    elif audit.findings:
        finding = audit.findings[0]
        text.append(f"\n{one_line(finding.title)}: {_cost(finding)}.", "not bold")
    return text


def _variants(audit: Audit) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    unit = next((per_unit(one_line(v.unit, 20)) for v in audit.variants.values() if v.unit), "unit")
    table.add_column("Variant", overflow="fold", max_width=20)
    for name in ("Energy", f"Energy per {unit}", "Time"):
        table.add_column(name, justify="right")
    table.add_column("Values")
    for name, result in audit.variants.items():
        agree = {True: "agree", False: "DIFFER", None: "not checked"}[result.values_agree]
        if is_baseline(audit, name):
            agree = "baseline"
        values = Text(agree, "bold red" if agree == "DIFFER" else "").append(f"\n{_runs(result)}", "dim")
        table.add_row(
            Text(one_line(name, 60), "bold"),
            _figure(result.energy_j, "J", audit.energy_kind),
            _figure(result.energy_per_unit_j, "J", audit.energy_kind),
            _figure(result.time_s if result.runs else None, "s", None),
            values,
        )
    return table


def _figure(figure: Interval | None, unit: str, kind: EnergyKind | None) -> Text:
    """A mean with its provenance, its 95 % interval below it."""
    if figure is None:
        return Text("unmeasured" if kind == "unmeasured" else "unknown", "italic")
    mean, ends = interval(figure, unit)
    return Text(mean).append(f" {kind}" if kind else "", "italic").append(f"\n{ends or 'no interval'}", "dim")


def _runs(result: VariantResult) -> str:
    failed = sum(map(bool, result.exit_codes))
    return f"{result.runs} run{'s' if result.runs != 1 else ''}" + (f", {failed} FAILED" if failed else "")


def _bars(audit: Audit, width: int, *, ascii_only: bool) -> Group:
    """One bar per rank, all on one scale: joules by state, or seconds where no joules are known."""
    ranks = [rank for result in audit.variants.values() for rank in result.ranks]
    joules = bool(ranks) and all(rank.energy_j is not None for rank in ranks)
    title = f"Joules by state, {audit.energy_kind}" if joules else "Seconds by state (joules are unmeasured)"
    longest = max((sum(_amounts(rank, joules=joules).values()) for rank in ranks), default=0.0) or 1.0
    scale = max(10, width - _LABEL - _VALUE) / longest
    lines: list[RenderableType] = [Text(title, "bold")]
    worst, hidden = worst_ranks(audit, MAX_RANKS)
    for name, result in audit.variants.items():
        by_rank = {rank.rank: rank for rank in result.ranks}
        lines.append(Text(one_line(name, 60)))
        for rank in (by_rank[number] for number in worst if number in by_rank):
            lines.append(_bar(rank, scale, audit.energy_kind, joules=joules, ascii_only=ascii_only))
        if hidden:
            lines.append(Text(f"  {hidden:,} more ranks are in audit.json", "dim"))
        if idle := idle_sentence(result):
            lines.append(_indented(idle))
    used = {state for rank in ranks for state in _amounts(rank, joules=joules)}
    legend = Text("  ")
    for look in LOOKS:
        if look.name in used:
            legend.append(look.plain if ascii_only else look.glyph, look.style).append(f" {look.name}   ")
    return Group(*lines, legend)


def _amounts(rank: RankResult, *, joules: bool) -> dict[str, float]:
    states = shown_states(rank)
    return {name: (j or 0.0) if joules else s for name, (s, j) in states.items()}


def _bar(rank: RankResult, scale: float, kind: EnergyKind, *, joules: bool, ascii_only: bool) -> Text:
    amounts = _amounts(rank, joules=joules)
    total = sum(amounts.values())
    line = Text(f"  rank {rank.rank}".ljust(_LABEL))
    cells = 0
    done = 0.0
    for look in LOOKS:
        done += amounts.get(look.name, 0.0)
        upto = round(done * scale)
        line.append((look.plain if ascii_only else look.glyph) * (upto - cells), look.style)
        cells = upto
    line.append(f"  {quantity(total, 'J' if joules else 's', 3)}")
    line.append(f" {kind}" if joules else "", "italic")
    shadow = amounts.get("shadow", 0.0)
    if shadow > 0 and total > 0:
        line.append(f", {percent(shadow / total)} shadow", "bold red")
    return line


def _comparison(comparison: Comparison, kind: EnergyKind) -> Group:
    told = comparison_headline(comparison, kind)
    candidate, baseline = one_line(comparison.candidate, 40), one_line(comparison.baseline, 40)
    title = Text(f"{candidate} against {baseline}: ", "bold")
    title.append(told.verdict, "bold red" if told.waste else "bold")
    lines = [told.reason]
    if comparison.energy_ratio is not None:
        noise = "" if comparison.noise is None else f"; noise between runs {percent(comparison.noise)}"
        lines.append(f"energy ({kind}) {_change(comparison.energy_ratio)}{noise}")
    if comparison.energy_ratio_range is not None:
        low, high = (_change(Interval(end)) for end in comparison.energy_ratio_range)
        lines.append(f"over the whole range of the profile's watts: {low} to {high}")
    if comparison.by == "memory" and comparison.memory_ratio is not None:
        lines.append(f"memory at a step's peak {_change(comparison.memory_ratio)}")
    if comparison.saved_j is not None:
        mean, ends = interval(comparison.saved_j, "J")
        lines.append(f"saves {mean} {kind}" + (f" ({ends})" if ends else ""))
    lines.append(f"time {_change(comparison.time_ratio)}")
    return Group(title, *(_indented(line) for line in lines))


def _change(ratio: Interval) -> str:
    change, ends = ratio_change(ratio)
    return f"{change} ({ends})" if ends else change


def _first_finding(finding: Finding) -> Panel:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row("cost", Text(_cost(finding)))
    grid.add_row("who", Text(f"{ranks_text(finding.ranks)} of {one_line(finding.variant, 60)}"))
    grid.add_row("where", Text("\n".join(_where(finding))))
    evidence = evidence_items(finding.evidence, finding.energy_kind)
    grid.add_row("evidence", Text(", ".join(f"{label} {text}" for label, text in evidence)))
    if finding.cause is not None:
        grid.add_row("cause", Text(_cause(finding)))
    if finding.diagnosis:
        grid.add_row("how", Text("\n".join(one_line(line, 400) for line in finding.diagnosis[:MAX_LINES])))
    if finding.fix:
        grid.add_row("fix", Text(one_line(finding.fix, 600), "bold"))
    title = Text(f" {finding.kind} ", "bold red")
    return Panel(Group(Text(one_line(finding.title, 300), "bold"), grid), title=title, title_align="left")


def _other_findings(findings: list[Finding]) -> Group:
    lines: list[RenderableType] = [Text("Other findings", "bold")]
    for finding in findings[: MAX_FINDINGS - 1]:
        lines.append(Text(f"{finding.kind}: {one_line(finding.title, 200)}"))
        details = [_cost(finding), *_where(finding)[:2], f"fix: {one_line(finding.fix, 300)}"]
        if finding.cause is not None:
            details.insert(-1, f"cause: {_cause(finding).splitlines()[0]}")
        lines += [_indented(detail, "dim") for detail in details]
    hidden = len(findings) - (MAX_FINDINGS - 1)
    if hidden > 0:
        lines.append(Text(f"{hidden:,} more in audit.json", "dim"))
    return Group(*lines)


def _regions(audit: Audit) -> list[RenderableType]:
    """The regions that differ, both sides side by side; where nothing can be told yet, the first to look at."""
    found, most, what = differing(audit), MAX_REGIONS, "Regions that differ"
    undecided = audit.comparison is not None and audit.comparison.verdict == "inconclusive"
    if not found and undecided:
        found, most, what = audit.regions, MAX_UNSHOWN, "Regions, none shown to differ"
    if not found:
        return []
    several = len({(region.baseline, region.candidate) for region in found}) > 1
    unit = {"joules": f"J {found[0].energy_kind}", "memory": "bytes at the peak"}.get(
        found[0].quantity, found[0].quantity
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", expand=True)
    table.add_column(f"{what} ({unit}, per step)", overflow="fold", ratio=1)
    heads = ("baseline", "candidate") if several else [one_line(name, 30) for name in found[0].sides]
    for head in (*heads, "Change"):
        table.add_column(head, justify="right", overflow="fold", max_width=12)
    for region in found[:most]:
        title = Text(region_title(region))
        judged = "" if region.differs else region.judgement
        against = f"{region.candidate} against {region.baseline}" if several else ""
        for line in (short_frame(region.line), against, judged):
            if line:
                title.append(f"\n{one_line(line, 160)}", "dim")
        sides = [Text(side_amount(side, region)) for side in region.sides.values()]
        table.add_row(title, *sides, Text(region_change(region)[0]))
    hidden = len(found) - most
    if hidden > 0:
        return [Group(table, Text(f"{hidden:,} more in audit.json", "dim"))]
    return [table]


def _settings(audit: Audit) -> list[str]:
    """One line for each setting that differs between the variants."""
    lines = []
    for name, values in list(audit.settings.items())[:MAX_SETTINGS]:
        sides = ", ".join(f"{one_line(value, 60)} in {one_line(variant, 30)}" for variant, value in values.items())
        lines.append(f"{one_line(name, 80)}: {sides}")
    hidden = len(audit.settings) - MAX_SETTINGS
    return [*lines, f"{hidden:,} more in audit.json"] if hidden > 0 else lines


def _counterfactuals(audit: Audit) -> list[RenderableType]:
    """What the job would take were something as fast as its like."""
    found = audit.counterfactuals[:MAX_SAVED]
    if not found:
        return []
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("If it were as fast as its like", overflow="fold", ratio=1)
    for head in ("The job would take", "Less by", "Joules saved"):
        table.add_column(head, justify="right")
    for c in found:
        joules = saved_joules(c) + ("" if c.saved_j is None else f" {c.energy_kind}")
        less = f"{quantity(c.saved_s, 's', 3)}, {percent(c.saved_share)}"
        table.add_row(Text(one_line(c.what, 80)), Text(quantity(c.time_s, "s")), Text(less), Text(joules))
    words = saved_words(audit)
    return [Group(table, *([_indented(words, "dim")] if words else []))]


def _cost(finding: Finding) -> str:
    seconds = quantity(finding.seconds, "s", 3)
    if finding.bytes is not None:
        return f"{quantity(finding.bytes, 'B', 3)} in a step"
    if finding.joules is None:
        return f"joules unmeasured, {seconds}" if finding.energy_kind == "unmeasured" else seconds
    mean, ends = interval(finding.joules, "J")
    text = f"{mean} {finding.energy_kind}" + (f" ({ends})" if ends else "")
    if finding.share is not None:
        text += f", {percent(finding.share)} of {one_line(finding.variant, 40)}"
    return f"{text}, {seconds}"


def _where(finding: Finding) -> list[str]:
    """What ran in which steps, then the user's source lines."""
    place = finding.where
    steps = step_range(place.steps)
    what = ", ".join(part for part in (one_line(place.what, 120), steps) if part)
    return [line for line in (what, *(one_line(frame, 160) for frame in place.stack[:4])) if line]


def _cause(finding: Finding) -> str:
    assert finding.cause is not None
    cause = finding.cause
    values = "; ".join(f"{one_line(k, 40)}: {one_line(v, 80)}" for k, v in cause.values.items())
    proof = {"none": "not proved", "consistent": "consistent, not proved", "proved": "proved"}[finding.proof]
    text = f"{one_line(cause.layer, 40)} {one_line(cause.name, 80)} ({proof})"
    return f"{text}\n{values}" if values else text


def _list(title: str, lines: list[str], style: str) -> list[RenderableType]:
    if not lines:
        return []
    return [Group(Text(title, style), *(_indented(line) for line in lines))]


def _indented(line: str, style: str = "") -> Padding:
    return Padding(Text(line, style), (0, 0, 0, 2), expand=False)
