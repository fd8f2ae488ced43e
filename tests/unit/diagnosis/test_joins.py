from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from magneton_dist.diagnosis.branches import Branch, branch
from magneton_dist.diagnosis.frames import Frame
from magneton_dist.diagnosis.joins import _joining, _stepping, _watched
from magneton_dist.diagnosis.lines import Recorder
from magneton_dist.diagnosis.rerun import Watched

SOURCE = Path(__file__).read_text().splitlines()


def line_of(text: str) -> int:
    """Number of the line of this file that ends with a comment `text`."""
    (number,) = [n for n, line in enumerate(SOURCE, start=1) if line.endswith(f"# {text}")]
    return number


@pytest.fixture(autouse=True, scope="module")
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Nothing(Joinable):
    """Takes part in nothing."""

    def __init__(self) -> None:
        super().__init__()

    def join_hook(self, **kwargs: Any) -> JoinHook:
        return JoinHook()

    @property
    def join_device(self) -> Any:
        return "cpu"

    @property
    def join_process_group(self) -> Any:
        return None


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("-s", "--sync", default="join")  # the option
    parser.add_argument("--log", action="store_true")
    return parser.parse_args(words)


def uneven(sync: str) -> AbstractContextManager[object]:
    if sync == "early-exit":  # the helper's condition
        return nullcontext()
    return Join([Nothing()], throw_on_early_termination=sync == "throw")  # handed over


@contextmanager
def generated(sync: str) -> Iterator[None]:
    if sync == "join":  # the generator's condition
        with Join([Nothing()]):
            yield
    else:
        yield


def by_helper(args: argparse.Namespace) -> None:
    if args.log:  # differs, but leads to nothing
        str(args)
    with uneven(args.sync):  # the helper
        pass


def by_generator(args: argparse.Namespace) -> None:
    with generated(args.sync):  # the generator
        pass


def by_enable(args: argparse.Namespace) -> None:
    with Join([Nothing()], enable=args.sync == "join"):  # the argument
        pass


def around(args: argparse.Namespace) -> None:
    if args.sync == "join":  # the condition around
        with Join([Nothing()]):  # the block
            str(args)
    else:
        str(args)  # the other block


def recorded(run: Callable[[argparse.Namespace], None], args: argparse.Namespace, path: Path, **watched: Any) -> Frame:
    recorder = Recorder(__file__, run.__name__, watched.get("line"), watched.get("until"), str(path))
    before = sys.gettrace()
    sys.settrace(recorder.entered)
    try:
        run(args)
    finally:
        sys.settrace(before)
    return Frame.of(json.loads(path.read_text()))


def parted(
    run: Callable[[argparse.Namespace], None], head: str, folder: Path, *words: str
) -> Branch | None:
    line = line_of(head)
    frames = [recorded(run, parsed(*w), folder / "lines", line=line) for w in ((), words)]
    return branch(frames[0], frames[1], _joining(f"{__file__}:{line} {run.__name__}"))


def test_the_flag_is_followed_out_of_the_function_that_chooses(tmp_path: Path) -> None:
    found = parted(by_helper, "the helper", tmp_path, "--sync", "early-exit", "--log")
    assert found is not None
    assert found.place == f"{__file__}:{line_of('the helper' + chr(39) + 's condition')} uneven"
    assert found.condition == "sync == 'early-exit'"
    assert [(r.text, r.values) for r in found.chain] == [
        ("sync", ("'join'", "'early-exit'")), ("args.sync", ("'join'", "'early-exit'")),
    ]  # fmt: skip
    assert found.chain[-1].place == f"{__file__}:{line_of('the helper')} by_helper"
    assert found.origin == f"option --sync ({__file__}:{line_of('the option')})"


def test_an_argument_of_join_is_what_decides(tmp_path: Path) -> None:
    for run, head, word in ((by_helper, "the helper", "throw"), (by_enable, "the argument", "none")):
        found = parted(run, head, tmp_path, "--sync", word)
        assert found is not None
        assert "/torch/distributed/algorithms/join.py:" in found.place
        assert [r.text for r in found.chain][-1] == "args.sync"
        assert found.chain[-1].values == ("'join'", repr(word))
        assert found.chain[-1].place == f"{__file__}:{line_of(head)} {run.__name__}"


def test_join_inside_of_a_context_manager_of_the_jobs_own(tmp_path: Path) -> None:
    found = parted(by_generator, "the generator", tmp_path, "--sync", "none")
    assert found is not None
    assert found.place == f"{__file__}:{line_of('the generator' + chr(39) + 's condition')} generated"
    assert [r.text for r in found.chain][-1] == "args.sync"


def test_a_block_that_one_variant_does_not_come_to(tmp_path: Path) -> None:
    one, other = line_of("the block"), line_of("the other block")
    frames = [
        recorded(around, parsed(), tmp_path / "a", until=one),
        recorded(around, parsed("--sync", "none"), tmp_path / "b", until=other),
    ]
    found = branch(frames[0], frames[1], _joining(f"{__file__}:{one} around"))
    assert found is not None
    assert found.place == f"{__file__}:{line_of('the condition around')} around"
    assert [(r.text, r.values) for r in found.chain] == [("args.sync", ("'join'", "'none'"))]


def test_variants_that_come_to_join_alike_do_not_part(tmp_path: Path) -> None:
    assert parted(by_helper, "the helper", tmp_path, "--log") is None


def test_the_head_of_the_block_is_watched_or_the_function() -> None:
    main, module = line_of("the helper"), f"{__file__}:1000 <module>"
    head = f"{__file__}:{main} by_helper"
    inside = f"{__file__}:{main + 1} by_helper"
    assert _watched((module, head), (module, inside)) == (Watched(__file__, "by_helper", main),) * 2
    one, other = line_of("the block"), line_of("the other block")
    assert _watched((module, f"{__file__}:{one} around"), (module, f"{__file__}:{other} around")) == (
        Watched(__file__, "around", None, one), Watched(__file__, "around", None, other),
    )  # fmt: skip
    # a loop of its own in the other variant: what calls either is watched
    assert _watched((module, head), (module, "loop.py:7 loop")) == (Watched(__file__, "<module>", 1000),) * 2
    assert _watched((module, head), ()) is None


def test_where_a_variant_steps_is_the_first_line_of_the_users_in_a_step(tmp_path: Path) -> None:
    stacks = [
        [("train.py", 5, "main")], [], [("/x/site-packages/torch/a.py", 1, "f"), ("train.py", 9, "main"),
                                        ("train.py", 20, "<module>")],
    ]  # fmt: skip
    collectives = [(0, 0, 0), (1, 1, 1), (2, 1, None), (3, 1, 2)]  # call, step, stack
    frames = [[dict(zip(("file", "line", "function"), f, strict=True)) for f in stack] for stack in stacks]
    tables = {
        "stacks": pl.DataFrame({"stack_id": [0, 1, 2], "frames": frames}),
        "collectives": pl.DataFrame(collectives, schema=["call_id", "step", "stack_id"], orient="row"),
    }
    record: Any = type("Rank", (), tables)
    assert _stepping(record) == ["train.py:20 <module>", "train.py:9 main"]
    record = type("Rank", (), tables | {"collectives": tables["collectives"].head(3)})
    assert _stepping(record) == ()
