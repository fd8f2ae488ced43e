"""What the tracer costs: collectives always on, one step's operator graph, start-up.

Run by `make bench NAME=tracer`; takes half an hour on two cores. Two ranks of a real torchrun job switch the tracer
on and off from block to block of the same run, so that the machine's moods meet both alike. CPU time counts all
threads of a rank; what the spool's thread does in the background is done inside the measured blocks.

One step of usual size takes 16 to 20 s there and varies by 5 to 10 %, so that pairs of such steps cannot show 1 %.
What the tracer adds to a step is therefore measured in many short ones, which have the same collectives and compute
an eighth as much (with next to no computing its threads would never take a core from anyone). What its thread needs
by the second is measured apart, as a short step has less of it. Both are set against the CPU time of a dark step of
usual size: an estimate, which takes for granted that a collective does not cost more in a longer step. The direct
ratio is given beside it. Intervals are within one job, whose allocator keeps its pages.

build/bench/tracer.json:
    collective_step_ratio              worst of the ratios below
    collective_step_ratio_MODEL        1 + added CPU time of a step / CPU time of a dark step of all tokens, estimated
    collective_step_ratio_low_MODEL    the same from the 95 % interval of what is added; also _high_
    collective_added_ms_MODEL          CPU time of a short step, traced - dark, mean of the ranks, median of pairs
    collective_us_MODEL                that per collective; also _low_ and _high_, 95 % by order statistics
    collective_short_ratio_MODEL       CPU time of a short step, traced / dark
    collective_direct_ratio_MODEL      the same in steps of all tokens, median of few pairs; also _low_ and _high_
    collective_wall_ratio_MODEL        the same in wall time
    collectives_MODEL                  collectives in a step
    step_s_MODEL, short_step_s_MODEL   wall time of a dark step
    waking_us_MODEL                    CPU time of the tracer's thread each time that it wakes and finds a row
    graph_step_ratio                   wall time of the step whose operators are recorded / dark (DDP)
    graph_step_ratio_plain             the same without fingerprints of the values
    start_up_s                         CPU time added until the first process group exists
"""

from __future__ import annotations

import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from magneton_dist.tracer.spool import PERIOD_S

REPOSITORY = Path(__file__).resolve().parents[2]
RESULT = REPOSITORY / "build" / "bench" / "tracer.json"
BLOCK_STEPS = 1
PAIRS = 8
GRAPH_PAIRS = 3
START_UPS = 9
TOKENS = 4096  # of a rank in a step, which takes about 16 s on two cores; usual jobs have more
TRACED_TOKENS = 1024
SHORT_TOKENS = 512
SHORT_PAIRS = 60  # a pair differs by about 100 ms, in noise of that size or more
WAKINGS = 200
# Whether the allocator gives pages back between steps, to take them again, is chance and costs up to 100 ms a step.
KEEPS_PAGES = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(8 << 30)}
START_UP = "import torch.distributed as d; d.init_process_group('gloo')"


def main() -> None:
    """Run the jobs, print the table, write the figures."""
    figures: dict[str, float] = {}
    for model in ("ddp", "fsdp2"):
        with tempfile.TemporaryDirectory() as folder:
            launch([*torchrun(2), __file__, model, folder], traced=True, folder=folder)
            ranks = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("figures-*.json"))]
        direct = interval(ranks, "direct_ratios")
        added_s = interval(ranks, "added_s")
        for name in ranks[0]:
            figures[f"{name}_{model}"] = statistics.fmean(rank[name] for rank in ranks)
        dark_s, collectives = figures.pop(f"dark_cpu_s_{model}"), figures[f"collectives_{model}"]
        longer_s = figures[f"step_s_{model}"] - figures[f"short_step_s_{model}"]
        thread_s = figures[f"waking_us_{model}"] / 1e6 * longer_s / PERIOD_S
        figures[f"collective_added_ms_{model}"] = added_s[0] * 1e3
        for place, end in enumerate(("", "_low", "_high")):
            figures[f"collective_step_ratio{end}_{model}"] = 1 + (added_s[place] + thread_s) / dark_s
            figures[f"collective_us{end}_{model}"] = added_s[place] / collectives * 1e6
            figures[f"collective_direct_ratio{end}_{model}"] = direct[place]
    for name in ("graph_step_ratio", "graph_step_ratio_plain"):
        figures[name] = figures.pop(f"{name}_ddp")
    figures["collective_step_ratio"] = max(figures["collective_step_ratio_ddp"], figures["collective_step_ratio_fsdp2"])
    figures["start_up_s"] = start_up_s()
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(figures, indent=1) + "\n")
    for name, value in figures.items():
        print(f"{name:40} {value:10.4f}")


def interval(ranks: list[dict[str, Any]], name: str) -> tuple[float, float, float]:
    """Median of the pairs' means over the ranks, and the ends of its 95 % interval; takes the list out of `ranks`."""
    paired = sorted(map(statistics.fmean, zip(*(rank.pop(name) for rank in ranks), strict=True)))
    low, high = median_interval(len(paired))
    return statistics.median(paired), paired[low], paired[high]


def median_interval(count: int) -> tuple[int, int]:
    """Places of the two of `count` sorted values that hold the median with 95 % confidence (binomial, p = 1/2)."""
    below = 0.0
    for place in range(count // 2):
        below += math.comb(count, place) / 2**count
        if below > 0.025:
            return max(0, place - 1), min(count - 1, count - place)
    return 0, count - 1


def torchrun(ranks: int) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]


def launch(command: list[str], *, traced: bool, folder: str) -> None:
    from magneton_dist.tracer.environment import launch_environment

    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **KEEPS_PAGES}
    if traced:
        spool = Path(tempfile.mkdtemp(dir=folder))
        (spool / "token").write_text("bench")
        capture = {"warmup_steps": 10**9, "graph_steps": 0}
        environment = launch_environment(environment, str(spool), "bench", capture)
    subprocess.run(command, env=environment, check=True)


def start_up_s() -> float:
    """Median difference of the CPU time of paired starts, traced and not."""

    def cpu_s(traced: bool) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with tempfile.TemporaryDirectory() as folder:
            launch([*torchrun(1), "--no-python", sys.executable, "-c", START_UP], traced=traced, folder=folder)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return statistics.median(cpu_s(True) - cpu_s(False) for _ in range(START_UPS))


# --- inside a rank ---


def layers(count: int, width: int, bias: bool) -> Any:
    """Linear layers that neither blow up nor shrink what goes through them: no gradient underflows to zero."""
    import torch

    stack = torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=bias) for _ in range(count)])
    for layer in stack:
        torch.nn.init.normal_(layer.weight, std=width**-0.5)
    return stack


def ddp() -> tuple[Any, Any]:
    """208 layers, each its own bucket: as many all-reduces in a backward pass."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(layers(208, 512, bias=False), bucket_cap_mb=1, gradient_as_bucket_view=True)
    return model, torch.randn(TOKENS, 512)


def fsdp2() -> tuple[Any, Any]:
    """70 sharded layers: an all-gather each in the forward and the backward pass, and a reduce-scatter."""
    import torch
    from torch.distributed.fsdp import fully_shard

    model = layers(70, 768, bias=True)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model, torch.randn(TOKENS, 768)


class Switch:
    """Turns the tracer of this rank on and off, all of it but its sleeping thread."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        from magneton_dist.tracer import bootstrap

        self.session: Any = bootstrap._session
        self._bootstrap = bootstrap
        self._autograd, self._work = torch.autograd, dist.Work
        self._backward = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
        self._wait = dist.Work.wait
        self._settings = bootstrap._settings

    def off(self) -> None:
        self.session._collectives._library._destroy()
        self._autograd._engine_run_backward = self._backward.__wrapped__  # type: ignore[attr-defined]
        self._work.wait = self._wait.__wrapped__  # type: ignore[attr-defined, method-assign]
        self._bootstrap._session = self._bootstrap._settings = None

    def on(self) -> None:
        self.session._collectives.install()
        self._autograd._engine_run_backward = self._backward  # type: ignore[attr-defined]
        self._bootstrap._session, self._bootstrap._settings = self.session, self._settings


def waking_us(spool: Any) -> float:
    """CPU time of closing a segment of one row."""
    start = time.process_time()
    for _ in range(WAKINGS):
        spool.append(["stamp", time.monotonic_ns(), 0, None])
        spool.flush()
    return (time.process_time() - start) / WAKINGS * 1e6


def rank(name: str, folder: str) -> None:
    """Train in alternating blocks; leave this rank's figures in `folder`."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, data = {"ddp": ddp, "fsdp2": fsdp2}[name]()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    switch = Switch()
    spool = switch.session.spool

    rows = TOKENS

    def step() -> None:
        model(data[:rows]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def block(steps: int = BLOCK_STEPS) -> tuple[float, float]:
        """CPU and wall seconds per step, the writing of rows included."""
        dist.barrier()
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(steps):
            step()
        spool.flush()
        return (time.process_time() - cpu) / steps, (time.perf_counter() - wall) / steps

    def compare(
        turn_on: Callable[[], None], turn_off: Callable[[], None], pairs: int, steps: int, writes: bool = False
    ) -> list[Any]:
        """(traced, dark) CPU and wall seconds per step of each pair; `writes`: turning off is part of a step."""
        compared = []
        for pair in range(pairs):
            seconds = {}
            for traced in (True, False) if pair % 2 else (False, True):  # A B B A
                if not traced:
                    seconds[False] = block(steps)
                    continue
                turn_on()
                cpu, wall = block(steps)
                start = time.process_time(), time.perf_counter()
                turn_off()
                off = time.process_time() - start[0], time.perf_counter() - start[1]
                seconds[True] = (cpu + off[0] / steps, wall + off[1] / steps) if writes else (cpu, wall)
            compared.append((seconds[True], seconds[False]))
        return compared

    for _ in range(4):
        step()
    calls = switch.session._collectives._call_ids
    before = next(calls)
    step()
    collectives = next(calls) - before - 1
    switch.off()
    compared = compare(switch.on, switch.off, PAIRS, BLOCK_STEPS)
    figures: dict[str, Any] = {
        "direct_ratios": [on[0] / off[0] for on, off in compared],
        "collective_wall_ratio": statistics.median(on[1] / off[1] for on, off in compared),
        "collectives": collectives,
        "step_s": statistics.median(off[1] for _, off in compared),
        "dark_cpu_s": statistics.median(off[0] for _, off in compared),
    }
    rows = SHORT_TOKENS
    compare(switch.on, switch.off, 1, BLOCK_STEPS)
    short = compare(switch.on, switch.off, SHORT_PAIRS, BLOCK_STEPS)
    figures["added_s"] = [on[0] - off[0] for on, off in short]
    figures["collective_short_ratio"] = statistics.median(on[0] / off[0] for on, off in short)
    figures["short_step_s"] = statistics.median(off[1] for _, off in short)
    figures["waking_us"] = waking_us(spool)
    if name == "ddp":
        rows = TRACED_TOKENS
        for suffix, fingerprints in (("", "standard"), ("_plain", "none")):
            switch.session._fingerprints = fingerprints
            recorder = switch.session._open_graph()
            compared = compare(lambda r=recorder: r.start(0), recorder.stop, GRAPH_PAIRS, 1, writes=True)
            figures[f"graph_step_ratio{suffix}"] = statistics.median(on[1] / off[1] for on, off in compared)
    Path(folder, f"figures-{dist.get_rank()}.json").write_text(json.dumps(figures))
    dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank(*sys.argv[1:])
    else:
        main()
