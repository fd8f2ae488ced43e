"""What is repaired or left out once all events of a trace are known, and what is only noted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from magneton_dist.errors import RecordError
from magneton_dist.importers.kineto import RankTrace, read_trace


def faults(trace: RankTrace) -> str:
    return "; ".join(trace.tables["faults"]["message"])


def lengths_us(trace: RankTrace) -> list[float]:
    table = trace.tables["activities"]
    return [ns / 1000 for ns in table["end_ns"] - table["start_ns"]]


def test_what_would_outlast_later_ones_of_its_stream_ends_where_the_next_begins(write: Any, make: Any) -> None:
    kernels = [make.kernel("k", 100 * n, 30, n + 1, stream=7 + n % 2) for n in range(8)]
    kernels[2]["dur"] = 5e6
    trace = read_trace(write(kernels))
    assert lengths_us(trace) == [30, 30, 200, *[30] * 5]
    assert "1 event(s) on the device last beyond the end of a later one of their stream" in faults(trace)
    assert trace.span_ns == (0, 730_000)
    with pytest.raises(RecordError, match="last beyond the end of a later one"):
        read_trace(write(kernels), strict=True)


@pytest.mark.parametrize("dur", [30, 210, 229, 239])
def test_beside_other_streams_and_the_next_of_its_own_anything_may_run(write: Any, make: Any, dur: int) -> None:
    kernels = [make.kernel("k", 100 * n, 30, n + 1, stream=7 + n % 2) for n in range(8)]
    kernels[2]["dur"] = dur  # the next of its stream runs from 200 to 230 us after its start
    other = {**make.kernel("k", 210, 1, 20), "args": {"device": 1, "stream": 7, "correlation": 20}}
    assert lengths_us(read_trace(write([*kernels, other]), strict=True))[2] == dur


def test_kernels_of_one_graph_may_run_side_by_side_but_not_beyond_the_next_launch(write: Any, make: Any) -> None:
    graph = [make.kernel("k", 100 * n, 30, 9) for n in range(4)]
    graph[1]["dur"] = 250
    assert lengths_us(read_trace(write(graph), strict=True)) == [30, 250, 30, 30]
    later = make.kernel("k", 1000, 30, 10)
    assert lengths_us(read_trace(write([*graph, later]), strict=True)) == [30, 250, 30, 30, 30]
    graph[1]["dur"] = 5e6
    assert lengths_us(read_trace(write([*graph, later]))) == [30, 900, 30, 30, 30]


def test_a_thin_one_at_the_end_of_another_is_usual_and_streams_shown_as_one_stay(write: Any, make: Any) -> None:
    thin = [make.kernel("k", 0, 100, 1), make.kernel("memset", 99.5, 0, 2)]
    assert lengths_us(read_trace(write(thin), strict=True)) == [100, 0]
    merged = [make.kernel("k", 100 * n, 30 if n % 2 else 190, n + 1) for n in range(40)]
    trace = read_trace(write(merged), strict=True)
    assert lengths_us(trace) == [190, 30] * 20
    assert "20 of 40 activities last beyond the end of a later one of their stream, too many" in faults(trace)


@pytest.fixture
def short(make: Any) -> Any:
    """Forty kernels of 5 us, 10 us apart, with their launches: 395 us."""
    return [part for n in range(40) for part in (make.launch(n + 1, 10 * n), make.kernel(f"k{n}", 10 * n, 5, n + 1))]


HOUR = 3_600_000_000


@pytest.mark.parametrize("ts", [HOUR, -HOUR, 601_000_000])
def test_single_events_apart_from_all_others_by_many_minutes_are_left_out(
    write: Any, make: Any, short: Any, ts: int
) -> None:
    path = write([*short, make.kernel("lost", ts, 5, 100), make.host("aten::lost", -2 * HOUR, 5)])
    trace = read_trace(path)
    assert trace.tables["activities"].height == 40
    assert trace.span_ns == (0, 395_000)
    assert json.loads(trace.tables["marks"]["detail"][0])["activities"] == 41  # one must have been
    assert "dropped 2 event(s) with times far from those of all others" in faults(trace)
    with pytest.raises(RecordError, match="times far from"):
        read_trace(path, strict=True)


@pytest.mark.parametrize(
    ("event", "span_us"),
    [
        (("step", 1, -100_000, 200_000), 200_000),  # of few operators, and long computing that nothing shows
        (("kernel", "ncclDevKernel_AllReduce", 20, 60_000, 100, "kernel", 20), 60_020),  # waits for a peer
        (("kernel", "ncclDevKernel_AllReduce", 1000, 60_000, 100, "kernel", 20), 61_000),
        (("host", "c10d::allreduce_", 10, 59_000_000), 59_000_010),
    ],
)
def test_what_may_be_sound_is_noted_and_kept(
    write: Any, make: Any, short: Any, event: tuple[Any, ...], span_us: int
) -> None:
    trace = read_trace(write([*short, getattr(make, event[0])(*event[1:])]), strict=True)
    assert trace.span_ns[1] - trace.span_ns[0] == 1000 * span_us
    assert f"the trace spans {span_us / 1e6:.3g} s, and without 1 event(s) 0.000395 s" in faults(trace)


def test_a_few_such_events_are_noted_together(write: Any, make: Any, short: Any) -> None:
    late = [make.kernel(f"late{n}", 300_000 + 100 * n, 5, 100 + n) for n in range(2)]
    noted = faults(read_trace(write([*short, *late])))
    assert "the trace spans 0.3 s, and without 2 event(s) 0.000395 s" in noted
    assert "(late0, late1)" in noted


def test_activities_without_a_duration_are_noted(write: Any, make: Any) -> None:
    def noted(instants: int) -> str:
        return faults(read_trace(write([make.kernel("k", 10 * n, 5 * (n >= instants), n + 1) for n in range(20)])))

    assert "3 of 20 activities have no duration" in noted(3)
    assert "no duration" not in noted(2)


def test_a_step_that_begins_long_before_all_else_is_not_even_noted(write: Any, make: Any, short: Any) -> None:
    assert "without 1 event" not in faults(read_trace(write([*short, make.step(1, -100_000, 100_200)])))


def test_events_that_are_there_twice_are_taken_once(write: Any, make: Any) -> None:
    events = [
        make.step(1, 0, 1000), make.host("nccl:all_reduce", 5, 1, "user_annotation"),
        make.launch(1, 5), make.launch(2, 50), make.host("cudaDeviceSynchronize", 60, 35, "cuda_runtime"),
        make.kernel("k", 10, 30, 1), make.kernel("ncclDevKernel_AllReduce", 60, 30, 2, stream=20),
    ]  # fmt: skip
    path = write([*events, *events])
    once, twice = read_trace(write(events, "once.json")), read_trace(path)
    assert twice.calls.drop("call_id", strict=False).equals(once.calls.drop("call_id", strict=False))
    assert twice.tables["activities"].equals(once.tables["activities"])
    assert twice.host_times.equals(once.host_times)
    assert "dropped 2 event(s) with all that another one says" in faults(twice)
    with pytest.raises(RecordError, match="all that another one says"):
        read_trace(path, strict=True)


def test_activities_of_one_moment_and_of_one_graph(write: Any, make: Any) -> None:
    tied = [make.kernel("k", 10, 30, n, stream=n) for n in (1, 2, 3)]
    assert read_trace(write([*tied, *tied])).tables["activities"].height == 3
    graph = [make.kernel("k", ts, 30, 9) for ts in (10, 10, 50)]
    assert read_trace(write(graph), strict=True).tables["activities"].height == 3


def test_launches_whose_kernels_are_not_there_leave_idling_unproven(write: Any, make: Any) -> None:
    def trace(*gone: int, more: Any = ()) -> RankTrace:
        kernels = [make.kernel("k", 100 * n + 20, 30, n + 1) for n in range(20) if n not in gone]
        launches = [make.launch(n + 1, 100 * n) for n in range(20)]
        return read_trace(write([make.step(1, 0, 3000), *launches, *kernels, *more]))

    whole = trace()
    cut = trace(15, 16, 17, 18, 19)  # the trace ended before the last ones ran
    captured = trace(3, 4, 5, more=[make.host("cudaStreamBeginCapture", 290, 1, "cuda_runtime")])
    for sound in (whole, cut, captured):
        assert "kernels that were launched" not in faults(sound)
        assert sound.host_times.height
    assert "3 of 20 launches have no kernel in the trace: taken for those of the CUDA graphs" in faults(captured)
    lacking = trace(3, 4, 5)
    assert "3 of 20 kernels that were launched are not in the trace" in faults(lacking)
    assert lacking.host_times.is_empty()
    assert json.loads(lacking.tables["marks"]["detail"][0])["activities"] == lacking.tables["activities"].height + 3


def test_launches_that_were_made_before_the_trace_began_are_not_missed(write: Any, make: Any) -> None:
    def noted(*unlaunched: int) -> str:
        kernels = [make.kernel("k", 100 * n, 30, n + 1) for n in range(20)]
        launches = [make.launch(n + 1, 100 * n) for n in range(20) if n not in unlaunched]
        return faults(read_trace(write([*kernels, *launches])))

    assert "launches" not in noted(*range(15))
    assert "launches" not in noted(7, 12)
    assert "the launches of 3 of 20 activities are not in the trace" in noted(0, 1, 7, 12, 13)


def test_a_rank_without_a_device_that_fetches_data_idles_for_its_loader(write: Any, make: Any) -> None:
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    trace = read_trace(write([
        make.step(1, 0, 1000), make.host("aten::mm", 0, 100), make.host(loader, 100, 350, "user_annotation"),
        make.host("aten::stack", 150, 50), make.host("aten::mm", 600, 100), make.host("gloo:all_reduce", 710, 5),
    ]))  # fmt: skip
    # of 350 us, 50 of which it stacks samples
    assert trace.host_times.select("step", "kind", "what", "duration_ns").rows() == [(1, "loader", loader, 300_000)]
