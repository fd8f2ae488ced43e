"""Tracer, meters and replay on one GPU, in plain processes: no Ray, none of the packages that reports need.

    tests/gpu/check [--only REGEX] [--quick] [--budget SECONDS]

Each check says one line or a few; what is missing is skipped with the reason. Figures go to build/gpu/check.json, and
a short table comes last. Without a GPU, what does not need one is done on the CPU to see that it runs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from magneton_dist.diagnosis.laboratory import Laboratory
from magneton_dist.energy.replay.bench import Bench, OneArm
from magneton_dist.energy.replay.power import steady_power
from magneton_dist.energy.replay.protocol import Estimate, Rules, Series, estimate, first_arm, measure
from magneton_dist.energy.replay.watch import MeterWatch
from magneton_dist.errors import MagnetonError
from magneton_dist.meters import NvmlMeter, visible_gpus
from magneton_dist.meters.load import NO_BOOST, TorchLoad
from magneton_dist.meters.sampler import Sampler
from magneton_dist.tracer.environment import launch_environment

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "build" / "gpu" / "check.json"
BUDGET_S = 470.0  # below 8 minutes
LAUNCH_S = 120.0
MB = 1 << 20
BF16, FP32 = "bfloat16", "float32"


class Skip(Exception):
    """This cannot be checked here."""


@dataclass
class Bed:
    """What there is to check on.

    Attributes:
        gpu: UUID of the first visible GPU; empty when there is none.
        why_none: why there is none.
        scale: of all durations.
        rows: of the last table: check, figure.
        figures: for the JSON.
    """

    gpu: str
    why_none: str
    scale: float
    rows: list[tuple[str, str]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def needs_gpu(self) -> str:
        if not self.gpu:
            raise Skip(f"no GPU: {self.why_none}")
        return self.gpu

    @property
    def device(self) -> str:
        return self.gpu or "cpu"

    def rules(self, window_s: float, **changes: Any) -> Rules:
        return Rules(**{"warm_up_s": 1.0 * self.scale, "discard_s": 1.0 * self.scale, "window_s": window_s * self.scale,
                        "fewest": 5, "most": 5, **changes})  # fmt: skip

    def say(self, check: str, figure: str, **figures: Any) -> None:
        self.rows.append((check, figure))
        self.figures |= figures
        print(f"  {check}: {figure}", flush=True)


# --- inputs ---------------------------------------------------------------------------------------------------------


def tensor(storage: int, *shape: int, dtype: str = FP32, device: str = "cuda:0") -> dict[str, Any]:
    stride = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
    return {"storage": storage, "offset": 0, "shape": list(shape), "stride": stride, "dtype": dtype, "device": device}


def question(bed: Bed, name: str, *arguments: Any, **values: dict[str, Any]) -> dict[str, Any]:
    """What a worker is asked to make; values are given as v1, v2, ..., arguments mention them by number."""
    on = "cuda:0" if bed.gpu else "cpu"
    described = {key[1:]: {**value, "device": on} for key, value in values.items()}
    return {"name": name, "arguments": list(arguments), "values": described, "seed": 0}


def v(number: int) -> dict[str, int]:
    return {"v": number}


def square(bed: Bed) -> int:
    return 8192 if bed.gpu else 256


def table_4(bed: Bed) -> dict[str, dict[str, Any]]:
    """The operators of the paper's Table 4 that one GPU can run alone."""
    n = square(bed)
    long, heads = (4096, 32) if bed.gpu else (64, 2)
    qkv = {f"v{i}": tensor(i, 4, heads, long, 128, dtype=BF16) for i in (1, 2, 3)}
    attention = "aten._scaled_dot_product_flash_attention.default"
    device = {"name": "device", "value": {"device": "cuda:0" if bed.gpu else "cpu"}}
    if not bed.gpu:
        attention = "aten._scaled_dot_product_flash_attention_for_cpu.default"
    return {
        "arange": question(bed, "aten.arange.default", n * 64, device),
        "contiguous": question(
            bed, "aten.clone.default", v(1), {"name": "memory_format", "value": {"memory_format": "contiguous_format"}},
            v1={**tensor(1, n, n), "stride": [1, n]},
        ),
        "linear": question(bed, "aten.addmm.default", v(1), v(2), v(3), v1=tensor(1, n), v2=tensor(2, n, n),
                           v3=tensor(3, n, n)),
        "attention": question(bed, attention, v(1), v(2), v(3), 0.0, True, **qkv),
    }  # fmt: skip


def replayed(bed: Bed, benches: Sequence[Bench], rules: Rules, **options: Any) -> Series:
    meter = NvmlMeter(bed.needs_gpu())
    try:
        with MeterWatch([meter]) as watch:
            series = measure([OneArm(bench) for bench in benches], watch, rules, **options)
    finally:
        meter.close()
    if not len(series.joules):
        raise Skip(f"no window counts: {', '.join(series.rejected)}")
    return series


def shown(found: Estimate, unit: str = "J", scale: float = 1.0) -> str:
    return f"{found.mean * scale:.5g} ± {found.half * scale:.2g} {unit}"


# --- checks ---------------------------------------------------------------------------------------------------------


def machine(bed: Bed) -> None:
    import torch

    what = "no GPU"
    if bed.gpu:
        meter = NvmlMeter(bed.gpu)
        what = meter.source
        meter.close()
    bed.say("machine", f"{what}; torch {torch.__version__}, python {sys.version.split()[0]}", torch=torch.__version__)


def idle_and_spin(bed: Bed) -> None:
    """Watts of a bare idle device, of idle contexts, and of a kernel that spins."""
    gpu = bed.needs_gpu()
    settle_s, look_s = 3.0 * bed.scale, 4.0 * bed.scale
    sampler, load = Sampler(NvmlMeter(gpu), 0.01), TorchLoad(gpu)
    watts: dict[str, float] = {}

    def look(name: str, act: Callable[[float], None] = time.sleep) -> None:
        start_ns = time.monotonic_ns()
        act(settle_s + look_s)
        steady = [(start_ns + round(settle_s * 1e9), time.monotonic_ns())]
        found = steady_power(*sampler.tables(), steady)
        if found is None:
            raise MagnetonError("too few readings", where=name)
        watts[name] = found.watts
        if found.other_w is not None:
            bed.figures[f"{name}, by power readings"] = found.other_w

    sampler.start()
    try:
        look("bare idle")
        load.start(boost=False)
        look(f"context idle, {NO_BOOST}=1")
        load.stop()
        load.start(boost=True)
        look("context idle")
        look("spin", load.spin)
    finally:
        load.stop()
        sampler.stop()
        sampler.meter.close()
    for name, mean in watts.items():
        bed.say(name, f"{mean:.1f} W", **{f"{name}_w": mean})


def gpm(bed: Bed) -> None:
    """A kernel that spins and one that works by turns, under the monitors that a run records beside its power."""
    sampler, load = Sampler(NvmlMeter(bed.needs_gpu())), TorchLoad(bed.gpu)
    turns: list[tuple[int, int, str, str]] = []  # start, end, phase and activity, as a rank's states have them
    try:
        if sampler.unmonitored:
            raise Skip(sampler.unmonitored)
        load.start(boost=True)
        sampler.start()
        for length_s in np.random.default_rng(0).uniform(0.1, 0.5, max(12, round(20 * bed.scale))):
            for stands_for, act in (("wait", load.spin), ("transfer", lambda s: load.pulses([s]))):
                start_ns = time.monotonic_ns()
                act(float(length_s))
                turns.append((start_ns, time.monotonic_ns(), "working", stands_for))
    finally:
        load.stop()
        sampler.stop()
        sampler.meter.close()
    looks = sampler.monitors()
    for name, stands_for in (("spin", "wait"), ("matrix products", "transfer")):
        within = [
            pl.col("start_ns").ge(start) & pl.col("end_ns").le(end) for start, end, _, of in turns if of == stands_for
        ]
        means = looks.filter(pl.any_horizontal(within)).select(pl.col("sm", "tensor", "dram").mean()).row(0, named=True)
        told = ", ".join(f"{part} {share:.1%}" for part, share in means.items() if share is not None)
        bed.say(f"GPM during {name}", told or "no figures", **{f"gpm_{name}_{k}": v for k, v in means.items()})
    bed.say("sampler with monitors", f"{sampler.core_share:.2%} of a core, {looks.height} looks at the monitors",
            sampler_core_share=sampler.core_share)  # fmt: skip
    try:
        from magneton_dist.energy.corroboration import corroborate
        from magneton_dist.timeline.states import STATES
    except ImportError as error:
        bed.say("GPM on spin and products", f"not judged: {error}")
        return
    said = corroborate(pl.DataFrame(turns, schema=STATES.schema, orient="row"), looks)
    for name, state in (("spin", "working/wait"), ("products", "working/transfer")):
        bed.say(f"GPM on {name} as {state.partition('/')[2]}", f"{said[state].verdict}: {said[state].reason}")


def sensor(bed: Bed) -> None:
    """Update period, window and lag of the power sensor, on a load that is busy and idle by turns."""
    gpu = bed.needs_gpu()
    sampler, load = Sampler(NvmlMeter(gpu), 0.005), TorchLoad(gpu)
    lengths_s = np.random.default_rng(0).uniform(0.1, 0.6, 2 * max(6, round(25 * bed.scale)))
    sampler.start()
    try:
        load.start(boost=True)
        edges_s = np.array(load.pulses(lengths_s.tolist()))
        time.sleep(0.5)
    finally:
        load.stop()
        power, _ = sampler.stop()
        sampler.meter.close()
    power = power.drop_nulls("watts")
    t_s, watts = power["t_ns"].to_numpy() / 1e9, power["watts"].to_numpy()
    fresh = np.append(True, np.diff(watts) != 0)
    t_s, watts = t_s[fresh], watts[fresh]
    period_s = float(np.median(np.diff(t_s)))
    inside = (t_s > edges_s[0] + 1.5) & (t_s < edges_s[-1])
    busy = np.concatenate([[0.0], np.cumsum(np.diff(edges_s) * (np.arange(len(edges_s) - 1) % 2 == 0))])

    def unexplained(window_s: float, lag_s: float) -> float:
        at = t_s[inside] - lag_s
        share = (np.interp(at, edges_s, busy) - np.interp(at - window_s, edges_s, busy)) / window_s
        design = np.column_stack([share, 1 - share])
        return float(np.square(watts[inside] - design @ np.linalg.lstsq(design, watts[inside], rcond=None)[0]).sum())

    tried = [(w, lag) for w in (0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0) for lag in np.arange(0, 0.5, 0.005)]
    window_s, lag_s = min(tried, key=lambda pair: unexplained(*pair))
    explained = 1 - unexplained(window_s, lag_s) / float(np.square(watts[inside] - watts[inside].mean()).sum())
    bed.say(
        "sensor", f"updates every {1e3 * period_s:.0f} ms, window {1e3 * window_s:.0f} ms, lag {1e3 * lag_s:.0f} ms "
        f"({explained:.0%} of the variance)", period_s=period_s, window_s=window_s, lag_s=lag_s, explained=explained,
    )  # fmt: skip


def tf32(bed: Bed) -> None:
    """One matrix product with TF32 off and on."""
    gpu, n = bed.needs_gpu(), square(bed)
    ask = question(bed, "aten.mm.default", v(1), v(2), v1=tensor(1, n, n), v2=tensor(2, n, n))
    with Bench([gpu]) as off, Bench([gpu]) as on:
        off.ask("settings", values={"torch.get_float32_matmul_precision": "highest"})
        on.ask("settings", values={"torch.get_float32_matmul_precision": "high"})
        for bench in (off, on):
            bench.ask("operator", **ask)
        series = replayed(bed, [off, on], bed.rules(4.0), figure=lambda j: np.log(j[:, 1] / j[:, 0]), absolute=True)
    ratio = estimate(np.log(series.joules[:, 1] / series.joules[:, 0]))
    low, mean, high = (float(np.exp(ratio.mean + k * ratio.half)) for k in (-1, 0, 1))
    bed.say(
        "TF32 on / off", f"{mean:.3f} ({low:.3f} to {high:.3f}) of the joules, "
        f"{shown(estimate(series.joules[:, 0]))} off", tf32_ratio=mean, tf32_low=low, tf32_high=high,
    )  # fmt: skip


def addmm(bed: Bed) -> None:
    """addmm against mm and add: the paper found 4.11 J against 3.94 J."""
    gpu, n = bed.needs_gpu(), square(bed)
    product = {"v1": tensor(1, n, n), "v2": tensor(2, n, n)}
    asks = [
        question(bed, "aten.addmm.default", v(3), v(1), v(2), v3=tensor(3, n), **product),
        question(bed, "aten.mm.default", v(1), v(2), **product),
        question(bed, "aten.add.Tensor", v(1), v(3), v1=tensor(1, n, n), v3=tensor(3, n)),
    ]
    with Bench([gpu]) as one, Bench([gpu]) as two, Bench([gpu]) as three:
        for bench, ask in zip((one, two, three), asks, strict=True):
            bench.ask("operator", **ask)

        def ratio_of(j: Any) -> Any:
            return np.log(j[:, 0] / (j[:, 1] + j[:, 2]))

        series = replayed(bed, [one, two, three], bed.rules(3.0), figure=ratio_of, absolute=True)
    ratio = estimate(ratio_of(series.joules))
    low, mean, high = (float(np.exp(ratio.mean + k * ratio.half)) for k in (-1, 0, 1))
    bed.say("addmm / (mm + add)", f"{mean:.3f} ({low:.3f} to {high:.3f}) of the joules", addmm_ratio=mean,
            addmm_low=low, addmm_high=high)  # fmt: skip


def ten_captures(bed: Bed) -> None:
    """The same operator captured ten times: the paper saw 1.6 % of spread."""
    gpu, ask = bed.needs_gpu(), table_4(bed)["linear"]
    joules = []
    with Bench([gpu]) as bench:
        for _ in range(10):
            how = bench.ask("operator", **ask)["how"]
            series = replayed(bed, [bench], bed.rules(1.5, fewest=1, most=1))
            joules.append(float(series.joules[0, 0]))
    spread = float(np.std(joules, ddof=1) / np.mean(joules))
    bed.say("ten captures of linear", f"{np.mean(joules):.5g} J, spread {spread:.2%} ({how})", captures_spread=spread)


def solo_runs(bed: Bed) -> None:
    """Replay against a run of 8 s of nothing else, by the energy counter from tick to tick."""
    gpu = bed.needs_gpu()
    for name, ask in table_4(bed).items():
        with closing(NvmlMeter(gpu)) as meter, Bench([gpu]) as bench, MeterWatch([meter]) as watch:
            bench.ask("operator", **ask)
            arm = OneArm(bench)
            arm.run(1.0 * bed.scale)
            span = arm.run(1.0 + 8.0 * bed.scale)
            ((power, counters),) = watch.readings(span.start_ns, span.end_ns)
            solo = steady_power(power, counters, [(span.start_ns + 1_000_000_000, span.end_ns)])
            series = measure([arm], watch, bed.rules(2.0, fewest=3, most=3))
        if solo is None or not len(series.joules):
            bed.say(f"{name} against solo", f"no reading; {dict(series.rejected)}")
            continue
        found, alone_j = estimate(first_arm(series.joules)), solo.watts * span.seconds / span.rounds
        bed.say(
            f"{name} against solo", f"{shown(found, 'mJ', 1e3)}, {found.mean / alone_j - 1:+.2%} off "
            f"{alone_j * 1e3:.5g} mJ ({solo.source})", **{f"solo_{name}": found.mean / alone_j - 1},
        )  # fmt: skip


def replay_runs_at_all(bed: Bed) -> None:
    """Every operator of the table is made and repeated, wherever this is."""
    with Bench([bed.device]) as bench:
        for name, ask in table_4(bed).items():
            how = bench.ask("operator", **ask)["how"]
            span = bench.run(0.3)
            bed.say(f"replay of {name}", f"{1e6 * span.seconds / span.rounds:.4g} µs, {how}")


TRAIN = """
import torch
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]).to(device)
optimizer = torch.optim.AdamW(model.parameters())
graph = lambda: None
if GRAPH and device == "cuda":
    still, captured = torch.zeros(1024, device=device), torch.cuda.CUDAGraph()
    still.add_(1)
    torch.cuda.synchronize()
    with torch.cuda.graph(captured):
        still.add_(1)
        still.mul_(0.5)
    graph = captured.replay
for _ in range(8):
    graph()
    model(torch.randn(64, 256, device=device)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def traced(by: str, graph: bool = False) -> tuple[list[list[Any]], dict[str, list[dict[str, Any]]]]:
    """A plain process under the tracer: rows of its spool, and the events of its kernel traces.

    With `graph`, each step also replays a CUDA graph of two kernels.
    """
    capture = {
        "warmup_steps": 2, "graph_steps": 1, "fingerprints": "none", "kernels": {"every": 3, "steps": 1, "by": by},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        spool = Path(folder)
        (spool / "token").write_text("token")
        environment = launch_environment(os.environ, folder, "token", capture) | {"RANK": "0", "WORLD_SIZE": "1"}
        command = [sys.executable, "-c", f"GRAPH = {graph}\n{TRAIN}"]
        job = subprocess.run(
            command, env=environment, cwd=ROOT, timeout=120, check=False, capture_output=True, text=True
        )
        if job.returncode:
            raise MagnetonError(f"the job ended with {job.returncode}: {job.stderr[-300:]}", where="traced job")
        rows = [json.loads(line) for path in sorted(spool.glob("l*/*.jsonl")) for line in path.open()]
        found = {p.stem: json.loads(p.read_text())["traceEvents"] for p in sorted(spool.glob("l*/kernels-*.json"))}
    return rows, found


def kernels_in(events: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """How many kernels, and how many of them have their launch in the trace."""
    kernels = [e for e in events if e.get("cat") == "kernel"]
    launches = {e["args"].get("correlation") for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")}
    return len(kernels), sum(e["args"].get("correlation") in launches for e in kernels)


def operators_met(events: Sequence[dict[str, Any]]) -> int:
    """Kernels whose external id leads to an operator that the recorder made known."""
    mark = "magneton_dist.operator#"
    hosts = [e for e in events if e.get("cat") == "cpu_op"]
    known = [e for e in hosts if str(e.get("name")).startswith(mark)]
    called = {e["args"]["External id"]: e for e in hosts if "External id" in e.get("args", {})}
    met = 0
    for event in (e for e in events if e.get("cat") == "kernel"):
        by = called.get(event["args"].get("External id"))
        within = by is not None and any(
            k["tid"] == by["tid"] and k["ts"] <= by["ts"] <= k["ts"] + k["dur"] for k in known
        )
        met += within or "operator" in event["args"]
    return met


def told(bed: Bed, name: str, rows: list[list[Any]], found: dict[str, list[dict[str, Any]]]) -> None:
    faults = [f"{row[1]}: {row[2]}" for row in rows if row[0] == "fault"]
    counts = {kind: sum(row[0] == kind for row in rows) for kind in ("step", "op")}
    captured = ", ".join(
        "{} kernels, {} with their launch, {} with their operator".format(*kernels_in(events), operators_met(events))
        for events in found.values()
    )
    bed.say(name, f"{counts['step']} steps, {counts['op']} operators; {'; '.join([captured, *faults]).strip('; ')}")


def traced_job(bed: Bed) -> None:
    """On a GPU three of its steps have their kernels captured by Kineto."""
    told(bed, "traced job", *traced("kineto"))


def cupti(bed: Bed) -> None:
    """The same steps by CUPTI's own records: as many kernels, operators, nodes of graphs and shares of SMs."""
    bed.needs_gpu()
    both = {by: traced(by, graph=True) for by in ("kineto", "cupti")}
    told(bed, "traced job by CUPTI", *both["cupti"])
    counts = {by: [kernels_in(events)[0] for events in found.values()] for by, (_, found) in both.items()}
    bed.say("CUPTI against Kineto", f"kernels per captured step {counts['cupti']} against {counts['kineto']}", **counts)
    for what, key in (("nodes of CUDA graphs", "graph node id"), ("kernels with shares of SMs", "blocks per SM")):
        said = {
            by: [sum(bool(e.get("args", {}).get(key)) for e in events if e.get("cat") == "kernel")
                 for events in found.values()]
            for by, (_, found) in both.items()
        }  # fmt: skip
        figures = {f"{key} by {by}": counted for by, counted in said.items()}
        bed.say(what, f"{said['cupti']} by CUPTI against {said['kineto']}", **figures)


def causes(bed: Bed) -> None:
    """A flag, a backend, a layout and cudnn.benchmark, each among decoys: is it named, and proved?"""
    bed.needs_gpu()
    import torch
    from pairs import BUDGET_S, PAIRS, cause_of  # beside this script

    if not torch.cuda.is_available():
        raise Skip("this torch has no CUDA")
    blamed: list[str] = []
    with Laboratory(BUDGET_S) as laboratory:
        for pair in PAIRS:
            found = cause_of(pair, laboratory)
            blamed += found.blamed
            bed.say(f"cause: {pair.what}", str(found), **{f"cause: {pair.what}": asdict(found)})
    if blamed:
        raise MagnetonError(f"decoys were named: {', '.join(blamed)}", where="causes")


def two_ranks_on_one_device(bed: Bed) -> None:
    """Plumbing only: two ranks share the device over gloo, which shows neither NCCL nor separate joules."""
    with Bench([bed.device] * 2, backend="gloo") as bench:
        bench.ask("collective", op="allreduce_", payload_bytes=16 * MB, dtype=FP32)
        span = bench.run(1.0)
    bed.say("all-reduce of 2 ranks, gloo, 1 device", f"{1e3 * span.seconds / span.rounds:.3g} ms, {span.rounds} rounds "
            "each; plumbing only: neither NCCL nor separate joules")  # fmt: skip


def launch(bed: Bed) -> None:
    """The whole of it, where Ray and the rest are installed."""
    bed.needs_gpu()
    for package in ("ray", "pydantic", "typer", "msgspec"):
        if importlib.util.find_spec(package) is None:
            raise Skip(f"{package} is not installed")
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "magneton_dist.commands", "launch", "configs/uneven_inputs.yaml", "--quiet",
            "--set", "repeats=1", "--set", "warmup_runs=0", "--set", f"runs={folder}", "--set", "energy.meter=auto",
            "--set", "diagnose.budget=0",
        ]  # fmt: skip
        ended = subprocess.run(command, cwd=ROOT, timeout=LAUNCH_S, check=False, capture_output=True, text=True)
        results = list(Path(folder).glob("*/audit.json"))
        kind = json.loads(results[0].read_text())["energy_kind"] if results else "nothing"
    bed.say("launch of the uneven example", f"exit code {ended.returncode}, joules {kind}")


# with the seconds that each takes at most on a GPU: one for which there is no time left is skipped
CHECKS: tuple[tuple[Callable[[Bed], None], float], ...] = (
    (machine, 5), (idle_and_spin, 45), (gpm, 20), (sensor, 30), (replay_runs_at_all, 15), (traced_job, 15), (cupti, 30),
    (two_ranks_on_one_device, 15), (causes, 70), (solo_runs, 120), (tf32, 60), (addmm, 75), (launch, LAUNCH_S),
    (ten_captures, 45),
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="checks whose name matches")
    parser.add_argument("--quick", action="store_true", help="a fifth of the durations: to see that it runs")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds for all of it")
    args = parser.parse_args(arguments)
    gpu, why = "", ""
    try:
        visible = visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
        gpu, why = next(iter(visible.uuids), ""), "; ".join(visible.notes) or "none visible"
    except MagnetonError as error:
        why = error.what
    bed = Bed(gpu, why, 0.2 if args.quick else 1.0)
    failed, started_s = False, time.monotonic()
    for check, most_s in CHECKS:
        name = check.__name__.replace("_", " ")
        if not re.search(args.only, name):
            continue
        left_s = args.budget - (time.monotonic() - started_s)
        print(f"{name} ({args.budget - left_s:.0f} s)", flush=True)
        try:
            if gpu and left_s < most_s:
                raise Skip(f"it takes up to {most_s:.0f} s, of {args.budget:.0f} s {max(0.0, left_s):.0f} s are left")
            check(bed)
        except Skip as reason:
            bed.say(name, f"skipped: {reason}")
        except Exception as error:  # noqa: BLE001 - one check that fails must not hide the others
            failed = True
            traceback.print_exc()
            bed.say(name, f"FAILED: {type(error).__name__}: {error}")
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(bed.figures, indent=1) + "\n")
    print(f"\n{time.monotonic() - started_s:.0f} s\n")
    width = max(len(name) for name, _ in bed.rows)
    for name, figure in bed.rows:
        print(f"{name:<{width}}  {figure}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
