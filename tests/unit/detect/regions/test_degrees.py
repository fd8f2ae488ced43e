"""Jobs of unequal numbers of ranks: shards against wholes, every joule added up by hand."""

from __future__ import annotations

import pytest

from magneton_dist.config import Compare
from magneton_dist.detect.regions.comparing import RegionComparison, compare_regions

from .drawing import Drawing, Variant, loader

QUIET = (1.0, 1.001, 0.999, 1.0)
LINE = ("model.py:20 block", "train.py:9 step")
NORM = ("model.py:10 norm", "train.py:9 step")


def tensor_parallel(degree: int, sharded_j: float = 12.0, logging: bool = False, data: bool = False) -> Variant:
    """`sharded_j` shared out among the ranks, and 2 J that each of them repeats.

    `logging`: rank 0 has one operator more. `data`: every rank has a batch of its own, of which gradients are summed.
    """
    name, drawings = f"tp{degree}", {}
    for rank in range(degree):
        part = f"{rank}of{degree}" if degree > 1 else ""
        own = part if data else ""
        d = Drawing(roles={f"x{own}": "input", f"w{part}": "parameter"})
        d.op("native_layer_norm", f"x{own}", f"n{own}", 2.0, stack=NORM)
        d.op("mm", f"n{own} w{part}", f"h{part}", sharded_j / 2 / degree, stack=LINE)
        d.op("mm", f"h{part} w{part}", f"p{part}" if degree > 1 else "y", sharded_j / 2 / degree, stack=LINE)
        if degree > 1:
            d.op("allreduce_", f"p{part}", "y", 0.0, stack=LINE)
        if logging and rank == 0:
            d.op("amax", "y", "log", 0.5, stack=LINE)
        drawings[str(rank)] = [d]
    return Variant(name, drawings, {rank: str(rank) for rank in range(degree)}, alike=True)


def compared(a: Variant, b: Variant, rules: Compare | None = None) -> RegionComparison:
    return compare_regions(a.runs(QUIET), b.runs(QUIET[::-1]), loader(a, b), rules or Compare(time=2.0))


@pytest.mark.parametrize(("n", "m"), [(1, 2), (2, 4), (4, 2), (3, 2)])
def test_shards_and_wholes_are_compared_at_what_the_ranks_have_in_common(n: int, m: int) -> None:
    a, b = tensor_parallel(n), tensor_parallel(m)
    result = compared(a, b)
    norm, block = sorted(result.results, key=lambda r: r.title != "layer norm")
    for degree in (n, m):
        side = block.sides[f"tp{degree}"]
        assert side.joules is not None
        assert side.joules.mean == pytest.approx(12, rel=1e-3)  # whatever the degree
        assert side.operators == (3 * degree if degree > 1 else 2)
        repeated = norm.sides[f"tp{degree}"]
        assert repeated.joules is not None
        assert repeated.joules.mean == pytest.approx(2 * degree, rel=1e-3)
        assert repeated.operators == degree
    assert [r.kind for r in result.results] == ["matched", "matched"]
    assert result.covered == 1.0
    assert not block.differs
    (finding,) = result.findings
    most = max(n, m)
    assert finding.title == f"layer norm: tp{most} burns {most / min(n, m):.1f}x the joules of tp{min(n, m)}"
    assert finding.ranks == list(range(most))
    assert finding.joules is not None
    assert finding.joules.mean == pytest.approx(2 * abs(n - m) * 10, rel=1e-2)
    assert finding.fix == (
        f"Both run native_layer_norm at model.py:10, tp{most} on {most} ranks and tp{min(n, m)} on {min(n, m)}: "
        "share it out among the ranks, as sequence parallelism does, where each repeats it."
    )
    assert any("regions end where all of these ranks hold the same values" in note for note in result.notes)
    assert not any("the runs part" in note for note in result.notes)


def test_shards_of_one_degree_are_compared_one_by_one() -> None:
    other = tensor_parallel(2, sharded_j=24.0)
    other.name = "slow"
    result = compared(tensor_parallel(2), other)
    # also inside the shards: the products apart from their sum
    assert sorted([op.name for op in r.sides["slow"].shown] for r in result.results) == [
        ["aten.mm.default"], ["aten.native_layer_norm.default"], ["c10d.allreduce_.default"],
    ]  # fmt: skip
    assert [f.title for f in result.findings] == ["mm: slow burns 2.0x the joules of tp2 in 2 places"]


def test_shards_that_cost_more_than_the_whole_are_told() -> None:
    a, b = tensor_parallel(1), tensor_parallel(2, sharded_j=18.0)
    for (drawing,) in b.drawings.values():
        drawing.shapes |= {value: (32,) for value in drawing._values if value.startswith("h")}
    finding = next(f for f in compared(a, b).findings if f.title.startswith("mm"))
    assert finding.title == "mm: tp2 burns 1.5x the joules of tp1"
    assert finding.fix.startswith("Both run mm at model.py:20, tp2 on 2 ranks and tp1 on 1: small shards")


@pytest.mark.parametrize(("n", "m"), [(1, 2), (4, 2)])
def test_a_rank_with_an_operator_more_is_compared_as_well(n: int, m: int) -> None:
    a, b = tensor_parallel(n), tensor_parallel(m, logging=True)
    b.alike = False  # classes of their own
    result = compared(a, b)
    for degree in (n, m):
        joules = [r.sides[f"tp{degree}"].joules for r in result.results]
        logged = 0.5 if degree == m else 0.0
        assert sum(j.mean for j in joules if j) == pytest.approx(12 + 2 * degree + logged, rel=1e-3)
        operators = sum(r.sides[f"tp{degree}"].operators for r in result.results)
        assert operators == (4 * degree if degree > 1 else 3) + (degree == m)


def test_a_shard_whose_peer_left_no_record_is_not_compared_and_it_is_said() -> None:
    a, b = tensor_parallel(1), tensor_parallel(2)
    b.ranks = {1: "1"}
    result = compared(a, b)
    assert result.results == []
    assert any("no operators were recorded" in note for note in result.notes)


def test_ranks_with_data_of_their_own_are_told_apart() -> None:
    result = compared(tensor_parallel(1), tensor_parallel(2, data=True))
    assert any("each rank of tp2 reads data of its own" in note for note in result.notes)
    # only the sum is the same: 2 + 12 J for it, against 2 + 6 J on each of two ranks, in 10 steps
    (region,) = result.results
    assert [len(side.shown) for side in region.sides.values()] == [3, 4]
    (finding,) = result.findings
    assert finding.joules is not None
    assert finding.joules.mean == pytest.approx((16 - 14) * 10, rel=2e-2)
    assert finding.confidence == 0.0


@pytest.mark.parametrize(("n", "m"), [(1, 2), (4, 2), (3, 2)])
def test_the_mirror_image(n: int, m: int) -> None:
    a, b = tensor_parallel(n), tensor_parallel(m)
    forth, back = compared(a, b), compared(b, a)
    assert [(f.title, f.fix, f.ranks) for f in forth.findings] == [(f.title, f.fix, f.ranks) for f in back.findings]
    for one, other in zip(forth.results, back.results, strict=True):
        assert one.title == other.title
        assert {k: s.operators for k, s in one.sides.items()} == {k: s.operators for k, s in other.sides.items()}
        assert one.difference_j is not None
        assert other.difference_j is not None
        assert one.difference_j.mean == pytest.approx(-other.difference_j.mean)
    assert forth.peaks == tuple(reversed(back.peaks or ()))
