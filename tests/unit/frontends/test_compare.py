import os
from pathlib import Path

import polars as pl
import pytest
import torch

import magneton_dist
from magneton_dist.errors import InputError, RecordError
from magneton_dist.frontends.compare import GraphComparison, compare
from magneton_dist.frontends.graph_record import GraphRecord

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
FRAMEWORKS = Path(__file__).parents[3] / "examples" / "frameworks"


def cubes(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x @ w
    return (y * y * y).sum(0)


def transposed_powers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = (w.t() @ x.t()).t()
    return (y**3).sum(0)


@pytest.fixture
def records() -> tuple[GraphRecord, GraphRecord]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(8, 16, generator=generator), torch.randn(16, 12, generator=generator)
    return magneton_dist.record(cubes, inputs), magneton_dist.record(transposed_powers, inputs)


def names(region: dict[str, object], side: str) -> list[str]:
    return [name.split(".")[1] for name in region[f"names_{side}"]]


def pairs(comparison: GraphComparison) -> list[tuple[list[str], list[str]]]:
    return [(names(r, "a"), names(r, "b")) for r in comparison.matched.iter_rows(named=True)]


def test_regions_are_cut_at_equal_values(records):
    comparison = compare(*records)
    assert pairs(comparison) == [(["mm"], ["mm", "t"]), (["mul", "mul"], ["pow"]), (["sum"], ["sum"])]
    # what is left: the two factors transposed, which only b does
    left = comparison.regions.filter(pl.col("kind") != "matched")
    assert left["kind"].unique().to_list() == ["only b"]
    assert left["names_b"].explode().to_list() == ["aten.t.default"] * 2


def test_bytes_of_a_region_are_what_its_operators_read_and_write(records):
    product, powers, total = compare(*records).matched.iter_rows(named=True)
    x, w, y, s = 4 * 8 * 16, 4 * 16 * 12, 4 * 8 * 12, 4 * 12
    assert product["bytes_a"] == x + w + y
    assert product["bytes_b"] == x + w + y  # the view of the result moves nothing
    assert (powers["bytes_a"], powers["bytes_b"]) == (2 * y + 3 * y, 2 * y)
    assert (total["bytes_a"], total["bytes_b"]) == (y + s, y + s)
    assert powers["line_a"].startswith(f"{__file__}:")
    assert powers["line_a"].endswith(" cubes")
    assert 0 < powers["seconds_a"] < 1


def test_every_operator_is_in_one_region_and_the_mirror_image_is_the_same(records):
    forth, back = compare(*records), compare(*reversed(records))
    for record, side in zip(records, "ab", strict=True):
        assert sorted(forth.regions[f"ops_{side}"].explode().drop_nulls()) == record.ops["op_id"].to_list()
    assert sorted(pairs(forth)) == sorted((a, b) for b, a in pairs(back))
    assert (forth.covered_a, forth.covered_b) == (back.covered_b, back.covered_a)


def test_a_record_covers_itself(records):
    comparison = compare(records[0], records[0])
    assert pairs(comparison) == [([n], [n]) for n in ("mm", "mul", "mul", "sum")]
    assert comparison.covered_a == comparison.covered_b == 1.0
    assert comparison.pairs["values_a"].to_list() == comparison.pairs["values_b"].to_list()


def test_nothing_in_common():
    a = magneton_dist.record(lambda x: x.exp(), (torch.linspace(0, 1, 30),))
    b = magneton_dist.record(lambda x: x.sin(), (torch.linspace(2, 3, 31),))
    comparison = compare(a, b)
    assert comparison.matched.is_empty()
    assert comparison.covered_a == comparison.covered_b == 0.0
    assert "0 of 2 regions match" in str(comparison)


def test_folders_are_opened(records, tmp_path):
    for record, name in zip(records, "ab", strict=True):
        record.save(tmp_path / name)
    comparison = compare(tmp_path / "a", magneton_dist.load(tmp_path / "b"))
    assert pairs(comparison) == pairs(compare(*records))
    with pytest.raises(RecordError, match=r"rank 3 left no tables.*with tables: 0"):
        compare(tmp_path / "a", records[1], rank=3)
    run = tmp_path / "audit" / "variant" / "0"
    records[0].save(run)
    with pytest.raises(InputError, match=r"whole audit.*one run"):
        compare(tmp_path / "audit", records[1])


def test_without_fingerprints_it_says_so(records):
    records[0].tables["fingerprints"] = records[0].fingerprints.clear()
    with pytest.raises(RecordError, match=r"cubes.*no fingerprints.*capture\.fingerprints"):
        compare(*records)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"eps": -1e-3}, r"eps is -0\.001.*0 to below 1"),
        ({"eps": 1}, "eps is 1 "),
        ({"eps": float("nan")}, "eps is nan"),
        ({"eps": "small"}, "eps is 'small'"),
        ({"algorithm": "dominator"}, "'dominator'.*frontier, dominators"),
        ({"by": "time"}, "by does not apply to recorded callables.*leave it out"),
        ({"profile": "h200"}, "profile does not apply"),
    ],
)
def test_arguments_of_no_use_are_refused(records, given, match):
    with pytest.raises(InputError, match=match):
        magneton_dist.compare(*records, **given)


@pytest.mark.parametrize("thing", [None, 3, torch.relu])
def test_what_is_no_record_is_refused(records, thing):
    with pytest.raises(InputError, match=r"is no record.*magneton_dist.record"):
        magneton_dist.compare(records[0], thing)


def test_a_function_without_operators_is_named(records):
    nothing = magneton_dist.record(lambda x: x, (torch.ones(9),), name="same")
    with pytest.raises(RecordError, match=r"same \(torch\): its function ran no operators"):
        compare(records[0], nothing)


@pytest.mark.parametrize("fill", [0.0, float("nan"), float("inf")])
def test_values_that_tell_nothing_are_not_said_to_have_no_fingerprints(fill):
    x = torch.full((8, 8), fill)
    told = compare(magneton_dist.record(lambda x: x @ x, (x,)), magneton_dist.record(lambda x: x.mm(x) * 1, (x,)))
    assert told.matched.is_empty()
    assert "no value of the first record can be told from others: all are constant, not finite" in told.notes[0]


def test_a_record_that_cannot_be_written_is_an_input_error(records, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file.*cannot be written: Not a directory"):
        records[0].save(tmp_path / "file")


def test_names_cannot_steer_the_terminal(records):
    records[0].name = "cubes\x1b[31m\nb: other"
    assert str(compare(*records)).splitlines()[0] == "a: cubes\ufffd[31m\ufffdb: other (torch)"


def test_what_is_printed(records):
    text = str(compare(*records)).splitlines()
    assert text[:3] == [
        "a: cubes (torch)",
        "b: transposed_powers (torch)",
        "3 of 5 regions match; they move 100.0% of the bytes of a and 100.0% of b's",
    ]
    assert text[5].split() == ["1,920", "768", "mul", "mul", "|", "pow"]


def test_a_count_is_equal_to_itself_only():
    x = torch.arange(4000.0)
    a = magneton_dist.record(lambda x: torch.count_nonzero(x), (x,))
    same, more = (magneton_dist.record(lambda x, n=n: (x > n).sum(), (x,)) for n in (0, 1))
    assert compare(a, same).regions["kind"].to_list() == ["matched"]
    assert compare(a, more).regions["kind"].to_list() == ["unmatched"]


@pytest.mark.parametrize(
    ("other", "kinds"),
    [
        (lambda x: x.mul(x).mean(), ["matched"]),
        (lambda x: (x * x).sum() / x.numel() * 1.01, ["unmatched"]),
    ],
)
def test_a_scalar_result_of_equal_inputs_is_equal_work(other, kinds):
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    a, b = magneton_dist.record(lambda x: (x.norm() ** 2) / x.numel(), (x,)), magneton_dist.record(other, (x,))
    for comparison in (compare(a, b), compare(b, a)):
        assert set(comparison.regions["kind"]) >= set(kinds)
        assert ("matched" in comparison.regions["kind"].to_list()) == (kinds == ["matched"])


@pytest.fixture
def example(monkeypatch):
    """``example("block", "jax")``: the record of a function of examples/frameworks."""
    monkeypatch.syspath_prepend(str(FRAMEWORKS))
    for name in ("compare", "arrays", "in_torch", "in_jax", "in_tensorflow"):
        monkeypatch.delitem(__import__("sys").modules, name, raising=False)

    def record(function: str, framework: str) -> GraphRecord:
        if framework in ("jax", "tensorflow"):
            pytest.importorskip(framework, reason=f"pip install 'magneton-dist[{framework}]'")
        from compare import record  # of the example

        return record(function, framework)

    return record


@pytest.mark.parametrize(("one", "other"), [("torch", "fx"), ("torch", "jax"), ("torch", "tensorflow")])
def test_a_transformer_block_is_the_same_work_in_every_framework(example, one, other):
    comparison = compare(example("block", one), example("block", other))
    assert set(comparison.regions["kind"]) <= {"matched", "only b"}  # each of torch's operators has its peer
    assert comparison.covered_a == 1.0
    assert comparison.covered_b > 0.99
    found = {a[0]: b for a, b in pairs(comparison)}
    assert len(found["gelu"]) > 2 or other == "fx"
    assert "_scaled_dot_product_flash_attention_for_cpu" in found
    if other == "tensorflow":
        attention = found["_scaled_dot_product_flash_attention_for_cpu"]
        assert attention == ["BatchMatMulV2", "Mul", "Softmax", "BatchMatMulV2", "Transpose", "Reshape"]


def test_count_nonzero_is_three_operators_elsewhere(example):
    comparison = compare(example("count_nonzero", "torch"), example("count_nonzero", "jax"))
    assert pairs(comparison) == [(["count_nonzero"], ["ne", "convert_element_type", "reduce_sum"])]


def test_tensorflow_computes_branches_of_expm_that_jax_does_not(example):
    comparison = compare(example("expm", "jax"), example("expm", "tensorflow"))
    largest = comparison.regions.sort("bytes_b").row(-1, named=True)
    assert largest["kind"] == "only b"
    assert names(largest, "b").count("BatchMatMulV2") >= 3
    assert any("BatchMatMulV2" in b for _, b in pairs(comparison))


def test_where_and_why_two_records_part_is_said():
    torch.manual_seed(0)
    inputs = torch.randn(20, 30), torch.randn(30, 40)
    a = magneton_dist.record(lambda x, w: (x @ w).relu().square(), inputs)
    b = magneton_dist.record(lambda x, w: (x @ w).sigmoid().square(), inputs)
    found = magneton_dist.compare(a, b)
    assert len(found.notes) == 1
    assert "the runs part at relu" in found.notes[0]
    assert found.notes[0] in str(found)


def test_regions_by_the_algorithm_of_the_paper():
    torch.manual_seed(0)
    inputs = torch.randn(20, 30), torch.randn(30, 30)
    record = magneton_dist.record(lambda x, w: (((x @ w) + x).relu() @ w).relu(), inputs)
    found = magneton_dist.compare(record, record, algorithm="dominators")
    assert found.covered_a == 1.0
    assert len(found.matched) == 5
