"""Invariants against their definitions, computed by numpy in float64."""

import itertools
from collections.abc import Iterator
from functools import reduce
from operator import mul

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from magneton_dist.tracer import invariants
from magneton_dist.tracer.invariants import (
    MOMENTS,
    SIGNS,
    Normalised,
    gram,
    is_backed,
    merged,
    modes_of,
    moments,
    pieces,
    plain,
    profile,
    s4,
    seen_through,
    signs,
    singular_values,
    unfoldings,
)

MASK = 2**64 - 1
SHAPES = st.lists(st.integers(2, 6), min_size=1, max_size=4).map(tuple)
SEEDS = st.integers(0, 2**32 - 1)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tensor(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def numbers(x: torch.Tensor, chunk: int = 1 << 18) -> np.ndarray:
    """Moments of one tensor."""
    return moments(plain(x)[None], chunk)[0].numpy()


def checksum(x: torch.Tensor, chunk: int = 1 << 18) -> int:
    return int(moments(plain(x)[None], chunk).view(torch.int64)[0, MOMENTS - 1]) & MASK


def splitmix(bits: int) -> int:
    z = (bits + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


# --- moments ---


@given(SHAPES, SEEDS, st.sampled_from([7, 64, 1 << 18]))
@settings(deadline=None)
def test_moments_by_definition_however_they_are_chunked(shape, seed, chunk):
    x = tensor(shape, seed)
    exact = x.double().numpy()
    expected = [exact.sum(), np.abs(exact).sum(), (exact**2).sum(), (exact**4).sum(), exact.size]
    assert numbers(x, chunk)[:5] == pytest.approx(expected, rel=1e-12, abs=1e-12)
    bits = exact.view(np.uint64).ravel().tolist()
    assert checksum(x, chunk) == sum(splitmix(b) for b in bits) & MASK


def test_what_is_not_finite_or_huge_counts_as_zero_and_is_counted():
    x = torch.tensor([1.0, -2.0, float("nan"), float("inf"), -float("inf"), torch.finfo(torch.float32).min, 1e30])
    assert numbers(x)[:5].tolist() == [-1.0, 3.0, 5.0, 17.0, 2.0]
    # but it is seen by the checksum
    other = x.clone()
    other[3] = -float("inf")
    assert checksum(x) != checksum(other)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([True, False, True], torch.bool), ([1, 200, 3], torch.uint8), ([-1, 2, 3], torch.int8),
        ([-5, 7, 9], torch.int64), ([1.5, -2.5], torch.float16), ([1.5, -2.5], torch.bfloat16),
        ([0.5, 1.0], torch.float8_e4m3fn), ([0.5, 1.0], torch.float8_e5m2), ([5, 6], torch.uint16),
        ([1e300, 1.0], torch.float64),
    ],
)  # fmt: skip
def test_every_dtype_is_read_as_its_numbers(values, dtype):
    x = torch.tensor(values, dtype=torch.float64).to(dtype)
    assert numbers(x)[:5].tolist() == numbers(x.to(torch.float64))[:5].tolist()
    assert checksum(x) == checksum(x.to(torch.float64))


def test_integers_beyond_float64_are_told_apart():
    big = 2**60
    x, y = torch.tensor([big]), torch.tensor([big + 1])
    assert x.double() == y.double()
    assert checksum(x) != checksum(y)


def test_complex_numbers_are_pairs_of_real_ones():
    z = torch.tensor([1 + 2j, 0 - 3j])
    assert numbers(z)[:5].tolist() == [0.0, 6.0, 14.0, 1.0 + 16.0 + 81.0, 4.0]
    assert checksum(z.conj()) == checksum(torch.tensor([1 - 2j, 3j]))
    assert checksum(z.conj()) != checksum(z)


def test_empty_and_scalar():
    assert numbers(torch.zeros(0, 3)).tolist() == [0.0] * 6
    assert numbers(torch.tensor(3.0))[:5].tolist() == [3.0, 3.0, 9.0, 81.0, 1.0]


@given(SHAPES, SEEDS, st.integers(0, 63), st.data())
@settings(deadline=None)
def test_one_bit_changes_the_checksum(shape, seed, bit, data):
    x = tensor(shape, seed).double()
    place = data.draw(st.integers(0, x.numel() - 1))
    y = x.clone()
    y.view(-1).view(torch.int64)[place] ^= 1 << bit if bit < 63 else -(2**63)
    assert checksum(x) != checksum(y)


@given(SHAPES, SEEDS)
@settings(deadline=None)
def test_order_layout_and_a_wider_dtype_do_not_change_it(shape, seed):
    x = tensor(shape, seed).bfloat16()
    shuffled = x.flatten()[torch.randperm(x.numel())].view(shape)
    for same in (x.permute(*reversed(range(len(shape)))), x.float(), x.double(), shuffled, x[None], x.flatten()):
        assert checksum(same) == checksum(x)
        assert numbers(same)[:5] == pytest.approx(numbers(x)[:5], rel=1e-12, abs=1e-9)


# --- layouts ---


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.transpose(0, 2), lambda x: x.view(20, 6), lambda x: x.view(4, 30), lambda x: x.view(120),
        lambda x: x[None, :, :, None], lambda x: x.view(2, 2, 5, 2, 3).permute(4, 0, 3, 1, 2),
    ],
)  # fmt: skip
def test_views_of_the_same_elements_merge_alike(view):
    x = torch.zeros(4, 5, 6)
    assert merged(modes_of(view(x))) == merged(modes_of(x)) == ((120, 1),)


def test_views_of_other_elements_do_not():
    x = torch.zeros(4, 5, 6)
    layouts = [x, x[:, :, ::2], x[:, 1:], x[1:], x.expand(4, 5, 6), x[:, :1].expand(4, 5, 6)]
    assert len({merged(modes_of(y)) for y in layouts}) == len(layouts) - 1  # expand to the same shape is x


@given(SHAPES, st.randoms())
def test_a_layout_is_seen_whatever_the_order_of_its_modes(shape, random):
    order = list(range(len(shape)))
    random.shuffle(order)
    x = torch.arange(reduce(mul, shape)).view(shape)
    y = x.permute(order)
    assert modes_of(x) == modes_of(y)
    assert torch.equal(seen_through(y, modes_of(y)), x)


def test_a_freed_storage_is_noticed():
    x = torch.zeros(10)
    assert is_backed(x)
    assert is_backed(x[3:])
    x.untyped_storage().resize_(0)
    assert not is_backed(x)
    assert is_backed(torch.zeros(0, 5))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple), st.integers(1, 50))
def test_pieces_are_the_whole_and_no_larger_than_asked(shape, limit):
    x = torch.arange(reduce(mul, shape)).view(shape)
    parts = list(pieces(x, range(x.dim()), limit))
    assert all(part.numel() <= limit for part in parts)
    assert sorted(torch.cat([part.flatten() for part in parts]).tolist()) == list(range(x.numel()))


# --- unfoldings ---


def matrix_of(x: np.ndarray, rows: tuple[int, ...]) -> np.ndarray:
    columns = tuple(m for m in range(x.ndim) if m not in rows)
    return x.transpose(rows + columns).reshape(int(np.prod([x.shape[m] for m in rows])), -1)


@given(st.lists(st.integers(2, 7), min_size=2, max_size=4).map(tuple), SEEDS)
@settings(deadline=None)
def test_s4_and_spectra_are_those_of_the_singular_values(shape, seed):
    x = tensor(shape, seed)
    exact = x.double().numpy()
    batch = Normalised(x[None], moments(x[None], 1 << 18))
    for unfolding in unfoldings(shape, 1024, np.inf):
        sigma = np.linalg.svd(matrix_of(exact, unfolding.small), compute_uv=False)
        products = gram(batch, unfolding)
        assert float(s4(products)) == pytest.approx(np.sqrt((sigma**4).sum()) / (sigma**2).sum(), rel=1e-4)
        found = singular_values(products)[0].numpy()
        assert found == pytest.approx(sigma / np.linalg.norm(exact), abs=2e-3)


@pytest.mark.parametrize("shape", [(130, 300), (128, 128), (9, 20, 40), (3, 257, 5, 70)])
@pytest.mark.parametrize("panel", [1 << 24, 1 << 12])
def test_half_a_product_has_the_diagonal_and_the_s4_of_the_whole(shape, panel, monkeypatch):
    monkeypatch.setattr(invariants, "_PANEL", panel)  # with a small one, in parts
    x = tensor((2, *shape), 5)
    batch = Normalised(x, moments(x, 1 << 18))
    for unfolding in unfoldings(shape, 1024, np.inf):
        half, whole = gram(batch, unfolding, whole=False), gram(batch, unfolding)
        assert torch.allclose(half.diagonal(dim1=1, dim2=2), whole.diagonal(dim1=1, dim2=2), rtol=1e-4)
        for i in (0, 1):
            sigma = np.linalg.svd(matrix_of(x[i].double().numpy(), unfolding.small), compute_uv=False)
            assert float(s4(half)[i]) == pytest.approx(np.sqrt((sigma**4).sum()) / (sigma**2).sum(), rel=1e-4)


@given(st.lists(st.integers(2, 7), min_size=2, max_size=5).map(tuple))
def test_every_split_of_the_modes_is_there_once(shape):
    found = unfoldings(shape, 10**6, np.inf)
    every = frozenset(range(len(shape)))
    splits = {frozenset([frozenset(u.small), frozenset(u.large)]) for u in found}
    expected = {
        frozenset([frozenset(g), every - frozenset(g)])
        for k in range(1, len(shape))
        for g in itertools.combinations(every, k)
    }
    assert splits == expected
    assert len(found) == len(splits)
    assert [u.rows for u in found] == sorted(u.rows for u in found)
    assert all(u.rows == np.prod([shape[m] for m in u.small]) <= np.prod([shape[m] for m in u.large]) for u in found)


def test_long_sides_and_much_work_are_left_out():
    assert [u.rows for u in unfoldings((8, 1024, 768), 1024, np.inf)] == [8, 768, 1024]
    assert [u.rows for u in unfoldings((8, 1024, 768), 800, np.inf)] == [8, 768]
    assert [u.rows for u in unfoldings((8, 1024, 768), 1024, 10.0 * 8 * 1024 * 768)] == [8]
    assert unfoldings((4096, 4096), 1024, np.inf) == ()
    # of many modes only single ones
    assert len(unfoldings((2,) * 7, 1024, np.inf)) == 7


# --- profiles ---


@given(st.lists(st.integers(2, 6), min_size=1, max_size=4).map(tuple), SEEDS)
@settings(deadline=None)
def test_profiles_by_definition(shape, seed):
    x = tensor(shape, seed)
    exact = x.double().numpy()
    batch = Normalised(x[None], moments(x[None], 1 << 18))
    for mode, length in enumerate(shape):
        rest = tuple(m for m in range(len(shape)) if m != mode)
        sums = exact.sum(rest) / np.linalg.norm(exact), (exact**2).sum(rest) / np.sqrt((exact**4).sum())
        w = signs(length, x.device).double().numpy()
        expected = [*(np.linalg.norm(m) for m in sums), *(sums[0] @ w), *(sums[1] @ w)]
        assert profile(batch, mode)[0].numpy() == pytest.approx(expected, abs=1e-4)


def test_signs_are_the_bits_of_splitmix():
    w = signs(6, torch.device("cpu"))
    assert w.shape == (6, SIGNS)
    assert w.tolist() == [[-1.0 if splitmix(i) >> k & 1 else 1.0 for k in range(SIGNS)] for i in range(6)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_large_tensors_in_parts_are_the_same(monkeypatch, dtype):
    x = tensor((6, 20, 15)).to(dtype).transpose(0, 1)[None]
    sums = moments(x, 1 << 18)
    whole = Normalised(x, sums)
    monkeypatch.setattr(invariants, "_PANEL", 97)
    parts = Normalised(x, sums)
    for unfolding in unfoldings((20, 6, 15), 1024, np.inf):
        assert len(list(parts.parts([m + 1 for m in unfolding.large]))) > 5
        assert torch.allclose(gram(whole, unfolding), gram(parts, unfolding), atol=1e-5)
    for mode in range(3):
        assert torch.allclose(profile(whole, mode), profile(parts, mode), atol=1e-4)


def test_a_batch_gives_what_each_tensor_gives():
    x = torch.stack([tensor((5, 6, 7), seed) * 10.0**seed for seed in range(4)])
    together = moments(x, 1 << 18)
    batch = Normalised(x, together)
    for i in range(4):
        alone = moments(x[i : i + 1], 1 << 18)
        assert torch.equal(together[i], alone[0])
        single = Normalised(x[i : i + 1], alone)
        for unfolding in unfoldings((5, 6, 7), 1024, np.inf):
            assert s4(gram(batch, unfolding))[i] == pytest.approx(float(s4(gram(single, unfolding))), rel=1e-5)
        assert torch.allclose(profile(batch, 1)[i], profile(single, 1)[0], atol=1e-5)


@pytest.mark.parametrize("scale", [0.0, 1e-300, 1e-42, 1e-20, 1.0, 1e20, 1e29])
def test_no_scale_makes_nonsense(scale):
    dtype = torch.float64 if scale == 1e-300 else torch.float32
    x = (tensor((4, 5)).to(dtype) / 5 * scale)[None]
    batch = Normalised(x, moments(x, 1 << 18))
    (unfolding,) = unfoldings((4, 5), 1024, np.inf)
    found = [float(s4(gram(batch, unfolding))), *profile(batch, 0)[0].tolist()]
    assert np.isfinite(found).all()
    if scale >= 1e-20:
        assert found[0] == pytest.approx(0.62, abs=0.15)


def test_mask_fills_and_nans_do_not_spread():
    x = tensor((4, 6))
    filled = torch.cat([x, torch.tensor([[float("nan"), float("inf"), -1e38, 0.0, 0.0, 0.0]])])
    zeros = torch.cat([x, torch.zeros(1, 6)])
    results = []
    for y in (filled[None], zeros[None]):
        batch = Normalised(y, moments(y, 1 << 18))
        (unfolding,) = unfoldings((5, 6), 1024, np.inf)
        results.append([float(s4(gram(batch, unfolding))), *profile(batch, 1)[0].tolist()])
    assert results[0] == pytest.approx(results[1], rel=1e-5)
