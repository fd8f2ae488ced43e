from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from magneton_dist.tracer.rows import FIELDS
from magneton_dist.tracer.thinning import Thinning

COLUMN = {name: index for index, name in enumerate(FIELDS["collective"], start=1)}


def collective(call_id: int, duration: int | None, origin: str = "ddp", size: int = 10) -> tuple[object, ...]:
    values = dict.fromkeys(FIELDS["collective"]) | {
        "call_id": call_id, "group": "0", "op": "allreduce_", "origin": origin, "bytes": size, "issue_ns": 100,
        "end_ns": None if duration is None else 100 + duration, "stack_id": 4,
    }  # fmt: skip
    return ("collective", *values.values())


def capped() -> Thinning:
    thinning = Thinning(1000)
    assert thinning.written(1001)
    return thinning


def test_below_the_cap_all_is_kept():
    thinning = Thinning(1000)
    rows = [collective(1, 5), ("stamp", 1, 2, 3), ("op", 1)]
    assert list(thinning.keep(rows)) == rows
    assert not thinning.written(999)
    assert list(thinning.keep(rows)) == rows


def test_the_cap_is_reached_once():
    thinning = Thinning(1000)
    assert [thinning.written(400) for _ in range(5)] == [False, False, True, False, False]


def test_what_is_small_is_kept_beyond_the_cap():
    rows = [("mark", "a", 1, None), ("fault", "x", "y"), ("step", 1), ("stack", 1, []), ("knob", "a", "b")]
    assert list(capped().keep(rows)) == rows


def test_bulk_is_dropped_beyond_the_cap():
    assert list(capped().keep([("op", 1), ("value", 1), ("activity", "cpu")])) == []


@given(
    calls=st.lists(
        st.tuples(st.integers(0, 1000), st.sampled_from(["ddp", "user", "fsdp"]), st.integers(0, 10**12)),
        max_size=300,
    ),
    cuts=st.lists(st.integers(0, 300), max_size=6),
    grown=st.integers(0, 60),
)
def test_rows_and_sums_are_all_there_was(calls: list[tuple[int, str, int]], cuts: list[int], grown: int):
    thinning = capped()
    expected: Counter[tuple[str, str]] = Counter()
    found: Counter[tuple[str, str]] = Counter()
    batches: list[list[tuple[object, ...]]] = [[]]
    for call_id, (duration, origin, size) in enumerate(calls):
        if call_id in cuts:
            # the segment closes with this call in flight
            batches[-1].append(collective(call_id, None, origin, size))
            batches.append([])
        batches[-1].append(collective(call_id, duration, origin, size))
        expected.update({(origin, "count"): 1, (origin, "bytes"): size, (origin, "duration"): duration})
    last: dict[object, tuple[object, ...]] = {}
    for number, batch in enumerate(batches):
        thinning.closing = number == len(batches) - 1
        for row in thinning.keep(batch):
            if row[0] == "collective":
                last[row[COLUMN["call_id"]]] = tuple(row)
            else:
                _, group, op, origin, stack, count, size, duration = row
                assert (group, op, stack) == ("0", "allreduce_", 4)
                found.update({
                    (origin, "count"): count, (origin, "bytes"): size, (origin, "duration"): duration,
                })  # fmt: skip
        thinning.written(grown)
    for row in last.values():
        end, issue = row[COLUMN["end_ns"]], row[COLUMN["issue_ns"]]
        assert end is not None  # no call is left as in flight that has ended
        origin = row[COLUMN["origin"]]
        found.update({
            (origin, "count"): 1, (origin, "bytes"): row[COLUMN["bytes"]], (origin, "duration"): end - issue,
        })  # fmt: skip
    assert +found == +expected


def test_growth_beyond_the_cap_is_logarithmic():
    thinning = capped()
    kept = []
    for start in range(0, 1_000_000, 10_000):
        rows = list(thinning.keep([("stamp", i, 0, 0) for i in range(start, start + 10_000)]))
        kept.append(len(rows))
        thinning.written(len(rows))
    assert kept[0] == 10_000 // 16
    assert sum(kept) < 3_000
    assert kept[-1] <= 4
