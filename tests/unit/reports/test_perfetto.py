import gzip
import heapq
import json
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magneton_dist.records.monitors import MONITORS
from magneton_dist.reports.perfetto import lanes, write_perfetto
from magneton_dist.timeline.arrivals import join_arrivals, own_arrivals
from magneton_dist.timeline.clocks import RankClock


def read(path):
    return json.loads(gzip.decompress(path.read_bytes()))


@pytest.fixture(scope="module")
def trace(join, tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "trace.json.gz"
    write_perfetto(joined(join.bands()), path)
    return read(path)


def joined(run, clocks=None):
    """The run with its ranks' calls joined, by default on clocks that agree."""
    ranks = run.ranks
    calls = [own_arrivals(bands.collectives, rank) for rank, bands in ranks.items()]
    found = join_arrivals(calls, {r: RankClock() for r in ranks} if clocks is None else clocks)
    return replace(run, ranks={r: replace(bands, arrivals=found.of(r)) for r, bands in ranks.items()})


def of(trace, phase):
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


def test_a_name_that_says_json_is_json(join, tmp_path, trace):
    write_perfetto(joined(join.bands()), tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_bytes()) == trace


def test_events_are_in_order_and_within_the_window(trace):
    timed = [event for event in trace["traceEvents"] if event["ph"] != "M"]
    assert [e["ts"] for e in timed] == sorted(e["ts"] for e in timed)
    # 48 steps of 40 to 44 ms: 2,027 ms, as the simulation adds up
    assert max(e["ts"] + e["dur"] for e in of(trace, "X")) == pytest.approx(2_027_000.0)
    assert min(e["ts"] for e in timed) == 0.0


def test_ranks_are_processes_with_named_tracks(trace):
    names = {e["pid"]: e["args"]["name"] for e in of(trace, "M") if e["name"] == "process_name"}
    assert names == {1: "rank 0 on node-a", 2: "rank 1 on node-a"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in of(trace, "M") if e["name"] == "thread_name"}
    assert sorted(set(threads.values())) == ["collectives", "collectives (2)", "operators", "states", "steps"]
    assert {(e["pid"], e["tid"]) for e in of(trace, "X")} == set(threads)


def test_slices_of_a_track_never_overlap(trace):
    tracks = defaultdict(list)
    for event in of(trace, "X"):
        tracks[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in tracks.values():
        slices.sort()
        assert all(end <= start + 1e-6 for (_, end), (start, _) in pairwise(slices))


def test_every_row_is_there(trace):
    kinds = Counter()
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in of(trace, "M") if e["name"] == "thread_name"}
    for event in of(trace, "X"):
        kinds[threads[event["pid"], event["tid"]].split(" (")[0]] += 1
    # 10 + 48 steps; two collectives per step and rank; three operators of one traced step per rank
    assert kinds["steps"] == 58
    assert kinds["collectives"] == 2 * 2 * 48
    assert kinds["operators"] == 6
    shadow = [e for e in of(trace, "X") if e["name"] == "shadow"]
    assert len(shadow) == 2 * 38
    assert {e["pid"] for e in shadow} == {1}


def test_arrows_lead_from_the_last_arrival_to_who_waited(trace):
    starts, ends = ({e["id"]: e for e in of(trace, phase)} for phase in "sf")
    # both buckets in each of 10 steps with unequal compute; the first bucket in each of 38 shadow steps
    assert len(starts) == len(ends) == 58
    slices = [e for e in of(trace, "X") if "call_id" in e["args"]]
    for number, start in starts.items():
        end = ends[number]
        assert start["ts"] <= end["ts"]
        assert start["pid"] != end["pid"]
        assert end["bp"] == "e"
        calls = [
            next(s for s in slices if s["tid"] == e["tid"] and s["ts"] <= e["ts"] < s["ts"] + s["dur"])
            for e in (start, end)
        ]
        assert calls[0]["args"]["seq"] == calls[1]["args"]["seq"]
        assert calls[0]["ts"] > calls[1]["ts"]
    # once rank 0 has no work left, rank 1 keeps it waiting, never the other way round
    assert {e["pid"] for e in ends.values() if e["ts"] > 500_000} == {1}


def test_waits_that_the_audit_refuses_have_no_arrow(join, tmp_path):
    # ends that do not agree, on clocks of which nothing is known
    run = join.bands()
    late = {r: replace(b, collectives=b.collectives.with_columns(pl.col("end_ns") + 1_000_000 * r))
            for r, b in run.ranks.items()}  # fmt: skip
    write_perfetto(joined(replace(run, ranks=late), {}), tmp_path / "t.gz")
    assert not of(read(tmp_path / "t.gz"), "s")


def test_power_is_a_counter_from_the_start_of_what_a_reading_speaks_for(trace, join):
    readings = join.power(0)
    counter = [e for e in of(trace, "C") if e["pid"] == 1]
    assert [e["args"]["W"] for e in counter] == pytest.approx(readings["watts"].to_list())
    assert [e["ts"] for e in counter[:3]] == [0.0, 50_000.0, 100_000.0]
    assert {e["name"] for e in counter} == {"power of GPU-00000000 (modelled)"}


def test_performance_monitors_are_counters_for_the_time_between_two_looks(join, tmp_path):
    run = join.bands()
    looks = [(run.start_ns + ms * 1_000_000, 0.5, ms * 1e9) for ms in (10, 110)]
    monitors = pl.DataFrame(
        [("GPU-00000000", t, t + 100_000_000, sm, None, 0.25, link) for t, sm, link in looks],
        schema=MONITORS.schema, orient="row",
    )  # fmt: skip
    write_perfetto(replace(run, ranks={0: replace(run.ranks[0], monitors=monitors)}), tmp_path / "t.gz")
    seen = [(e["name"], e["ts"], e["args"]) for e in of(read(tmp_path / "t.gz"), "C") if "power" not in e["name"]]
    assert sorted(seen, key=str) == [
        ("DRAM bandwidth of GPU-00000000", 10_000.0, {"%": 25.0}),
        ("DRAM bandwidth of GPU-00000000", 110_000.0, {"%": 25.0}),
        ("NVLink of GPU-00000000", 10_000.0, {"GB/s": 10.0}),
        ("NVLink of GPU-00000000", 110_000.0, {"GB/s": 110.0}),
        ("SMs with work of GPU-00000000", 10_000.0, {"%": 50.0}),
        ("SMs with work of GPU-00000000", 110_000.0, {"%": 50.0}),
    ]  # fmt: skip


def test_what_is_in_flight_lasts_to_the_end_and_failed_readings_are_counted(early_exit, tmp_path):
    run = early_exit.bands()
    bands = run.ranks[1]
    last = pl.int_range(pl.len()) == pl.len() - 1
    calls = bands.collectives.with_columns(end_ns=pl.when(last).then(None).otherwise("end_ns"))
    power = bands.power.with_columns(watts=pl.when(pl.int_range(pl.len()) == 1).then(None).otherwise("watts"))
    write_perfetto(replace(run, ranks={1: replace(bands, collectives=calls, power=power)}), tmp_path / "t.gz")
    trace = read(tmp_path / "t.gz")
    flying = [e for e in of(trace, "X") if e["args"].get("in_flight")]
    assert [e["ts"] + e["dur"] for e in flying] == pytest.approx([2_027_000.0])
    assert trace["otherData"]["power_readings_failed"] == 1
    assert len(of(trace, "C")) == bands.power.height - 1
    assert not of(trace, "s")


def test_hostile_names_stay_valid_json(join, tmp_path):
    run = join.bands()
    text = '"\\\n</script>\x1b\u202e'
    bands = {rank: replace(b, node=text, ops=b.ops.with_columns(name=pl.lit(text))) for rank, b in run.ranks.items()}
    write_perfetto(replace(run, variant=text, ranks=bands), tmp_path / "t.gz")
    trace = read(tmp_path / "t.gz")
    assert sum(e["name"] == text for e in of(trace, "X")) == 6


def test_a_run_without_ranks_is_an_empty_trace(join, tmp_path):
    write_perfetto(replace(join.bands(), ranks={}), tmp_path / "t.gz")
    assert read(tmp_path / "t.gz")["traceEvents"] == []


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=60))
def test_lanes_are_as_few_as_the_deepest_overlap(pieces):
    pieces.sort()
    start = np.array([a for a, _ in pieces], dtype=np.int64)
    end = np.array([a + d for a, d in pieces], dtype=np.int64)
    lane = lanes(start, end)
    for number in set(lane.tolist()):
        chosen = [(a, b) for a, b, n in zip(start, end, lane, strict=True) if n == number]
        assert all(b <= a for (_, b), (a, _) in pairwise(chosen))
    open_ends: list[int] = []
    deepest = 0
    for a, b in zip(start.tolist(), end.tolist(), strict=True):
        while open_ends and open_ends[0] <= a:
            heapq.heappop(open_ends)
        heapq.heappush(open_ends, b)
        deepest = max(deepest, len(open_ends))
    assert len(set(lane.tolist())) == deepest
