"""How fast traces are read, and in how much memory, beside HolisticTraceAnalysis (HTA) 0.5.

Run by `make bench NAME=traces`, which installs HTA into an environment of its own. Both read fresh copies of the
same files in turn: real traces (MAGNETON_DIST_TRACES, where they are there) and generated ones. Either must come to
the same totals of busy, communication and overlap, or the bench fails. Imports are not counted.

build/bench/traces.json:
    speed_up_over_hta         HTA's time to parse and break down all folders / ours to the same totals, medians
    speed_up_FOLDER           the same of one folder
    cpu_over_hta              the same in CPU seconds of all processes, which a busy machine does not change
    totals_error              largest relative difference of a total
    read_speed_up_over_hta    the same, ours with operators, stacks, collectives and idle causes read beside
    audit_speed_up_over_hta   the same, ours with all that an audit does (record, joins, waits, joules, findings)
    gib_trace_s               a whole audit of one trace of 1 GiB of JSON
    gib_trace_peak_gib        its resident memory at most
    gib_dense_s               a whole audit of 1 GiB of nothing but short kernels
    gib_dense_peak_gib        its resident memory at most
    ranks_128_s               a whole audit of 128 ranks of 2,600 events each
    ranks_128_peak_gib        its resident memory at most
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from synthetic_traces import write_dense, write_rank, write_ranks

from magneton_dist.importers.device import read_device
from magneton_dist.importers.kineto import read_trace
from magneton_dist.importers.rank_files import rank_of, trace_files
from magneton_dist.timeline.intervals import intersect, intervals, length
from magneton_dist.traces import audit_traces

REPOSITORY = Path(__file__).resolve().parents[2]
RESULT = REPOSITORY / "build" / "bench" / "traces.json"
HTA = REPOSITORY / "build" / "hta" / "bin" / "python"
REAL = Path(os.environ.get("MAGNETON_DIST_TRACES", REPOSITORY.parent / "shared" / "traces"))
FOLDERS = ("param-dlrm-8xV100", "hta-tracediff-control-8xA100")  # of the other HTA leaves out what lacks a launch
ROUNDS = 3
TOLERANCE = 0.005
TIMES = ("hta", "ours", "read", "audit", "hta_cpu", "ours_cpu")
GIB = 1 << 30
EVENTS_PER_STEP = 4 * (3 * 200 + 2) + 1

BY_HTA = """
import json, logging, resource, sys, time
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
def cpu():
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, kinds))
begin, spent = time.perf_counter(), cpu()
analysis = TraceAnalysis(trace_dir=sys.argv[1], include_last_profiler_step=True)
times = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
overlap = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")
seconds, spent = time.perf_counter() - begin, cpu() - spent
columns = ["idle_time(us)", "compute_time(us)", "non_compute_time(us)", "kernel_time(us)"]
totals = {int(r): [*map(float, times.loc[r, columns]), float(overlap.loc[r].iloc[0])] for r in times.index}
print(json.dumps({"seconds": seconds, "cpu": spent, "totals": totals}))
"""

Totals = dict[int, list[float]]  # rank -> us idle, computing, busy without computing, in all; % of communication hidden


def main() -> None:
    """Measure, print the table, write the figures."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        generated = write_ranks(work / "generated-8", 8, steps=12, kernels=200)
        folders = [generated, *(REAL / name for name in FOLDERS if (REAL / name).is_dir())]
        print(f"{'folder':32}{'HTA':>9}{'ours':>9}{'read':>9}{'audit':>9}{'ratio':>8}{'totals off by':>15}")
        sums = dict.fromkeys(TIMES, 0.0)
        worst = 0.0
        for folder in folders:
            times, error = side_by_side(folder, work)
            for name, seconds in times.items():
                sums[name] += seconds
            figures[f"speed_up_{folder.name}"] = times["hta"] / times["ours"]
            worst = max(worst, error)
            row = "".join(f"{times[name]:8.3f}s" for name in TIMES[:4])
            print(f"{folder.name:32}{row}{times['hta'] / times['ours']:8.1f}{error:15.4%}")
        figures |= {
            **{f"{name}speed_up_over_hta": sums["hta"] / sums[of] for name, of in
               (("", "ours"), ("read_", "read"), ("audit_", "audit"))},
            "cpu_over_hta": sums["hta_cpu"] / sums["ours_cpu"], "totals_error": worst,
        }  # fmt: skip
        shutil.rmtree(generated)
        figures["gib_trace_s"], figures["gib_trace_peak_gib"] = audited(one_gib(work / "gib.json"), work)
        (work / "gib.json").unlink()
        figures["gib_dense_s"], figures["gib_dense_peak_gib"] = audited(one_dense_gib(work / "dense.json"), work)
        (work / "dense.json").unlink()
        many = write_ranks(work / "r128", 128, kernels=26)
        figures["ranks_128_s"], figures["ranks_128_peak_gib"] = audited(many, work)
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(figures, indent=2) + "\n")
    for name, figure in figures.items():
        print(f"{name:42}{figure:12.4g}")
    if worst > TOLERANCE:
        sys.exit(f"the totals differ from HTA's by {worst:.2%}")


def side_by_side(folder: Path, work: Path) -> tuple[dict[str, float], float]:
    """Median seconds of HTA, of parsing and breaking down, and of a whole audit; how far the totals are apart."""
    times: dict[str, list[float]] = {name: [] for name in TIMES}
    error = 0.0
    for round_ in range(ROUNDS):
        copies = [fresh(folder, work / f"copy-{round_}-{n}") for n in range(3)]
        hta = json.loads(subprocess.run(
            [HTA, "-c", BY_HTA, copies[0]], check=True, capture_output=True, text=True
        ).stdout.splitlines()[-1])  # fmt: skip
        times["hta"].append(hta["seconds"])
        times["hta_cpu"].append(hta["cpu"])
        begin, spent = time.perf_counter(), time.process_time()
        totals = broken_down(copies[1])
        times["ours"].append(time.perf_counter() - begin)
        times["ours_cpu"].append(time.process_time() - spent)
        begin = time.perf_counter()
        for path in trace_files([copies[1]]):
            read_trace(path)
        times["read"].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        audit_traces([copies[2]], work / f"runs-{round_}")
        times["audit"].append(time.perf_counter() - begin)
        for rank, theirs in hta["totals"].items():
            for own, their in zip(totals[int(rank)], theirs, strict=True):
                # HTA rounds overlap to two digits
                error = max(error, max(0.0, abs(own - their) - 0.006) / max(abs(their), 1e-9))
        for copy in (*copies, work / f"runs-{round_}"):
            shutil.rmtree(copy)
    return {name: statistics.median(seconds) for name, seconds in times.items()}, error


def fresh(folder: Path, copy: Path) -> Path:
    """A copy of the folder's own files."""
    copy.mkdir()
    for path in trace_files([folder]):
        shutil.copyfile(path, copy / path.name)
    return copy


def broken_down(folder: Path) -> Totals:
    """Parse all ranks and add up what HTA adds up, by its definitions."""
    totals: Totals = {}
    for path in trace_files([folder]):
        seen = read_device(path)
        start, end = (seen.rows[name].to_numpy() for name in ("start_ns", "end_ns"))
        computes, communicates = ((seen.rows["kind"] == kind).to_numpy() for kind in ("kernel", "collective"))
        everything = intervals(start, end)
        compute = intervals(start[computes], end[computes])
        communication = intervals(start[communicates], end[communicates])
        span, busy = int(everything[:, 1].max() - everything[:, 0].min()), length(everything)
        computing = length(compute)
        overlap = 100 * length(intersect(compute, communication)) / max(1, length(communication))
        us = [ns / 1e3 for ns in (span - busy, computing, busy - computing, span)]
        rank = rank_of(path, None, None)
        assert rank is not None
        totals[rank] = [*us, overlap]
    return totals


def one_gib(path: Path) -> Path:
    """A trace of one rank of 1 GiB of JSON."""
    write_rank(path, 0, 1, steps=100, kernels=200)
    steps = 100 * GIB // path.stat().st_size
    write_rank(path, 0, 1, steps=steps, kernels=200)
    print(f"\none trace of {path.stat().st_size / GIB:.2f} GiB, {steps * EVENTS_PER_STEP:,} events")
    return path


def one_dense_gib(path: Path) -> Path:
    """A trace of 1 GiB of JSON, all of it short kernels with gaps between."""
    kernels = write_dense(path, GIB)
    print(f"one trace of {path.stat().st_size / GIB:.2f} GiB, {kernels:,} kernels")
    return path


def audited(what: Path, work: Path) -> tuple[float, float]:
    """Seconds of `magneton-dist audit` of these traces in a process of its own, and its memory at most, GiB."""
    out = ["--out", str(work / "runs"), "--quiet"]
    command = [sys.executable, "-m", "magneton_dist.commands", "audit", str(what), *out]
    begin = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - begin
    if os.waitstatus_to_exitcode(status):
        sys.exit(f"{' '.join(command)} failed")
    shutil.rmtree(work / "runs")
    return seconds, peak_gib(used)


def peak_gib(used: resource.struct_rusage) -> float:
    """Resident memory at most, of the largest process."""
    return used.ru_maxrss * 1024 / GIB


if __name__ == "__main__":
    main()
