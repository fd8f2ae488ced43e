"""`magneton_dist.compare`: which operators of two records do the same work.

For records of one rank each, of any framework, without energies; whole runs are compared by
`magneton-dist compare`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from magneton_dist.errors import InputError, RecordError
from magneton_dist.frontends.graph_record import GraphRecord
from magneton_dist.matching.arrays import Bools, Floats, Ints
from magneton_dist.matching.fingerprints import moment_distance
from magneton_dist.matching.graph import FEATURES, INTEGER, UNKNOWN, MatchGraph
from magneton_dist.matching.recorded import StepGraph
from magneton_dist.matching.records import Algorithm, RecordMatch, match_records
from magneton_dist.records.schema import F64, I64, IDS, STR, Column, Table
from magneton_dist.records.store import AuditRecord, RankRecord, RunRecord, load

MOST_LINES = 24  # regions that are printed
MOST_NAMES = 6  # operators of a region that are printed

Comparable = GraphRecord | RankRecord | RunRecord | str | os.PathLike[str]

NAMES = pl.List(STR)
REGIONS = Table("regions", "operators of two graphs that do the same work, or that only one of them has", {
    "kind": Column(STR, "", "matched (same values out), unmatched (both sides, other values out), only a, only b"),
    "confidence": Column(F64, "", "Jaccard similarity of the matched values that both sides read"),
    "ops_a": Column(IDS, "", "op ids in a, in order of execution"),
    "ops_b": Column(IDS, "", "op ids in b"),
    "names_a": Column(NAMES, "", "names of these operators"),
    "names_b": Column(NAMES, "", "names of these operators"),
    "bytes_a": Column(I64, "bytes", "read and written by these operators; views move nothing"),
    "bytes_b": Column(I64, "bytes", "read and written by these operators"),
    "seconds_a": Column(F64, "s", "time of these operators on the host; null when it is not known of each"),
    "seconds_b": Column(F64, "s", "time of these operators on the host; null when it is not known of each"),
    "line_a": Column(STR, "", "innermost line of source of the first operator that has one"),
    "line_b": Column(STR, "", "innermost line of source of the first operator that has one"),
})  # fmt: skip
PAIRS = Table("pairs", "values of two graphs that hold the same numbers", {
    "values_a": Column(IDS, "", "value ids in a: one, its views and copies, or the parts that make up b's"),
    "values_b": Column(IDS, "", "value ids in b"),
    "confidence": Column(I64, "", "3 (one of a kind) down to 0 (similar surroundings)"),
})  # fmt: skip


@dataclass(frozen=True, eq=False)
class GraphComparison:
    """Two graphs side by side: tables `REGIONS` and `PAIRS`.

    Attributes:
        a, b: names of the records.
        regions: every operator of both is in exactly one.
        pairs: the values by which the regions were cut.
        covered_a, covered_b: share of the bytes that operators move which matched regions move.
        notes: in words, where and why the two part, and what could not be compared.
    """

    a: str
    b: str
    regions: pl.DataFrame = field(repr=False)
    pairs: pl.DataFrame = field(repr=False)
    covered_a: float
    covered_b: float
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The regions that move most bytes, a line each."""
        matched = f"{len(self.matched)} of {len(self.regions)} regions match"
        covered = f"they move {self.covered_a:.1%} of the bytes of a and {self.covered_b:.1%} of b's"
        heads = f"{'bytes a':>12}{'bytes b':>12}  operators of a  |  of b"
        lines = [f"a: {self.a}", f"b: {self.b}", f"{matched}; {covered}", "", heads]
        largest = self.regions.sort(pl.max_horizontal("bytes_a", "bytes_b"), descending=True).head(MOST_LINES)
        for region in largest.iter_rows(named=True):
            names = [_listed(region[f"names_{letter}"]) for letter in "ab"]
            lines.append(f"{region['bytes_a']:>12,}{region['bytes_b']:>12,}  {names[0]}  |  {names[1]}")
        if len(self.regions) > MOST_LINES:
            lines.append(f"{'':24}  and {len(self.regions) - MOST_LINES} smaller ones")
        lines += ["", *self.notes] if self.notes else []
        return "\n".join(lines)

    @property
    def matched(self) -> pl.DataFrame:
        """The regions that make the same values on both sides."""
        return self.regions.filter(pl.col("kind") == "matched")


def compare(
    a: Comparable, b: Comparable, *, rank: int = 0, eps: float | None = None, algorithm: Algorithm = "frontier"
) -> GraphComparison:
    """Match the traced steps of two records; what is equal in each of them matches.

    Args:
        a, b: what `magneton_dist.record` returned, or a run, its folder, or one rank of it.
        rank: which one of a run.
        eps: relative tolerance of values; by default 1e-3, or 1e-2 where 16 or 8 bits take part.
        algorithm: "frontier", or "dominators" for Algorithm 1 of the paper: coarser regions.

    Raises:
        InputError: a record has no such rank, no graph or no fingerprints, or an argument is of no use.
    """
    records = [_opened(record, rank) for record in (a, b)]
    for record in records:
        _check(record)
    both = match_records(records[0], records[1], algorithm, eps)
    graphs, found = (both.a, both.b), both.matched
    one, two = graphs
    count = found.regions.count
    sides = [
        _side(record, graph, region, count, letter)
        for record, graph, region, letter in zip(
            records, graphs, (found.regions.a, found.regions.b), "ab", strict=True
        )
    ]
    empty_a, empty_b = (side[f"ops_{letter}"].list.len() == 0 for side, letter in zip(sides, "ab", strict=True))
    certain = both.confidence()
    made = (np.arange(count) < found.regions.matched) | _equal_ends(both, certain)
    kinds = np.where(empty_b, "only a", np.where(empty_a, "only b", np.where(made, "matched", "unmatched")))
    regions = pl.concat(
        [pl.DataFrame({"kind": kinds, "confidence": certain}, schema={"kind": STR, "confidence": F64}), *sides],
        how="horizontal",
    ).select(*REGIONS.schema)
    pairs = pl.DataFrame(
        {
            "values_a": _values_of(one, found.value_a, found.ids),
            "values_b": _values_of(two, found.value_b, found.ids),
            "confidence": found.confidence,
        },
        schema=PAIRS.schema,
    )
    covered_a, covered_b = (_covered(regions, f"bytes_{letter}") for letter in "ab")
    notes = *both.notes, *(divergence.text for divergence in both.divergences())
    return GraphComparison(_name(records[0]), _name(records[1]), regions, pairs, covered_a, covered_b, notes)


def _listed(names: Sequence[str]) -> str:
    short = [_printable(name.split(".")[1] if "." in name else name) for name in names]
    more = f" +{len(short) - MOST_NAMES}" if len(short) > MOST_NAMES else ""
    return " ".join(short[:MOST_NAMES]) + more if short else "-"


def _opened(record: Comparable, rank: int) -> GraphRecord | RankRecord:
    if not isinstance(record, (GraphRecord, RankRecord, RunRecord, str, os.PathLike)):
        do = "give what magneton_dist.record or load returned, or a folder"
        raise InputError(f"a {type(record).__name__} is no record", where="compare", do=do)
    if isinstance(record, (str, os.PathLike)):
        loaded = load(Path(record))
        if isinstance(loaded, AuditRecord):
            raise InputError(
                "is a whole audit", where=str(loaded.folder), do="give the folder of one run: VARIANT/REPEAT below it"
            )
        record = loaded
    if isinstance(record, RunRecord):
        if rank not in record.ranks:
            known = ", ".join(map(str, record.ranks)) or "none"
            raise RecordError(f"rank {rank} left no tables", where=str(record.folder), do=f"ranks with tables: {known}")
        return record.ranks[rank]
    return record


def _check(record: GraphRecord | RankRecord) -> None:
    if record.table("ops").is_empty():
        nothing = ("its function ran no operators", "give one that computes with tensors of its framework")
        untraced = ("no operators of a traced step", "set capture.graph_steps to 1 or more")
        what, do = nothing if isinstance(record, GraphRecord) else untraced
        raise RecordError(what, where=_name(record), do=do)
    if record.table("fingerprints").is_empty():
        raise RecordError("values have no fingerprints", where=_name(record), do="set capture.fingerprints: standard")


def _name(record: GraphRecord | RankRecord) -> str:
    name = f"{record.name} ({record.framework})" if isinstance(record, GraphRecord) else str(record.folder)
    return _printable(name)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def _side(
    record: GraphRecord | RankRecord, graph: StepGraph, region: Ints, count: int, letter: str
) -> pl.DataFrame:
    """The columns of one side, one row per region."""
    moved = _moved_bytes(graph.ops, record.table("values"))
    lines = {stack: _line(frames) for stack, frames in record.table("stacks").iter_rows()}
    seconds = (pl.col("end_ns") - pl.col("start_ns")) / 1e9
    every = graph.ops.select(
        region=pl.Series(region),
        op="op_id",
        name="name",
        moved=moved,
        seconds=seconds,
        line=pl.col("stack_id").replace_strict(lines, default=None, return_dtype=STR),
    )
    known = pl.when(pl.col("seconds").is_not_null().all()).then(pl.col("seconds").sum())
    grouped = every.group_by("region", maintain_order=True).agg(
        pl.col("op").alias(f"ops_{letter}"),
        pl.col("name").alias(f"names_{letter}"),
        pl.col("moved").sum().alias(f"bytes_{letter}"),
        known.alias(f"seconds_{letter}"),
        pl.col("line").drop_nulls().first().alias(f"line_{letter}"),
    )
    rows = pl.DataFrame({"region": np.arange(count)}, schema={"region": I64})
    joined = rows.join(grouped, on="region", how="left", maintain_order="left").drop("region")
    empty = [pl.col(f"{kind}_{letter}").fill_null([]) for kind in ("ops", "names")]
    return joined.with_columns(*empty, pl.col(f"bytes_{letter}", f"seconds_{letter}").fill_null(0))


def _moved_bytes(ops: pl.DataFrame, values: pl.DataFrame) -> pl.Series:
    """Bytes each operator reads and writes; an operator that only makes views of what it reads moves none."""
    stored = values.select("value_id", "bytes", content=pl.struct("storage", "version"))

    def uses(column: str) -> pl.DataFrame:
        every = ops.select("op_id", value_id=pl.col(column).list.unique()).explode("value_id", empty_as_null=True)
        return every.drop_nulls().join(stored, on="value_id", how="left")

    read, made = uses("inputs"), uses("outputs")
    views = made.join(read.select("op_id", "content").unique(), on=["op_id", "content"], how="semi")
    working = made.join(views, on=["op_id", "value_id"], how="anti").select("op_id")
    moved = pl.concat([read, made]).unique(["op_id", "value_id"]).join(working, on="op_id", how="semi")
    summed = moved.group_by("op_id").agg(pl.col("bytes").sum())
    return ops.select("op_id").join(summed, on="op_id", how="left", maintain_order="left")["bytes"].fill_null(0)


def _line(frames: Sequence[dict[str, object]]) -> str | None:
    return f"{frames[0]['file']}:{frames[0]['line']} {frames[0]['function']}" if frames else None


def _equal_ends(both: RecordMatch, certain: Floats) -> Bools:
    """(regions,) whose inputs all match, and whose results, which nobody reads, are equal.

    Results of a few elements say too little to be matched by themselves; after equal inputs they say enough.
    """
    regions = both.matched.regions
    found = np.zeros(regions.count, bool)
    ends = [_ends(graph, region) for graph, region in ((both.graph_a, regions.a), (both.graph_b, regions.b))]
    for region in ends[0].keys() & ends[1].keys():
        if region < regions.matched or certain[region] < 1:
            continue
        one, other = ends[0][region], ends[1][region]
        if len(one) == len(other):
            found[region] = all(_is_equal(both, v, w) for v, w in zip(one, other, strict=True))
    return found


def _ends(graph: MatchGraph, region: Ints) -> dict[int, list[int]]:
    """Region -> the values that it makes and nobody reads, in order of execution."""
    found: dict[int, list[int]] = {}
    unread = ~np.isin(graph.outputs.flat, graph.inputs.flat)
    for of, value in zip(region[graph.outputs.rows[unread]].tolist(), graph.outputs.flat[unread].tolist(), strict=True):
        found.setdefault(of, []).append(value)
    return found


def _is_equal(both: RecordMatch, v: int, w: int) -> bool:
    a, b = both.graph_a, both.graph_b
    if a.kind[v] == UNKNOWN or (a.kind[v], a.numel[v]) != (b.kind[w], b.numel[w]):
        return False
    if a.kind[v] == INTEGER:  # to count one more is something else
        return bool(a.checksum[v] == b.checksum[w])
    every_step = (graph.features[value].reshape(-1, FEATURES) for graph, value in ((a, v), (b, w)))
    return bool(moment_distance(*every_step).max() <= both.eps)


def _values_of(graph: StepGraph, ids: Ints, count: int) -> pl.Series:
    """Lists of value ids of the record, by matched id."""
    named = pl.DataFrame({"id": ids, "value": graph.values["value_id"]}).filter(pl.col("id") >= 0)
    grouped = named.unique(maintain_order=True).group_by("id", maintain_order=True).agg("value")
    every = pl.DataFrame({"id": np.arange(count)}, schema={"id": I64})
    return every.join(grouped, on="id", how="left", maintain_order="left")["value"].fill_null([])


def _covered(regions: pl.DataFrame, column: str) -> float:
    total = int(regions[column].sum())
    return float(regions.filter(pl.col("kind") == "matched")[column].sum()) / total if total else 1.0
