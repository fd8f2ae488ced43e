"""Marks around the batches that the main thread asks for, and nothing else changes."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, dataloader

from magneton_dist.tracer import loaders
from magneton_dist.tracer.stacks import Stacks


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if index == 4:
            raise ValueError("broken sample")
        return index


class Nested(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from DataLoader(range(4), batch_size=2)


@pytest.fixture
def marked(rows: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    iterator = dataloader._BaseDataLoaderIter
    monkeypatch.setattr(iterator, "__next__", iterator.__next__)  # is put back
    marks: list[tuple[str, Any]] = []
    loaders.follow(rows, Stacks(rows), lambda name, detail=None: marks.append((name, detail)))
    return marks


def test_batches_are_marked_with_kind_and_stack(marked: Any, rows: Any) -> None:
    batches = [b.tolist() for b in DataLoader(range(4), batch_size=2)]
    assert batches == [[0, 1], [2, 3]]
    # two batches, and the end of the data
    assert [name for name, _ in marked] == ["loader_enter", "loader_exit"] * 3
    assert {detail["what"] for name, detail in marked if detail} == {"_SingleProcessDataLoaderIter"}
    stack = marked[1][1]["stack_id"]
    frames = next(frames for number, frames in rows.of("stack") if number == stack)
    assert frames[0][0] == __file__


def test_a_loader_that_raises_raises_as_ever(marked: Any) -> None:
    loader = iter(DataLoader(Numbers(), batch_size=2))
    assert [next(loader).tolist(), next(loader).tolist()] == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="broken sample"):
        next(loader)
    assert [name for name, _ in marked] == ["loader_enter", "loader_exit"] * 3


def test_a_loader_within_a_loader_is_part_of_it(marked: Any) -> None:
    assert [b.tolist() for b in DataLoader(Nested(), batch_size=None)] == [[0, 1], [2, 3]]
    assert [name for name, _ in marked] == ["loader_enter", "loader_exit"] * 3


def test_other_threads_and_a_spool_that_is_over_are_left_alone(marked: Any, rows: Any) -> None:
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.extend(DataLoader(range(2))))
    thread.start()
    thread.join()
    assert len(got) == 2
    rows.live = False
    assert torch.cat(list(DataLoader(range(2)))).tolist() == [0, 1]
    assert marked == []


def test_what_the_tracer_itself_breaks_is_a_fault(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    iterator = dataloader._BaseDataLoaderIter
    monkeypatch.setattr(iterator, "__next__", iterator.__next__)

    def broken(name: str, detail: Any = None) -> None:
        raise OSError("no space left")

    loaders.follow(rows, Stacks(rows), broken)
    assert torch.cat(list(DataLoader(range(2)))).tolist() == [0, 1]
    assert any(where == "loader" for where, _ in rows.of("fault"))
