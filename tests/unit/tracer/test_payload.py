import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from magneton_dist.tracer.payload import is_zero, tensors

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8,
    torch.int8, torch.bool, torch.complex64,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [0, 1, 3, 8, 100, 100_000])
def test_zeros_are_zero(dtype: torch.dtype, size: int):
    assert is_zero([torch.zeros(size, dtype=dtype)])


@given(
    dtype=st.sampled_from(DTYPES),
    size=st.sampled_from([1, 2, 5, 9, 64, 5000, 20_000]),
    place=st.floats(0, 1, exclude_max=True),
    strided=st.booleans(),
)
def test_one_element_anywhere_is_found(dtype: torch.dtype, size: int, place: float, strided: bool):
    tensor = torch.zeros(2 * size, dtype=dtype)[::2] if strided else torch.zeros(size, dtype=dtype)
    tensor[int(place * size)] = 1
    assert not is_zero([tensor])


@pytest.mark.parametrize("value", [-128, 128, 1 << 31, -(1 << 63)])
def test_integers_made_of_the_sign_bits_of_floats_are_not_zero(value: int):
    assert not is_zero([torch.full((40,), value, dtype=torch.int64)])


def test_negative_zero_is_zero_and_the_smallest_number_is_not():
    assert is_zero([torch.full((50,), -0.0)])
    assert is_zero([torch.full((50,), -0.0, dtype=torch.float64)])
    assert not is_zero([torch.full((50,), 1e-45)])
    assert not is_zero([torch.full((50,), float("nan"))])


def test_all_tensors_count():
    zero, one = torch.zeros(10), torch.ones(10)
    assert is_zero([zero, zero])
    assert not is_zero([zero, one])
    assert is_zero([])


def test_gradients_stay_out_of_it():
    tensor = torch.zeros(10, requires_grad=True)
    assert is_zero([tensor])
    assert is_zero([tensor.expand(5, 10)])


def test_tensors_of_every_kind_of_argument():
    a, b = torch.ones(1), torch.ones(2)
    assert tensors(a) == [a]
    assert [t.shape for t in tensors([a, b])] == [(1,), (2,)]
    assert [t.shape for t in tensors([[a], [b, b]])] == [(1,), (2,), (2,)]
    assert tensors([]) == []
    assert tensors([[], []]) == []
    assert tensors(3) == []
