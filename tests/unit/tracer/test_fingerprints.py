"""When fingerprints are taken, of what, and what they leave alone."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from magneton_dist.tracer import fingerprints as module
from magneton_dist.tracer.fingerprints import Fingerprints
from magneton_dist.tracer.graph import GraphRecorder
from magneton_dist.tracer.invariants import PROFILE
from magneton_dist.tracer.parameters import digest
from magneton_dist.tracer.readback import BLOCK, Readback
from magneton_dist.tracer.rows import FIELDS
from magneton_dist.tracer.stacks import Stacks

NAMES = FIELDS["fingerprint"]


def found(rows: Any) -> list[dict[str, Any]]:
    return [dict(zip(NAMES, row, strict=True)) for row in rows.of("fingerprint")]


def by_value(rows: Any) -> dict[int, dict[str, Any]]:
    return {value: row for row in found(rows) for value in row["values"]}


def recorded(rows: Any, step: Callable[[], object], **options: Any) -> dict[int, dict[str, Any]]:
    """The fingerprint of every value of a recorded step."""
    recorder = GraphRecorder(rows, Stacks(rows), Fingerprints(rows, **options))
    recorder.start(0)
    try:
        step()
    finally:
        recorder.stop()
    return by_value(rows)


def operators(rows: Any) -> list[tuple[str, list[int], list[int]]]:
    names = FIELDS["op"]
    places = [names.index(name) for name in ("name", "inputs", "outputs")]
    return [tuple(row[p] for p in places) for row in rows.of("op")]  # type: ignore[misc]


def exact(x: torch.Tensor) -> str:
    return digest(x).exact


def test_every_value_read_or_written_has_one(rows):
    x, w = torch.randn(5, 7), torch.randn(7, 3)
    known = recorded(rows, lambda: (x @ w).relu())
    (product, read, made), (_, _, result) = operators(rows)
    assert product == "aten.mm.default"
    assert known[read[0]]["exact"] == exact(x)
    assert known[read[1]]["exact"] == exact(w)
    assert known[made[0]]["exact"] == exact(x @ w)
    assert known[result[0]]["exact"] == exact((x @ w).relu())
    assert rows.of("fault") == []


def test_a_value_is_looked_at_before_it_is_overwritten(rows):
    x = torch.randn(4, 4)
    before = x.clone()

    def step() -> None:
        x.mul_(2)
        x.zero_()

    known = recorded(rows, step)
    (_, read, doubled), (_, _, zeroed) = operators(rows)
    assert known[read[0]]["exact"] == exact(before)
    assert known[doubled[0]]["exact"] == exact(before * 2)
    assert known[zeroed[0]]["exact"] == exact(torch.zeros(4, 4))


def test_views_of_one_content_share_what_they_have_in_common(rows):
    x = torch.randn(4, 6, 5)
    known = recorded(rows, lambda: (x.transpose(0, 2) + 1, x.view(24, 5) + 1, x.view(24, 5).t() + 1))
    shapes = {tuple(row["shape"]): row for row in found(rows) if row["exact"] == exact(x)}
    cube, flat = shapes[4, 6, 5], shapes[24, 5]
    assert len(flat["values"]) == 2
    assert len(cube["values"]) >= 2
    # an unfolding and a profile that both shapes have are the same numbers
    assert flat["s4"][flat["unfoldings"].index(5)] == cube["s4"][cube["unfoldings"].index(5)]
    of_last = [row["profiles"][PROFILE * row["modes"].index(5) :][:PROFILE] for row in (flat, cube)]
    assert of_last[0] == of_last[1]
    assert len(known) == len({v for _, read, made in operators(rows) for v in (*read, *made)})


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(3, 4), lambda: torch.zeros(0, 4), lambda: torch.tensor(2.5), lambda: torch.tensor(True),
        lambda: torch.tensor([float("nan"), float("inf"), 1.0]), lambda: torch.full((2, 3), float("nan")),
        lambda: torch.ones(3, dtype=torch.complex64), lambda: torch.randn(3, 4, dtype=torch.complex64).t().conj(),
        lambda: torch.randn(4, dtype=torch.complex64).conj().imag, lambda: torch.arange(5),
        lambda: torch.randn(1, 1, 1), lambda: torch.randn(2, 1, 3, 1), lambda: torch.randn(3).expand(4, 3),
        lambda: torch.randn(8)[::2],
        lambda: torch.randn(4, 4).to(torch.bfloat16), lambda: torch.randn(2, 2, 2, 2, 2, 2),
        lambda: torch.tensor([2**63 - 1, -(2**63)]), lambda: torch.randn(7).to(torch.float8_e4m3fn),
        lambda: torch.randn(5).to_sparse(), lambda: torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8),
        lambda: torch.randn(4, device="meta"), lambda: torch.randn(0), lambda: torch.randn(5, 0, 2).transpose(0, 2),
    ],
)  # fmt: skip
def test_nothing_raises_and_all_numbers_are_finite(rows, make):
    x = make()
    recorded(rows, lambda: x.clone())
    assert rows.of("fault") == []
    for row in found(rows):
        figures = [row[name] for name in ("sum", "l1", "l2", "l4", "excluded")] + row["s4"] + row["profiles"]
        assert all(-1e300 < figure < 1e300 for figure in figures)


def test_the_job_does_not_notice(rows):
    """Random numbers, gradients, modes and settings are what they would be without."""

    class Count(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    def step(weight: torch.Tensor) -> list[Any]:
        torch.manual_seed(0)
        with Count() as count, torch.autocast("cpu", torch.bfloat16):
            y = torch.nn.functional.dropout(torch.randn(6, 8) @ weight, 0.5)
            y.float().square().sum().backward()
        return [y.detach(), weight.grad, torch.rand(3), count.seen]

    weights = [torch.nn.Parameter(torch.linspace(-1, 1, 40).view(8, 5)) for _ in range(2)]
    plain = step(weights[0])
    results: list[Any] = []
    recorded(rows, lambda: results.extend(step(weights[1])))
    assert torch.equal(plain[0], results[0])
    assert torch.equal(plain[1], results[1])
    assert torch.equal(plain[2], results[2])
    assert plain[3] == results[3]
    assert rows.of("fault") == []


def test_nothing_is_read_back_before_the_end_of_the_step(rows, monkeypatch):
    """No operator that would wait for a device: neither copies to the host nor sizes that depend on data."""
    x, w = torch.randn(40, 30), torch.randn(30, 300)
    prints = Fingerprints(rows)
    # on a CPU a look is free; here it is to go the way of a device
    monkeypatch.setattr(module.invariants, "is_on_host", lambda tensor: False)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for number, tensor in enumerate((x, w, torch.randn(200_000), torch.tensor(1.0)), start=1):
            prints.read(number, (number, 0), tensor, "aten.mm.default", "forward")
    called = {event.name for event in profiler.events()}
    waits = {"aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::masked_select"}
    assert "aten::sum" in called
    assert not called & waits
    prints.finish(lambda _: (0, 0))
    assert len(found(rows)) == 4


def test_results_of_a_collective_are_looked_at_when_they_are_read(rows):
    prints = Fingerprints(rows)
    tensor = torch.zeros(8)
    prints.written(1, (1, 1), tensor, "c10d.allreduce_.default", "backward")
    tensor += 3  # it ends now
    prints.read(1, (1, 1), tensor, "_c10d_functional.wait_tensor.default", "backward")
    tensor += 1
    prints.read(1, (1, 1), tensor, "aten.div.Tensor", "backward")
    prints.finish(lambda _: (1, 1))
    assert by_value(rows)[1]["exact"] == exact(torch.full((8,), 4.0))


def test_what_nobody_reads_after_a_collective_is_looked_at_in_the_end_if_it_is_still_there(rows):
    prints = Fingerprints(rows)
    kept, changed, dropped = torch.ones(8), torch.ones(8), torch.ones(8)
    for number, tensor in enumerate((kept, changed, dropped), start=1):
        prints.written(number, (number, 1), tensor, "c10d.allreduce_.default", "backward")
    versions = {id(kept): (1, 1), id(changed): (2, 5)}
    del dropped, tensor
    gc.collect()
    prints.finish(lambda t: versions[id(t)])
    assert by_value(rows).keys() == {1}


def test_a_real_all_reduce(rows, tmp_path):
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        tensor = torch.full((16,), 2.0)

        def step() -> None:
            dist.all_reduce(tensor)
            tensor.mul_(2)

        known = recorded(rows, step)
    finally:
        dist.destroy_process_group()
    names = [name for name, _, _ in operators(rows)]
    reduced = operators(rows)[names.index("c10d.allreduce_.default")][2]
    assert known[reduced[0]]["exact"] == exact(torch.full((16,), 2.0))
    assert rows.of("fault") == []


def test_a_freed_storage_is_left_out(rows):
    prints = Fingerprints(rows)
    tensor = torch.ones(8)
    tensor.untyped_storage().resize_(0)
    prints.read(1, (1, 0), tensor, "aten.mm.default", "forward")
    prints.finish(lambda _: (0, 0))
    assert found(rows) == []
    assert rows.of("fault") == []


def test_a_tensor_that_wraps_another_one_is_left_alone(rows):
    """It has a shape and a storage, and nothing is there: to read it ends the process."""

    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner: torch.Tensor) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise NotImplementedError(str(func))

    wrapper = Wrapper(torch.ones(16))
    prints = Fingerprints(rows)
    prints.written(1, (1, 0), wrapper, "_c10d_functional._wrap_tensor_autograd.default", "forward")
    prints.read(2, (2, 0), wrapper, "aten.add.Tensor", "forward")
    prints.finish(lambda _: (1, 0))
    assert found(rows) == []
    assert rows.of("fault") == []


def test_failures_are_faults_and_end_the_attempts(rows, monkeypatch):
    calls = []

    def fail(*_: object) -> torch.Tensor:
        calls.append(1)
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(module.invariants, "moments", fail)
    prints = Fingerprints(rows)
    for number in range(100):
        prints.read(number, (number, 0), torch.zeros(1 << 17), "aten.mm.default", "forward")
    prints.finish(lambda _: (0, 0))
    assert rows.of("fault") == [["fingerprints", "RuntimeError: no such kernel"]]
    assert len(calls) == module.MOST_FAILURES
    assert found(rows) == []


def test_small_and_large_tensors_give_the_same_as_alone(rows):
    """Batches change nothing: neither their size nor who is in them."""
    tensors = [torch.randn(3, 5, generator=torch.Generator().manual_seed(i)) for i in range(300)]
    large = torch.randn(300, 500)
    prints = Fingerprints(rows)
    for number, tensor in enumerate([*tensors, large, large.t()], start=1):
        prints.read(number, (min(number, 301), 0), tensor, "aten.mm.default", "forward")
    prints.finish(lambda _: (0, 0))
    together = by_value(rows)
    assert together.keys() == set(range(1, 303))
    assert together[301] == together[302]
    for number in (1, 150, 300, 301):
        tensor = tensors[number - 1] if number <= 300 else large
        prints.read(1000 + number, (1000 + number, 0), tensor, "aten.mm.default", "forward")
        prints.finish(lambda _: (0, 0))
        alone = by_value(rows)[1000 + number]
        for name in ("exact", "elements", "shape", "unfoldings", "modes"):
            assert alone[name] == together[number][name]
        for name in ("s4", "profiles"):
            assert alone[name] == pytest.approx(together[number][name], abs=1e-5)


def test_a_new_shape_of_what_waits_in_a_batch_is_not_lost(rows):
    x = torch.randn(4, 6)
    prints = Fingerprints(rows)
    for number, view in enumerate((x, x.view(24), x.view(2, 2, 6)), start=1):
        prints.read(number, (1, 0), view, "aten.mm.default", "forward")
    prints.finish(lambda _: (0, 0))
    assert {tuple(row["shape"]): row["values"] for row in found(rows)} == {(4, 6): [1], (24,): [2], (2, 2, 6): [3]}


def test_optimizer_states_and_huge_tensors_have_short_unfoldings_only(rows, monkeypatch):
    monkeypatch.setattr(module, "LARGE", 10_000)
    prints = Fingerprints(rows)
    x, y = torch.randn(200, 40), torch.randn(200, 300)
    prints.read(1, (1, 0), x.view(200, 40), "aten.mm.default", "forward")
    prints.read(2, (2, 0), torch.randn(200, 200)[:, :40].contiguous(), "aten.mul.Tensor", "optimizer")
    prints.read(3, (3, 0), torch.randn(200, 200), "aten.mul.Tensor", "optimizer")
    prints.read(4, (4, 0), y, "aten.mm.default", "forward")
    prints.finish(lambda _: (0, 0))
    known = by_value(rows)
    assert [known[v]["unfoldings"] for v in (1, 2, 3, 4)] == [[40], [40], [], []]


def test_when_the_budget_is_spent_it_is_said(rows, monkeypatch):
    monkeypatch.setattr(module, "BUDGET_CPU", 1e5)
    prints = Fingerprints(rows)
    for number in (1, 2):
        prints.read(number, (number, 0), torch.randn(8, 100, 100), "aten.mm.default", "forward")
    prints.finish(lambda _: (0, 0))
    known = by_value(rows)
    assert (known[1]["unfoldings"], known[2]["unfoldings"]) == ([8, 100, 100], [8])
    assert [where for where, _ in rows.of("fault")] == ["fingerprints budget"]


def test_spectra_on_request(rows):
    x = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    known = recorded(rows, lambda: x + 1, spectra=True)
    row = next(row for row in known.values() if row["exact"] == exact(x))
    expected = torch.linalg.svdvals(x / x.norm()).tolist()
    assert row["singular"] == pytest.approx(expected, abs=1e-5)
    assert row["unfoldings"] == [6]


def test_rows_wait_for_the_device(rows, monkeypatch):
    """The numbers arrive later: the spool asks again before each segment."""
    arrived = []
    monkeypatch.setattr(Readback, "arrived", lambda self: bool(arrived))
    prints = Fingerprints(rows)
    prints.read(1, (1, 0), torch.ones(3), "aten.mm.default", "forward")
    prints.finish(lambda _: (0, 0))
    for prepare in rows.before_flush:
        prepare()
    assert found(rows) == []
    arrived.append(True)
    for prepare in rows.before_flush:
        prepare()
    assert [row["values"] for row in found(rows)] == [[1]]


def test_steps_do_not_mix(rows):
    prints = Fingerprints(rows)
    for step in range(2):
        prints.read(10 + step, (1, 0), torch.full((9,), float(step)), "aten.mm.default", "forward")
        prints.finish(lambda _: (0, 0))
    assert by_value(rows)[10]["exact"] != by_value(rows)[11]["exact"]


def test_readback_hands_out_places_in_blocks():
    readback = Readback(torch.device("cpu"), None)
    first, out = readback.room(3)
    out.copy_(torch.tensor([1.0, 2.0, 3.0]))
    readback.room(BLOCK - 10)
    beyond, out = readback.room(100)  # does not fit into what is left of the first block
    out.fill_(7)
    assert not readback.arrived()
    readback.send()
    assert readback.arrived()
    numbers = readback.numbers()
    assert numbers[first : first + 3].tolist() == [1.0, 2.0, 3.0]
    assert (beyond, numbers[beyond : beyond + 100].unique().tolist()) == (BLOCK, [7.0])
