"""Join, however a script gets at it, and what it issues when one rank has 9 batches and the other 13."""

import json
from collections import Counter
from collections.abc import Callable

import polars as pl
import pytest

from .conftest import SCRIPTS, TORCHRUN, Job

SCRIPT = SCRIPTS / "join.py"
LINES = {
    "helper": "with unevenly([model]):",
    "stack": "stack.enter_context(Together([model]))",
    "model": "with model.join():",
}


@pytest.mark.parametrize("way", LINES)
def test_what_a_rank_without_batches_goes_on_doing(run: Callable[..., Job], way: str):
    job = run(*TORCHRUN, 2, SCRIPT, way, capture={"warmup_steps": 1, "graph_steps": 0})
    assert job.status == 0, job.errors
    early, late = job.tables(0), job.tables(1)
    assert (early["steps"].height, late["steps"].height) == (9, 13)

    last_step_ns = early["steps"]["end_ns"].max()
    after = early["collectives"].filter(pl.col("issue_ns") > last_step_ns)
    # The other rank has 4 more batches. In each: 1 "am I alone?" of Join, 1 "do you sync?" of DDP and 2 buckets.
    # Then "am I alone?" once more, the rank that was last, and its parameters (in one broadcast).
    assert Counter(after["origin"]) == {"join_control": 4 + 1, "join_shadow": 4 * (1 + 2), "join_final": 2}
    zero = after.filter(pl.col("zero_payload"))
    assert Counter(zero["origin"]) == {"join_control": 5, "join_shadow": 12}
    weight = 512 * 512 * 4
    assert after.filter(pl.col("origin") == "join_shadow")["bytes"].sum() == 4 * (4 + 2 * weight)

    # Before, a live rank says 1 to Join and 1 to DDP in each batch.
    live = late["collectives"].filter(pl.col("origin") == "join_control")
    assert live.height == 13 * 2 + 1
    assert not late["collectives"].filter(pl.col("origin") == "ddp")["zero_payload"].any()

    # Both ranks count the collectives of the group alike: the pairs are the waste.
    pairs = after.join(late["collectives"], on=["group", "seq"], suffix="_late")
    assert pairs.height == after.height == 19
    assert (pairs["op"] == pairs["op_late"]).all()
    assert (pairs["bytes"] == pairs["bytes_late"]).all()
    shadows = pairs.filter((pl.col("origin") == "join_shadow") & (pl.col("bytes") == weight))
    assert shadows["origin_late"].to_list() == ["ddp"] * 8

    for tables in (early, late):
        check_marks(tables, LINES[way])


def check_marks(tables: dict[str, pl.DataFrame], line: str) -> None:
    """The marks stand in order and name the user's line."""
    marks = tables["marks"].filter(pl.col("name").str.starts_with("join_")).sort("t_ns")
    assert marks["name"].to_list() == ["join_enter", "join_exit", "join_done"]
    # the last step ends before the rank runs out of batches
    assert tables["steps"]["end_ns"].max() < marks["t_ns"][1]
    number = SCRIPT.read_text().splitlines().index(next(x for x in SCRIPT.read_text().splitlines() if line in x)) + 1
    for detail in marks["detail"]:
        stack = tables["stacks"].filter(pl.col("stack_id") == json.loads(detail)["stack_id"])
        (frames,) = stack["frames"].to_list()
        mine = next(frame for frame in frames if frame["file"] == str(SCRIPT) and frame["function"] == "main")
        # leaving an exit stack happens at the line of its own `with`
        assert mine["line"] == number or (line.startswith("stack.") and detail != marks["detail"][0])


def test_a_join_that_is_not_enabled_leaves_no_trace(run: Callable[..., Job]):
    job = run(*TORCHRUN, 2, SCRIPT, "even", capture={"warmup_steps": 1, "graph_steps": 0})
    assert job.status == 0, job.errors
    tables = job.tables(0)
    assert not tables["marks"]["name"].str.starts_with("join_").any()
    assert set(tables["collectives"]["origin"]) == {"ddp", "ddp_buffers"}
