"""The data of examples/uneven_inputs: unevenness comes from the documents, and nothing is lost or made up."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.parallel import DistributedDataParallel as DDP

EXAMPLE = Path(__file__).parents[3] / "examples" / "uneven_inputs"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"uneven_inputs_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


data = load("data")
model = load("model")


def batch_counts(world_size: int, sigma: float = 0.8, skew: float = 4.8, seed: int = 0) -> list[int]:
    """As train.py's defaults give them."""
    counts = []
    for rank in range(world_size):
        generator = torch.Generator().manual_seed(1000 * seed + rank)
        median = data.corpus_median(rank, world_size, 30.0, skew)
        lengths = data.document_lengths(128, median, sigma, generator)
        counts.append(len(data.pack(data.write_documents(lengths, 512, generator), 512, 1)))
    return counts


def test_medians_run_from_the_shortest_corpus_to_the_longest() -> None:
    assert [data.corpus_median(rank, 3, 10.0, 4.0) for rank in range(3)] == pytest.approx([10, 20, 40])
    assert data.corpus_median(0, 1, 10.0, 4.0) == 10


def test_default_imbalance_is_about_10_against_48() -> None:
    short, long = batch_counts(2)
    assert 9 <= short <= 11
    assert 45 <= long <= 51
    assert batch_counts(2) == [short, long]


@pytest.mark.parametrize("world_size", [3, 4])
def test_more_ranks_lie_between(world_size: int) -> None:
    counts = batch_counts(world_size)
    assert counts == sorted(counts)
    assert counts[-1] > 3 * counts[0]


def test_balanced_documents_make_equal_batches() -> None:
    assert batch_counts(4, sigma=0.0, skew=1.0) == [128 * 30 // 512] * 4


def test_lengths_are_log_normal() -> None:
    lengths = data.document_lengths(20_000, 100.0, 0.8, torch.Generator().manual_seed(1)).double()
    assert float(lengths.median()) == pytest.approx(100, rel=0.03)
    assert float(lengths.mean()) == pytest.approx(100 * 2.718281828 ** (0.8**2 / 2), rel=0.03)


@given(st.lists(st.integers(2, 60), min_size=1, max_size=20), st.integers(4, 40), st.integers(1, 3))
def test_packing_keeps_every_token_of_the_full_batches(lengths: list[int], tokens: int, batch: int) -> None:
    generator = torch.Generator().manual_seed(0)
    stream = data.write_documents(torch.tensor(lengths), 11, generator)
    packed = data.pack(stream, tokens, batch)
    assert stream.numel() == sum(lengths)
    assert packed.numel() == sum(lengths) // (batch * tokens) * batch * tokens
    assert torch.equal(packed.flatten(), stream[: packed.numel()])


@given(st.lists(st.integers(2, 60), min_size=1, max_size=20))
def test_documents_end_where_their_lengths_say(lengths: list[int]) -> None:
    stream = data.write_documents(torch.tensor(lengths), 11, torch.Generator().manual_seed(0))
    ends = [sum(lengths[: index + 1]) - 1 for index in range(len(lengths))]
    assert (stream == data.END_OF_DOCUMENT).nonzero().flatten().tolist() == ends
    assert int(stream.max()) <= 10


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("zero_width", "zero_buckets"), [(0, 0), (4097, 1)])
def test_zero_branch_fills_a_bucket(zero_width: int, zero_buckets: int) -> None:
    """The auxiliary head's first weight alone is 1 MiB, DDP's bucket size here."""
    ddp = DDP(model.GPT(64, 16, 1, 64, zero_width), bucket_cap_mb=1.0)
    zeros: list[bool] = []

    def look(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are strings
        zeros.append(not bool(bucket.buffer().any()))
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    ddp.register_comm_hook(None, look)
    ddp(torch.randint(64, (2, 16))).backward()
    for _ in range(2):  # the buckets are now in the order of the gradients
        zeros.clear()
        ddp(torch.randint(64, (2, 16))).backward()
        assert sum(zeros) == zero_buckets
        assert len(zeros) > zero_buckets
