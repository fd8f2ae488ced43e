"""How well and how fast equal work is found.

Run by `make bench NAME=matching` (needs the extra `examples`: transformers). GPT-2 of transformers, attention
eager and sdpa, against an implementation of our own with other layouts, other fusion and a flattened residual
stream; random weights; truth from float64. Graphs for the speed are synthetic, of the shape of large models.

build/bench/matching.json:
    f1_forward_fp32, _tf32, _bf16    pairs of activations told equal or not, at eps 1e-3, 1e-3, 1e-2
    f1_training                      the same with gradients, fp32 at 1e-3; f1_training_tf32, _bf16 likewise
    f1_..._initial, f1_..._twins     fp32, with weights as first drawn; with layers that are all alike
    reject_sorted, reject_shuffled   copies in another order that unfoldings reject at 1e-2
    label_sorted, label_shuffled     of which it is seen that they are reordered
    regions_gpt2_forward             12 layers, eager / sdpa, and region_size_...: operators per region
    regions_gpt2_training            micro-batches, clipping, AdamW as a loop on both sides
    element_coverage                 elements computed by regions on both sides, worst of all pairs of steps
    one_sided_optimizer              operators of loop / foreach / fused AdamW found on one side only
    match_7k_s, match_20k_s, match_60k_s, match_60k_peak_gib     training graphs, median
    ranks_1024_s                     one match, region sums and spread of 1,024 ranks of 6,300 operators
    fingerprint_step_ratio           step of the example GPT with graph and fingerprints / without any;
                                     graph_step_ratio: with the graph alone
    fingerprint_peak_ratio           memory for the fingerprint of a tensor of 1 GiB, relative to it
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
RESULT = REPOSITORY / "build" / "bench" / "matching.json"
sys.path[:0] = [str(REPOSITORY / "tests"), str(REPOSITORY / "examples" / "uneven_inputs")]
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import fingerprint_scores as scores  # noqa: E402
import gpt2  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from recorded_steps import Tables, record, recorder  # noqa: E402
from synthetic_graphs import transformer  # noqa: E402
from torch.nn import functional  # noqa: E402

from magneton_dist.detect.regions.results import MOST_RESULTS  # noqa: E402
from magneton_dist.detect.regions.statistics import spread_over  # noqa: E402
from magneton_dist.matching.frontier import match  # noqa: E402
from magneton_dist.matching.graph import MatchGraph  # noqa: E402
from magneton_dist.matching.groups import group_values  # noqa: E402
from magneton_dist.matching.ranks import corresponding, region_sums  # noqa: E402
from magneton_dist.matching.records import match_records  # noqa: E402
from magneton_dist.matching.steps import structure  # noqa: E402
from magneton_dist.tracer.fingerprints import Fingerprints  # noqa: E402
from magneton_dist.tracer.spool import Spool  # noqa: E402

SCORED = gpt2.Config(layers=4, width=192, heads=6, tokens=48, vocabulary=503)
TWELVE = gpt2.Config(layers=12, width=192, heads=6, tokens=48, vocabulary=503)
OWN = ("split", "eager")
EPS = (1e-4, 1e-3, 3e-3, 1e-2, 1.8e-2)
REPEATS = 5
Figures = dict[str, float]


def main() -> None:
    """Print the tables, write the figures."""
    torch.set_num_threads(1)
    figures: Figures = {}
    for part in (score, reorder, cut, speed, many_ranks, cost):
        started = time.perf_counter()
        figures.update(part())
        print(f"({part.__name__}: {time.perf_counter() - started:.0f} s)\n", flush=True)
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(figures, indent=1) + "\n")
    for name, value in figures.items():
        print(f"{name:32} {value:10.4f}")


# --- models and their steps ---


def model_of(c: gpt2.Config, kind: str, attention: str, weights: str = "varied") -> Any:
    """`kind`: transformers, or a layout of our own."""
    if kind == "transformers":
        return gpt2.transformers_model(c, attention, weights=weights)
    return gpt2.fresh(c, kind, attention, weights=weights)


def loss_of(model: Any, ids: torch.Tensor) -> torch.Tensor:
    if isinstance(model, gpt2.Gpt2):
        loss: torch.Tensor = model(ids)
        return loss
    logits = model(ids).logits
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def recorded(
    c: gpt2.Config, kind: str, attention: str, weights: str = "varied", *,
    dtype: torch.dtype = torch.float32, training: bool = False, micro_batches: int = 1, clip: bool = False,
    by: Callable[[Callable[[], object]], Any] = record, **optimizer: Any,
) -> Any:  # fmt: skip
    """One step of a model; a training step is the second one. Afterwards the model is gone."""
    model = model_of(c, kind, attention, weights).to(dtype).train()
    batches = gpt2.ids_of(c, 2 * micro_batches).split(2)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3, **(optimizer or {"foreach": False}))

    def step() -> None:
        if not training:
            loss_of(model, batches[0])
            return
        adam.zero_grad()
        for batch in batches:
            (loss_of(model, batch) / len(batches)).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()

    if training:
        step()
    return by(step)


# --- fingerprints ---


def score() -> Figures:
    """F1 of the comparisons, by tolerance and precision."""
    figures: Figures = {}
    for name, training, weights in (
        ("forward", False, "varied"), ("training", True, "varied"),
        ("forward_initial", False, "initial"), ("training_initial", True, "initial"),
        ("forward_twins", False, "twins"), ("training_twins", True, "twins"),
    ):  # fmt: skip
        figures.update(_score(name, training, weights))
    figures["f1_training"] = figures["f1_training_fp32"]
    return figures


def _score(name: str, training: bool, weights: str) -> Figures:
    one = partial(recorded, SCORED, "transformers", "eager", weights, training=training)
    two = partial(recorded, SCORED, *OWN, weights, training=training)
    exact = [side(dtype=torch.float64, by=scores.record_with_elements) for side in (one, two)]
    known = scores.population((exact[0][0], exact[1][0]), (exact[0][1], exact[1][1]))
    varied = weights == "varied"
    by = scores.record_with_spectra if varied else record
    reference = one(by=by)
    others: dict[str, Tables] = {"fp32": two(by=by)}
    if varied:
        with scores.tf32():
            others["tf32"] = two(by=by)
        others["bf16"] = two(by=by, dtype=torch.bfloat16)
    print(f"F1, {name}, transformers eager / own NHD: {known.size}")
    methods: dict[str, Callable[..., np.ndarray]] = {
        "mean, deviation": partial(scores.judge, equal=scores.mean_and_deviation),
        "singular values": partial(scores.judge, equal=scores.spectra),
        "moments": partial(scores.judge, equal=scores.moments),
        "and unfoldings": partial(scores.judge, equal=scores.unfoldings),
        "and ties broken": scores.ties_broken,
    }
    if not varied:
        del methods["singular values"]
    print(f"  {'eps':8}" + "".join(f"{method:>24}" for method in methods) + "   " + " / ".join(others))
    found: dict[tuple[str, float], float] = {}
    for eps in EPS:
        cells = []
        for judge in methods.values():
            values = {n: scores.f1(known, judge(known, (reference, t), eps=eps)) for n, t in others.items()}
            cells.append(" / ".join(f"{value:.3f}" for value in values.values()))
        found.update({(n, eps): value for n, value in values.items()})  # of the last method, ours
        print(f"  {eps:<8g}" + "".join(f"{cell:>24}" for cell in cells))
    if not varied:
        return {f"f1_{name}": found["fp32", 1e-3]}
    return {f"f1_{name}_{n}": found[n, 1e-2 if n == "bf16" else 1e-3] for n in others}


def reorder() -> Figures:
    """Copies of activations and gradients with their elements elsewhere, of all steps together."""
    counts: dict[str, np.ndarray] = {"sorted": np.zeros(3), "shuffled": np.zeros(3)}
    for kind, attention in (("transformers", "eager"), OWN):
        for training in (False, True):
            found = recorded(
                SCORED, kind, attention, training=training, by=partial(scores.reordered_copies, eps=1e-2)
            )
            for copy, (count, rejected, seen) in found.items():
                what = "training" if training else "forward"
                print(f"{kind:12} {what:8} {copy:8} {count:4} copies: {rejected:.3f} rejected, {seen:.3f} reordered")
                counts[copy] += count * np.array([1.0, rejected, seen])
    return {
        f"{figure}_{copy}": float(of_copy[i] / of_copy[0])
        for i, figure in ((1, "reject"), (2, "label"))
        for copy, of_copy in counts.items()
    }


# --- regions ---


def cut() -> Figures:
    """Regions of GPT-2 with 12 layers."""
    forward = partial(recorded, TWELVE, "transformers")
    step = partial(recorded, TWELVE, "transformers", training=True)
    whole = partial(step, micro_batches=2, clip=True)
    eager = step("eager")
    pairs = {
        "forward eager / sdpa": (forward("eager"), forward("sdpa")),
        "forward eager / own": (forward("eager"), recorded(TWELVE, *OWN)),
        "step loop / loop": (eager, step("eager")),
        "step eager / sdpa": (eager, step("sdpa")),
        "whole step loop / loop": (whole("eager"), whole("eager")),
        "step loop / foreach": (eager, step("eager", foreach=True)),
        "step loop / fused": (eager, step("eager", fused=True)),
        "step eager / own": (eager, recorded(TWELVE, *OWN, training=True)),
    }
    figures: Figures = {"element_coverage": 1.0, "one_sided_optimizer": 0.0}
    print(f"{'12 layers':24}{'operators':>14}{'regions':>9}{'mean':>12}{'elements':>18}{'one-sided':>11}{'s':>7}")
    for name, (a, b) in pairs.items():
        started = time.perf_counter()
        found = match_records(a, b)
        seconds = time.perf_counter() - started
        regions = found.matched.regions
        both = np.intersect1d(regions.a, regions.b)
        sizes, covered, one_sided = [], [], 0
        for side, region in ((found.a, regions.a), (found.b, regions.b)):
            inside, elements = np.isin(region, both), _elements(side.graph)
            sizes.append(inside.sum() / len(both))
            covered.append(elements[inside].sum() / elements.sum())
            optimizer = (side.ops["phase"] == "optimizer").to_numpy()
            one_sided += int((optimizer & ~inside & (_largest(side.graph) >= 8)).sum())
        print(
            f"{name:24}{len(regions.a):7}{len(regions.b):7}{len(both):9}{sizes[0]:6.2f}{sizes[1]:6.2f}"
            f"{covered[0]:9.5f}{covered[1]:9.5f}{one_sided:11}{seconds:7.2f}"
        )
        figures["element_coverage"] = min(figures["element_coverage"], *covered)
        if name == "forward eager / sdpa":
            figures |= {"regions_gpt2_forward": len(both), "region_size_gpt2_forward": max(sizes)}
        if name == "whole step loop / loop":
            figures |= {"regions_gpt2_training": len(both), "region_size_gpt2_training": max(sizes)}
        if name in ("step loop / foreach", "step loop / fused"):
            figures["one_sided_optimizer"] += one_sided
    return figures


def _elements(graph: MatchGraph) -> np.ndarray:
    """(operators,) elements that each computes; views and copies compute none."""
    made = np.bincount(graph.outputs.rows, graph.numel[graph.outputs.flat], graph.n_ops)
    return np.where(group_values(graph).identity, 0, made)


def _largest(graph: MatchGraph) -> np.ndarray:
    """(operators,) elements of its largest result."""
    return np.array([graph.numel[graph.outputs[op]].max(initial=0) for op in range(graph.n_ops)])


# --- speed ---

SIZES = {
    # name: layers and style of both sides
    "match_1k": ((4, "plain"), (4, "plain")),
    "match_7k": ((29, "plain"), (29, "plain")),
    "match_20k": ((83, "plain"), (88, "fused")),
    "match_60k": ((247, "plain"), (247, "plain")),
}


def speed() -> Figures:
    """Time of a match of two training graphs, and memory of the largest.

    The matcher has one thread: its CPU time is what it takes where it has a core to itself.
    """
    figures: Figures = {}
    print(f"{'training graphs':16}{'operators':>16}{'ids':>8}{'regions':>9}{'s':>8}{'s per 10k operators':>22}")
    for name, sides in SIZES.items():
        a, b = _graphs(*sides)
        seconds = []
        for _ in range(3 if name == "match_60k" else REPEATS):
            started = time.process_time()
            found = match(a, b, 1e-3)
            seconds.append(time.process_time() - started)
        median = statistics.median(seconds)
        both = len(np.intersect1d(found.regions.a, found.regions.b))
        per_10k = median / (a.n_ops + b.n_ops) * 1e4
        print(f"{name:16}{a.n_ops:8}{b.n_ops:8}{found.ids:8}{both:9}{median:8.3f}{per_10k:22.3f}", flush=True)
        figures[f"{name}_s"] = median
        del a, b, found
    figures["match_60k_peak_gib"] = _elsewhere("peak_of_60k")
    return figures


def _graphs(one: tuple[int, str], two: tuple[int, str]) -> tuple[MatchGraph, MatchGraph]:
    a, b = (
        transformer(side, style, layers, training=True).graph(1e-5, seed)
        for seed, (side, (layers, style)) in enumerate((("a", one), ("b", two)))
    )
    return a, b


def peak_of_60k() -> float:
    """GiB of a process that makes and matches the largest graphs."""
    match(*_graphs(*SIZES["match_60k"]), 1e-3)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _elsewhere(function: str) -> float:
    """Result of a function here, in a process of its own."""
    command = [sys.executable, __file__, function]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def many_ranks() -> Figures:
    """1,024 ranks of one structure: hash on each rank aside."""
    a, b = _graphs((26, "plain"), (26, "fused"))
    ranks = 1024
    started = time.process_time()
    assert structure(a) != structure(b)
    hashing = time.process_time() - started
    rng = np.random.default_rng(0)
    joules = [rng.gamma(2.0, 1.0, size=(ranks, graph.n_ops)) for graph in (a, b)]
    seconds = []
    for _ in range(REPEATS):
        started = time.process_time()
        numbers = [pair.number for pair in corresponding(ranks, ranks)]
        found = match(a, b, 1e-3)
        of_ops = zip((found.regions.a, found.regions.b), joules, strict=True)
        sums = [region_sums(region, found.regions.count, of_op) for region, of_op in of_ops]
        difference = sums[1] - sums[0]
        largest = np.argsort(-np.abs(difference.sum(axis=0)))[:MOST_RESULTS]
        spreads = [spread_over(numbers, difference[:, region]) for region in largest]
        seconds.append(time.process_time() - started)
    assert len(spreads) == MOST_RESULTS
    assert np.allclose(sums[1].sum(), joules[1].sum())
    median = statistics.median(seconds)
    print(f"{ranks} ranks, {a.n_ops} / {b.n_ops} operators: {median:.3f} s; hash {hashing * 1e3:.1f} ms a rank pair")
    return {"ranks_1024_s": median}


# --- cost ---


def cost() -> Figures:
    """What fingerprints cost the step they are taken in."""
    from model import GPT

    torch.manual_seed(0)
    gpt = GPT(vocabulary=512, tokens=256, layers=4, dim=256)
    adam = torch.optim.AdamW(gpt.parameters(), lr=1e-3)
    ids = torch.randint(512, (4, 256))

    def step() -> None:
        adam.zero_grad()
        gpt(ids).backward()
        adam.step()

    def timed(call: Callable[[], object]) -> float:
        started = time.process_time()
        call()
        return time.process_time() - started

    step()
    plain, graph, prints = [], [], []
    for _ in range(REPEATS):
        plain.append(timed(step))
        graph.append(_recording_s(step, None))
        prints.append(_recording_s(step, Fingerprints))
    middle = [statistics.median(seconds) for seconds in (plain, graph, prints)]
    print(f"example GPT, 4 x 256, 4 x 256 tokens: step {middle[0]:.3f} s, graph {middle[1]:.3f} s, "
          f"fingerprints {middle[2]:.3f} s")  # fmt: skip
    return {
        "graph_step_ratio": middle[1] / middle[0],
        "fingerprint_step_ratio": middle[2] / middle[0],
        "fingerprint_peak_ratio": _elsewhere("peak_of_a_gib"),
    }


def _recording_s(step: Callable[[], object], fingerprints: Callable[[Spool], Fingerprints] | None) -> float:
    """CPU time of a recorded step, its rows written."""
    with TemporaryDirectory() as folder, recorder(folder, fingerprints) as recording:
        started = time.process_time()
        recording.start(0)
        step()
        recording.stop()
        seconds = time.process_time() - started
    return seconds


def peak_of_a_gib() -> float:
    """Memory that the fingerprint of 1 GiB takes at most, relative to it."""
    with TemporaryDirectory() as folder:
        prints = Fingerprints(Spool(folder, 1e9))
        for number, rows in enumerate((1 << 10, 1 << 18)):  # the small one makes torch load what it needs
            x = torch.ones(rows, 1024)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            prints.read(number, (number, 0), x, "aten.mm.default", "forward")
            prints.finish(lambda _: (0, 0))
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / x.nbytes


if __name__ == "__main__":
    if sys.argv[1:]:
        print({"peak_of_60k": peak_of_60k, "peak_of_a_gib": peak_of_a_gib}[sys.argv[1]]())
    else:
        main()
