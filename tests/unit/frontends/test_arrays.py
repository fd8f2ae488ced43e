import numpy as np
import pytest
import torch

from magneton_dist.frontends.arrays import as_tensor


@pytest.mark.parametrize("name", [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128",
])  # fmt: skip
def test_numbers_keep_type_shape_and_value(name):
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(name)
    tensor = as_tensor(array)
    assert (tensor.dtype, tensor.shape) == (getattr(torch, name), (2, 3))
    assert tensor.to(torch.complex128).tolist() == [[0, 1, 1], [1, 0, 1]]


def test_memory_is_shared_where_it_can_be():
    array = np.zeros(4, np.float32)
    as_tensor(array)[1] = 7
    assert array.tolist() == [0, 7, 0, 0]


def test_views_read_only_and_foreign_byte_orders_are_copied():
    base = np.arange(6, dtype=np.float32).reshape(2, 3)
    base.flags.writeable = False
    assert as_tensor(base).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert as_tensor(base.T).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert as_tensor(base.T).is_contiguous()
    assert as_tensor(base.astype(">f4")).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_no_modes_and_no_elements_stay_so():
    assert as_tensor(np.array(2.5, np.float32)).shape == ()
    assert as_tensor(np.zeros((0, 3), np.float32)).shape == (0, 3)


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([object()]), np.array(["2020-01-01"], "M8[D]")])
def test_what_is_no_number_is_none(array):
    assert as_tensor(array) is None


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_types_of_ml_dtypes_hand_over_their_bits(name):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="comes with jax and tensorflow")
    array = np.array([0.5, -1.5, 2.0], getattr(ml_dtypes, name))
    tensor = as_tensor(array)
    assert tensor.dtype == getattr(torch, name)
    assert tensor.float().tolist() == [0.5, -1.5, 2.0]


def test_narrow_integers_become_bytes():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="comes with jax and tensorflow")
    tensor = as_tensor(np.array([-8, 7], ml_dtypes.int4))
    assert (tensor.dtype, tensor.tolist()) == (torch.int8, [-8, 7])
