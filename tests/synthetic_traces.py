"""Profiler traces of as many ranks and events as wanted, with waits that are known."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
T0_US = 1_700_000_000_000_000
STEP_US, BEGIN_US, TRANSFER_US = 10_000, 2_000, 500


def late_us(rank: int, step: int, call: int, ranks: int, slow: int) -> int:
    """How late a rank comes to a collective: `slow` by 900 us in three calls of four, the others by their own bit."""
    return 900 if rank == slow and (step + call) % 4 else (rank * 37 + step * 11 + call * 5) % 200 % max(ranks, 2)


def rank_events(
    rank: int, ranks: int, *, steps: int = 8, calls: int = 4, kernels: int = 20, slow: int = 3
) -> Iterator[str]:
    """The events of a rank: in each step `calls` all-reduces that end together on all ranks, kernels before them."""
    correlation, device = 0, rank % 8

    def event(name: str, cat: str, ts: float, dur: float, pid: int, tid: int, **args: object) -> str:
        return json.dumps(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}
        )

    for step in range(steps):
        at = T0_US + step * STEP_US
        yield event(f"ProfilerStep#{step}", "user_annotation", at, STEP_US, 100, 1)
        for call in range(calls):
            begin = at + call * (STEP_US // calls)
            last = begin + BEGIN_US // calls + max(late_us(r, step, call, ranks, slow) for r in range(ranks))
            own = begin + BEGIN_US // calls + late_us(rank, step, call, ranks, slow)
            each = max(2, (own - begin) // max(1, kernels))
            for k in range(kernels):
                correlation += 1
                start = begin + k * each
                yield event("aten::mm", "cpu_op", start, each - 1, 100, 1, **{"External id": correlation})
                yield event("cudaLaunchKernel", "cuda_runtime", start, 1, 100, 1, correlation=correlation)
                yield event(f"gemm_{k % 7}", "kernel", start + 1, each - 1, device, 7, device=device, stream=7,
                            correlation=correlation, **{"External id": correlation})  # fmt: skip
            correlation += 1
            yield event("cudaLaunchKernelExC", "cuda_runtime", own - 5, 2, 100, 1, correlation=correlation)
            yield event(NCCL, "kernel", own, last + TRANSFER_US - own, device, 20, device=device, stream=20,
                        correlation=correlation, **{
                            "Collective name": "allreduce", "In msg nelems": 1_000_000, "dtype": "Float",
                            "Group size": ranks, "Process Group Name": "0", "Seq": step * calls + call,
                        })  # fmt: skip


def write_ranks(folder: Path, ranks: int, device: str = "NVIDIA H200", **shape: int) -> Path:
    """Traces of all ranks of a job, eight to a host."""
    for rank in range(ranks):
        write_rank(folder / f"rank-{rank}.json.gz", rank, ranks, device, **shape)
    return folder


def write_rank(path: Path, rank: int, ranks: int, device: str = "NVIDIA H200", **shape: int) -> None:
    """One rank's trace, gzip or not by its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {
        "schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks},
        "deviceProperties": [{"id": d, "name": device} for d in range(8)],
    }  # fmt: skip
    with gzip.open(path, "wt", compresslevel=1) if path.suffix == ".gz" else path.open("w") as file:
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        for n, event in enumerate(rank_events(rank, ranks, **shape)):
            file.write(f",\n{event}" if n else event)
        file.write("\n]}")


def write_dense(path: Path, size: int) -> int:
    """A trace of `size` bytes that holds nothing but short kernels, 1.5 us in every 3; how many."""
    count = 0
    with path.open("w") as file:
        written = file.write('{"deviceProperties": [{"id": 0, "name": "NVIDIA H200"}], "traceEvents": [\n')
        while written < size:
            events = []
            for n in range(count, count + 1000):
                args = {"External id": n, "device": 0, "stream": 7, "correlation": n, "blocks per SM": n % 9 / 10}
                events.append(json.dumps({
                    "ph": "X", "cat": "kernel", "name": f"void at::native::vectorized_elementwise_kernel<{n % 50}>",
                    "pid": 0, "tid": 7, "ts": T0_US + 3 * n, "dur": 1.5, "args": args,
                }))  # fmt: skip
            written += file.write((",\n" if count else "") + ",\n".join(events))
            count += 1000
        file.write("\n]}")
    return count
