"""Fingerprints in a real job: what ranks have alike, results of collectives among it, is seen to be alike."""

import polars as pl
import pytest

from magneton_dist.matching.recorded import step_graph
from magneton_dist.matching.records import match_records
from magneton_dist.matching.steps import structure
from magneton_dist.records.validation import _table_problems

from .conftest import SCRIPTS, TORCHRUN, Job

pytestmark = pytest.mark.timeout(300)
CAPTURE = {"warmup_steps": 2, "graph_steps": 2}  # DDP has rebuilt its buckets by then


class Tables(dict[str, pl.DataFrame]):
    def table(self, name: str) -> pl.DataFrame:
        return self[name]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Tables]:
    command = (*TORCHRUN, "2", str(SCRIPTS / "reduce.py"))
    job = Job(tmp_path_factory.mktemp("job"), command, CAPTURE, {}).finish()
    assert job.status == 0, job.errors
    return [Tables(job.tables(rank)) for rank in range(2)]


def prints(tables: Tables) -> pl.DataFrame:
    """Values with their checksum."""
    return tables["fingerprints"].explode("values").select(pl.col("values").alias("value_id"), "exact", "l2")


def test_every_value_of_a_traced_step_has_a_fingerprint(ranks: list[Tables]):
    for tables in ranks:
        assert tables["faults"].is_empty()
        assert list(_table_problems("fingerprints", tables["fingerprints"])) == []
        used = tables["ops"].select(pl.col("inputs").list.concat("outputs").alias("value_id")).explode("value_id")
        missing = used.drop_nulls().unique().join(prints(tables), on="value_id", how="anti")
        values = missing.join(tables["values"], on="value_id")
        # what lies in memory of a collective that was freed before anybody read it again
        assert values["role"].is_in(["activation"]).all()
        assert values.height <= 0.02 * used.n_unique()


def test_parameters_after_the_step_are_the_same_bits_on_every_rank(ranks: list[Tables]):
    last = []
    for tables in ranks:
        named = tables["values"].filter(pl.col("role") == "parameter").join(prints(tables), on="value_id")
        newest = named.sort("value_id").unique("slot", keep="last", maintain_order=True).sort("slot")
        last.append(newest.select("slot", "exact"))
    assert last[0].height == 4
    assert last[0].equals(last[1])


@pytest.mark.parametrize("name", ["c10d.allreduce_.default", "_c10d_functional.wait_tensor.default"])
def test_results_of_a_collective_are_those_after_it_has_ended(ranks: list[Tables], name: str):
    """Before it, the numbers of the ranks differ; a look at the time of the call would have seen those."""
    results, inputs = [], []
    for tables in ranks:
        ops = tables["ops"].filter(pl.col("name") == name)
        assert ops.height >= 2
        for found, column in ((results, "outputs"), (inputs, "inputs")):
            values = ops.select(pl.col(column).alias("value_id")).explode("value_id").drop_nulls()
            found.append(values.join(prints(tables), on="value_id", how="left", maintain_order="left")["exact"])
    known = results[0].is_not_null() & results[1].is_not_null()
    assert known.sum() >= 2
    assert (results[0].filter(known) == results[1].filter(known)).all()
    if name.startswith("c10d."):
        assert (inputs[0] != inputs[1]).any()


def test_both_ranks_have_one_structure_and_a_rank_matches_itself(ranks: list[Tables]):
    graphs = [step_graph(t["ops"], t["values"], t["fingerprints"]).graph for t in ranks]
    assert structure(graphs[0]) == structure(graphs[1])
    found = match_records(ranks[0], ranks[0])
    assert found.steps == (2, 3)
    assert found.matched.regions.a.tolist() == found.matched.regions.b.tolist()
    # each draws its own data: what is before the all-reduce differs, and is said to come from there
    apart = match_records(ranks[0], ranks[1]).divergences()
    assert [divergence.reason for divergence in apart] == ["random"]
