import math
import random
import struct

import pytest
import torch

from magneton_dist.tracer.parameters import CHUNK, digest, emit_parameters, splitmix64

MASK = 2**64 - 1


def reference(bits: int) -> int:
    """Splitmix64 of Steele, Lea and Flood, in Python's integers."""
    mixed = (bits + 0x9E3779B97F4A7C15) & MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
    return mixed ^ (mixed >> 31)


def exact(numbers: list[float]) -> str:
    total = sum(reference(struct.unpack("<Q", struct.pack("<d", number))[0]) for number in numbers)
    return f"{total & MASK:016x}"


class Rows:
    live = True

    def __init__(self) -> None:
        self.rows: list[tuple[object, ...]] = []

    def put(self, *row: object) -> None:
        self.rows.append(row)

    def fault(self, where: str, error: object) -> None:
        self.rows.append(("fault", where, str(error)))


def test_splitmix64_gives_the_published_first_outputs():
    # outputs of the generator seeded with 0: its state grows by the golden gamma
    gamma = 0x9E3779B97F4A7C15
    states = torch.tensor([0, gamma - 2**64, 2 * gamma - 2**64], dtype=torch.int64)
    assert [int(value) & MASK for value in splitmix64(states)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


def test_the_sums_are_those_of_the_numbers():
    found = digest(torch.tensor([[3.0, -4.0], [0.0, 12.0]]))
    assert (found.sum, found.l1, found.l2) == (11.0, 19.0, 13.0)
    assert found.exact == exact([3.0, -4.0, 0.0, 12.0])


def test_the_projections_are_sums_under_the_signs_of_the_positions():
    numbers = [random.Random(1).uniform(-1, 1) for _ in range(100)]
    expected = [
        math.fsum(-x if reference(i) >> k & 1 else x for i, x in enumerate(numbers)) for k in range(8)
    ]
    assert digest(torch.tensor(numbers, dtype=torch.float64)).projections == pytest.approx(expected, abs=1e-12)


def test_chunks_make_no_difference():
    numbers = torch.linspace(-1, 1, CHUNK + 3, dtype=torch.float64)
    found = digest(numbers)
    assert found.exact == exact(numbers.tolist())
    signs = [-1.0 if reference(i) >> 5 & 1 else 1.0 for i in range(CHUNK + 3)]
    assert found.projections[5] == pytest.approx(math.fsum(map(float.__mul__, signs, numbers.tolist())), abs=1e-9)


def test_the_exact_sum_ignores_order_and_width_and_sees_one_bit():
    torch.manual_seed(0)
    x = torch.randn(64, 33).to(torch.bfloat16)
    same = digest(x).exact
    assert digest(x.t()).exact == same
    assert digest(x.flatten()[torch.randperm(x.numel())]).exact == same
    assert digest(x.to(torch.float32)).exact == same
    flipped = x.clone()
    flipped.view(torch.int16)[7, 7] ^= 1
    assert digest(flipped).exact != same


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(0),
        torch.tensor(2.5),
        torch.tensor([True, False]),
        torch.tensor([1, -2, 3]),
        torch.tensor([1.5, -2.5], dtype=torch.float16),
    ],
    ids=["empty", "scalar", "bool", "int", "half"],
)
def test_every_kind_of_tensor_has_a_digest(tensor: torch.Tensor):
    assert digest(tensor).exact == exact([float(x) for x in tensor.flatten().tolist()])


def test_complex_numbers_count_both_parts():
    assert digest(torch.tensor([3 + 4j])).l2 == 5.0
    assert digest(torch.tensor([3 + 4j])).exact == exact([3.0, 4.0])


def test_not_a_number_is_no_error():
    found = digest(torch.tensor([1.0, float("nan"), float("inf")]))
    assert math.isnan(found.sum)
    assert len(found.exact) == 16


def test_parameters_are_named_by_their_module_in_the_optimizer_s_order():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1, bias=False))
    loose = torch.nn.Parameter(torch.ones(5))
    first = torch.optim.SGD([model[1].weight, model[0].bias], lr=0.1)
    second = torch.optim.SGD([{"params": [model[0].weight]}, {"params": [model[0].bias, loose]}], lr=0.1)
    spool = Rows()
    emit_parameters(spool, [first, second])
    assert [row[:4] for row in spool.rows] == [
        ("parameter", "1.weight", [1, 3], "float32"),
        ("parameter", "0.bias", [3], "float32"),
        ("parameter", "0.weight", [3, 2], "float32"),
        ("parameter", "2.1", [5], "float32"),
    ]
    assert spool.rows[3][4:7] == (5.0, 5.0, math.sqrt(5))


def test_wrappers_leave_no_trace_in_the_names():
    model = torch.nn.Linear(2, 2)
    wrapped = torch.nn.DataParallel(torch.compile(model, backend="eager"))
    spool = Rows()
    emit_parameters(spool, [torch.optim.SGD(wrapped.parameters(), lr=0.1)])
    assert [row[1] for row in spool.rows] == ["weight", "bias"]


def test_digests_leave_the_parameters_and_the_random_numbers_alone():
    torch.manual_seed(3)
    model = torch.nn.Linear(4, 4)
    before, state = model.weight.detach().clone(), torch.get_rng_state()
    emit_parameters(Rows(), [torch.optim.SGD(model.parameters(), lr=0.1)])
    assert torch.equal(model.weight, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_what_cannot_be_read_is_a_fault_and_no_error():
    spool = Rows()
    emit_parameters(spool, [object()])  # type: ignore[list-item]
    assert [row[:2] for row in spool.rows] == [("fault", "parameters")]
