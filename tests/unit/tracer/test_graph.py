import gc
import json
from pathlib import Path
from types import SimpleNamespace

import networkx as nx
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

from magneton_dist.records.assembly import assemble
from magneton_dist.records.graph import operator_graph
from magneton_dist.tracer import graph as graph_module
from magneton_dist.tracer.graph import GraphRecorder
from magneton_dist.tracer.rows import FIELDS
from magneton_dist.tracer.spool import Spool
from magneton_dist.tracer.stacks import Stacks


class Rows:
    live = True

    def __init__(self) -> None:
        self.rows: list[tuple[object, ...]] = []

    def put(self, *row: object) -> None:
        self.rows.append(row)

    def fault(self, where: str, error: object) -> None:
        self.rows.append(("fault", where, str(error)))

    def of(self, kind: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(**dict(zip(FIELDS[kind], r[1:], strict=True))) for r in self.rows if r[0] == kind]


class Recording:
    """``with Recording() as step: ...`` and then its operators, values and stacks."""

    def __init__(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        gc.collect()  # models of earlier tests
        self.spool = Rows()
        self.recorder = GraphRecorder(self.spool, Stacks(self.spool))
        if optimizer is not None:
            optimizer.register_step_pre_hook(lambda *_: setattr(self.recorder, "phase", "optimizer"))
            optimizer.register_step_post_hook(lambda *_: setattr(self.recorder, "phase", None))

    def __enter__(self) -> "Recording":
        self.recorder.start(3)
        return self

    def __exit__(self, *_: object) -> None:
        self.recorder.stop()
        self.ops = self.spool.of("op")
        self.values = {value.value_id: value for value in self.spool.of("value")}
        self.stacks = {stack.stack_id: stack.frames for stack in self.spool.of("stack")}
        assert self.spool.of("fault") == []

    def names(self, phase: str | None = None) -> list[str]:
        return [op.name.removeprefix("aten.") for op in self.ops if phase in (None, op.phase)]

    def op(self, name: str) -> SimpleNamespace:
        (found,) = [op for op in self.ops if op.name == f"aten.{name}"]
        return found

    def functions(self, op: SimpleNamespace) -> list[str]:
        return [function for _, _, function in self.stacks[op.stack_id]]


def test_a_training_step_has_exactly_its_operators():
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, foreach=False)
    x = torch.ones(5, 3)
    with Recording(optimizer) as step:
        model(x).sum().backward()
        optimizer.step()
    assert [(op.phase, op.name) for op in step.ops] == [
        ("forward", "aten.t.default"),
        ("forward", "aten.addmm.default"),
        ("forward", "aten.relu.default"),
        ("forward", "aten.detach.default"),  # autograd keeps the result of relu
        ("forward", "aten.sum.default"),
        ("forward", "aten.ones_like.default"),  # the gradient of the loss, made before the backward pass
        ("backward", "aten.expand.default"),
        ("backward", "aten.detach.default"),
        ("backward", "aten.threshold_backward.default"),
        ("backward", "aten.t.default"),
        ("backward", "aten.mm.default"),
        ("backward", "aten.t.default"),
        ("backward", "aten.sum.dim_IntList"),
        ("backward", "aten.view.default"),
        ("backward", "aten.detach.default"),
        ("backward", "aten.t.default"),
        ("backward", "aten.detach.default"),
        ("optimizer", "aten.add_.Tensor"),
        ("optimizer", "aten.add_.Tensor"),
    ]
    assert [op.op_id for op in step.ops] == list(range(19))
    assert {op.step for op in step.ops} == {3}
    assert all(op.start_ns <= op.end_ns for op in step.ops)


def test_the_values_of_a_training_step_have_their_roles():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, foreach=False)
    x = torch.ones(5, 3)

    def train() -> None:
        model(x).sum().backward()
        optimizer.step()

    train()
    optimizer.zero_grad()
    with Recording(optimizer) as step:
        train()
    value = step.values
    bias, given, weight = (value[v] for v in step.op("addmm.default").inputs)
    assert [(v.role, v.slot) for v in (bias, given, weight)] == [
        ("parameter", "bias"),
        ("input", None),
        ("parameter", "weight"),
    ]
    assert (weight.shape, weight.stride, weight.bytes) == ([3, 2], [1, 3], 24)
    (product,) = step.op("addmm.default").outputs
    assert (value[product].role, value[product].shape) == ("activation", [5, 2])
    (gradient,) = step.op("mm.default").outputs
    assert (value[gradient].role, value[gradient].slot) == ("gradient", "weight")
    updates = [op for op in step.ops if op.name == "aten.add_.Tensor" and "alpha" in op.arguments]
    assert [[(value[v].role, value[v].slot) for v in op.inputs] for op in updates] == [
        [("parameter", "weight"), ("optimizer_state", "weight")],
        [("parameter", "bias"), ("optimizer_state", "bias")],
    ]
    (new,) = updates[1].outputs
    assert (value[new].storage, value[new].version) == (bias.storage, bias.version + 1)


def test_an_operator_in_place_reads_the_old_version_and_writes_a_new_one():
    x, y = torch.ones(4), torch.ones(4)
    with Recording() as step:
        x.add_(y)
        x.mul_(2)
    add, mul = step.ops
    assert len(add.inputs) == 2
    assert mul.inputs == add.outputs
    assert [step.values[v].version for v in (add.inputs[0], add.outputs[0], mul.outputs[0])] == [0, 1, 2]
    assert {step.values[v].storage for v in (add.inputs[0], add.outputs[0], mul.outputs[0])} == {1}
    assert json.loads(add.arguments) == [{"v": add.inputs[0]}, {"v": add.inputs[1]}]
    assert json.loads(mul.arguments) == [{"v": mul.inputs[0]}, 2]


def test_overwriting_a_whole_storage_reads_nothing_of_it_and_a_part_does():
    x, y = torch.ones(4), torch.zeros(4)
    with Recording() as step:
        x.copy_(y)
        x[:2].copy_(y[:2])
        x.zero_()
    whole, part, zero = (op for op in step.ops if op.name in ("aten.copy_.default", "aten.zero_.default"))
    assert len(whole.inputs) == 1
    assert json.loads(whole.arguments)[0] == {"v": whole.outputs[0]}
    assert len(part.inputs) == 2  # the other half of x lives on in the new version
    assert zero.inputs == []


def test_out_is_written_and_not_read():
    x, out = torch.ones(4), torch.empty(4)
    with Recording() as step:
        torch.add(x, 1, out=out)
        out.neg()
    add, neg = step.ops
    assert add.name == "aten.add.out"
    assert [step.values[v].storage for v in add.inputs] == [1]
    assert neg.inputs == add.outputs
    assert step.values[add.outputs[0]].version == 1
    assert json.loads(add.arguments)[-1] == {"name": "out", "value": {"v": add.outputs[0]}}


def test_reading_a_view_after_a_write_leads_back_to_the_writer():
    x = torch.ones(4)
    view = x[1:]
    with Recording() as step:
        x.add_(1)
        view.neg()
    add, neg = step.ops
    assert neg.inputs[0] in add.outputs
    assert step.values[neg.inputs[0]].shape == [3]


def test_list_operators_keep_their_lanes():
    a, b = [torch.ones(2), torch.ones(3)], [torch.ones(2), torch.ones(3)]
    with Recording() as step:
        torch._foreach_add_(a, b)
        torch._foreach_mul(a, 2.0)
    add, mul = step.ops
    lanes = [[{"v": v} for v in add.inputs[:2]], [{"v": v} for v in add.inputs[2:]]]
    assert json.loads(add.arguments) == lanes
    assert [step.values[v].shape for v in add.outputs] == [[2], [3]]
    assert mul.inputs == add.outputs
    assert len(mul.outputs) == 2


def test_long_lists_are_cut_in_the_arguments_and_nowhere_else():
    many = [torch.ones(1) for _ in range(2050)]
    with Recording() as step:
        torch._foreach_neg(many)
    assert len(step.ops[0].inputs) == len(step.ops[0].outputs) == 2050
    (items,) = json.loads(step.ops[0].arguments)
    assert len(items) == 2049
    assert items[-1] == {"more": 2}


def test_optional_tensors_and_other_arguments():
    x = torch.ones(1, 2, 4, 8)
    with Recording() as step:
        functional.layer_norm(x, (8,), weight=torch.ones(8))
        torch.full((2,), float("inf"), dtype=torch.float64, device="cpu")
    norm, full = step.op("native_layer_norm.default"), step.op("full.default")
    assert len(norm.inputs) == 2
    assert json.loads(norm.arguments) == [{"v": norm.inputs[0]}, [8], {"v": norm.inputs[1]}, None, 1e-5]
    assert json.loads(full.arguments)[:3] == [
        [2],
        {"float": "inf"},
        {"name": "dtype", "value": {"dtype": "float64"}},
    ]


def test_changing_the_view_of_a_tensor_in_place_writes_nothing():
    x = torch.ones(2, 3)
    with Recording() as step:
        x.t_()
        x.neg()
    assert [step.values[v].version for v in step.op("neg.default").inputs] == [0]
    assert [step.values[v].shape for v in step.op("neg.default").inputs] == [[3, 2]]


def test_batch_norm_writes_its_running_statistics():
    model = nn.BatchNorm1d(2)
    with Recording() as step:
        model(torch.ones(4, 2))
    norm = step.op("native_batch_norm.default")
    written = [step.values[v] for v in norm.outputs[3:]]
    assert [(v.role, v.slot, v.version) for v in written] == [
        ("buffer", "running_mean", 1),
        ("buffer", "running_var", 1),
    ]


def test_clipping_and_logging_are_other():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(3, 2)
    with Recording(optimizer) as step:
        torch.zeros(1)
        loss = model(x).sum()
        loss.backward()
        loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        (model(x) * 2).sum().backward()  # a second micro-batch is forward and backward again
    assert step.names("other")[0] == "zeros.default"
    assert {"_local_scalar_dense.default", "linalg_vector_norm.default"} <= set(step.names("other"))
    assert step.names("forward").count("addmm.default") == 2
    assert step.names("forward").count("mul.Tensor") == 1
    assert step.names("backward").count("mm.default") == 2
    assert set(step.names("optimizer")) <= {"add_.Tensor", "_foreach_add_.List"}


def test_what_leads_to_the_forward_pass_belongs_to_it():
    model = nn.Linear(2, 2)
    with Recording() as step:
        tokens = torch.arange(6, dtype=torch.float32)  # autograd does not record any of this
        batch = torch.empty(3, 2)
        batch.copy_(tokens.view(3, 2))
        torch.arange(7)
        model(batch).sum().backward()
    assert step.names("other") == ["empty.memory_format", "arange.default"]  # copy_ reads nothing of empty
    assert step.names("forward")[:4] == ["arange.default", "view.default", "copy_.default", "t.default"]


def forward_here(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x)


def backward_here(loss: torch.Tensor) -> None:
    loss.backward()


def test_a_backward_operator_has_the_stack_of_its_forward_operator():
    model = nn.Linear(2, 2)
    with Recording() as step:
        backward_here(forward_here(model, torch.ones(3, 2)).sum())
    assert "forward_here" in step.functions(step.op("mm.default"))
    assert "backward_here" not in step.functions(step.op("mm.default"))
    accumulate = [op for op in step.ops if op.phase == "backward" and op.name == "aten.detach.default"]
    assert all("backward_here" in step.functions(op) for op in accumulate)


def test_python_in_the_backward_pass_has_its_own_stack():
    def double_in_hook(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2

    weight = torch.ones(2, requires_grad=True)
    with Recording() as step:
        product = weight.exp()
        product.register_hook(double_in_hook)
        backward_here(product.sum())
    (hook,) = [op for op in step.ops if json.loads(op.arguments)[1:] == [2]]
    assert hook.phase == "backward"
    assert step.functions(hook)[0] == "double_in_hook"


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_is_backward_and_shows_the_model_s_line(reentrant: bool):
    model = nn.Linear(2, 2)

    def block(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(model(x))

    x = torch.ones(3, 2, requires_grad=True)
    with Recording() as step:
        backward_here((checkpoint(block, x * 1, use_reentrant=reentrant)).sum())
    addmms = [op for op in step.ops if op.name == "aten.addmm.default"]
    assert [op.phase for op in addmms] == ["forward", "backward"]
    assert all("block" in step.functions(op) for op in addmms)
    assert "backward_here" in step.functions(addmms[1])


def small_run(recorder: GraphRecorder | None) -> list[torch.Tensor]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-2, foreach=True)
    for step in range(3):
        if recorder is not None:
            recorder.start(step)
        layer(torch.randn(2, 5, 8)).square().mean().backward()
        optimizer.step()
        if recorder is not None:
            recorder.stop()
        optimizer.zero_grad()
    return [*layer.parameters(), torch.rand(4)]


def test_results_are_bit_identical():
    spool = Rows()
    recorded = small_run(GraphRecorder(spool, Stacks(spool)))
    assert all(torch.equal(a, b) for a, b in zip(recorded, small_run(None), strict=True))
    assert len(spool.of("op")) > 300
    assert spool.of("fault") == []


def test_the_record_of_real_steps_is_a_sound_acyclic_graph(tmp_path: Path):
    spool = Spool(str(tmp_path), max_bytes=1e9)
    small_run(GraphRecorder(spool, Stacks(spool)))
    spool.close()
    tables = assemble(tmp_path)
    assert tables["faults"].rows() == []
    ops, values = tables["ops"], tables["values"]
    known = set(values["value_id"])
    assert values["value_id"].is_unique().all()
    assert set(ops["inputs"].explode().drop_nulls()) <= known
    assert set(ops["outputs"].explode().drop_nulls()) <= known
    assert set(ops["stack_id"]) <= set(tables["stacks"]["stack_id"])
    assert ops["step"].unique().sort().to_list() == [0, 1, 2]
    graph = operator_graph(ops, values)
    assert nx.is_directed_acyclic_graph(graph)
    assert all(producer < consumer for producer, consumer in graph.edges())
    # every activation that an operator reads was made by an operator
    made = {value for node in graph for value in graph.nodes[node]["outputs"]}
    activations = set(values.filter(role="activation")["value_id"])
    assert not activations.intersection(graph.graph["sources"]) - made
    assert {"parameter", "gradient", "optimizer_state", "activation"} <= set(values["role"])


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_functions_stay_compiled(backend: str):
    def counts(record: bool) -> tuple[dict[str, int], int]:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        compiled_calls = 0

        def counting(module, inputs):
            nonlocal compiled_calls

            def run(*args):
                nonlocal compiled_calls
                compiled_calls += 1
                return module(*args)

            return run if backend == "eager" else module

        model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        function = torch.compile(model, backend=counting if backend == "eager" else backend)
        spool = Rows()
        recorder = GraphRecorder(spool, Stacks(spool))
        for step in range(4):
            if record and step in (0, 2):
                recorder.start(step)
            function(torch.ones(3 if step < 3 else 4, 2)).sum().backward()
            if record and step in (0, 2):
                recorder.stop()
        assert spool.of("fault") == []
        return dict(torch._dynamo.utils.counters["stats"]), compiled_calls

    plain = counts(record=False)
    assert plain[0]["unique_graphs"] >= 1
    assert counts(record=True) == plain


def test_a_fault_is_said_once_and_the_operators_return_their_results(monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object) -> int:
        raise RuntimeError("no value")

    spool = Rows()
    recorder = GraphRecorder(spool, Stacks(spool))
    monkeypatch.setattr(graph_module.Values, "read", broken)
    recorder.start(0)
    y = torch.ones(2) + 1
    recorder.stop()
    assert y.tolist() == [2.0, 2.0]
    assert [(fault.where, fault.message) for fault in spool.of("fault")] == [("graph", "no value")]


def test_a_fault_after_the_operator_keeps_its_result(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(graph_module.Values, "produce", lambda *_: 1 / 0)
    spool = Rows()
    recorder = GraphRecorder(spool, Stacks(spool))
    recorder.start(0)
    y = torch.ones(2) + 1
    recorder.stop()
    assert y.tolist() == [2.0, 2.0]
    assert spool.of("op") == []


def test_the_user_s_error_comes_through_unchanged():
    with Recording() as step, pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert step.names() == ["ones.default", "ones.default"]


def test_a_mode_of_the_user_above_the_recorder_survives_its_end():
    class Counting(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.calls += 1
            return func(*args, **(kwargs or {}))

    spool = Rows()
    recorder = GraphRecorder(spool, Stacks(spool))
    recorder.start(0)
    with Counting() as mode:
        torch.ones(2)
        recorder.stop()
        torch.ones(2)
        assert _get_current_dispatch_mode_stack() == [mode]
    assert mode.calls == 2
    assert len(spool.of("op")) == 1
    assert _get_current_dispatch_mode_stack() == []


def test_nothing_is_recorded_outside_or_in_a_forked_child():
    spool = Rows()
    recorder = GraphRecorder(spool, Stacks(spool))
    torch.ones(2)
    recorder.start(0)
    spool.live = False  # what the spool of a forked child is
    torch.ones(2)
    recorder.stop()
    recorder.stop()
    assert spool.of("op") == []


def test_beyond_the_bound_operators_are_left_out_and_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(graph_module, "MOST_OPERATORS", 2)
    spool = Rows()
    recorder = GraphRecorder(spool, Stacks(spool))
    recorder.start(0)
    for _ in range(4):
        torch.ones(1)
    recorder.stop()
    assert len(spool.of("op")) == 2
    assert spool.of("fault")[0].message == "only the first 2 operators of a step are recorded"


def test_a_higher_order_operator_is_one_operator():
    from torch._higher_order_ops.wrap import wrap

    with Recording() as step:
        result = wrap(lambda x: x + 1, torch.ones(2))
    assert result.tolist() == [2.0, 2.0]
    assert "add.Tensor" in step.names() or "higher_order.wrap" in step.names()


@pytest.fixture
def world_of_one():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_collectives_are_operators_that_write(world_of_one: None):
    x, gathered = torch.ones(4), torch.empty(4)
    with Recording() as step:
        dist.all_reduce(x)
        dist.all_gather_into_tensor(gathered, x)
        x.neg()
    reduce, gather, neg = step.ops
    assert (reduce.name, gather.name) == ("c10d.allreduce_.default", "c10d._allgather_base_.default")
    assert [step.values[v].version for v in (*reduce.inputs, *reduce.outputs)] == [0, 1]
    assert neg.inputs == reduce.outputs
    assert gather.inputs == reduce.outputs  # what is overwritten is not read
    group = dist.group.WORLD.group_name
    assert json.loads(reduce.arguments)[1] == {"group": group}


def test_a_sharded_tensor_is_recorded_by_its_shard(world_of_one: None):
    from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor

    mesh = DeviceMesh("cpu", [0])
    weight = nn.Parameter(distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)]))
    optimizer = torch.optim.SGD([weight], lr=0.5, foreach=False)
    with Recording(optimizer) as step:
        (weight * 2).sum().backward()
        optimizer.step()
    assert step.names("forward") == ["mul.Tensor", "sum.default", "ones_like.default"]
    (update,) = [op for op in step.ops if op.phase == "optimizer"]
    assert [(step.values[v].role, step.values[v].slot) for v in update.inputs] == [
        ("parameter", "0.0"),
        ("gradient", "0.0"),
    ]
    assert step.values[update.inputs[0]].shape == [4, 2]
