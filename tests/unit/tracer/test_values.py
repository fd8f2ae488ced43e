import gc

import pytest
import torch

from magneton_dist.tracer.model import Owned
from magneton_dist.tracer.rows import FIELDS
from magneton_dist.tracer.values import Values


@pytest.fixture
def values() -> Values:
    return Values()


def row(values: Values, value: int, owned: tuple[Owned, ...] = ()) -> dict[str, object]:
    rows = {fields[0]: dict(zip(FIELDS["value"], fields, strict=True)) for fields in values.rows(owned)}
    return rows[value]


def test_the_same_tensor_is_the_same_value(values: Values):
    x = torch.ones(2, 3)
    assert values.read(x) == values.read(x) == values.read(x.detach())


def test_a_view_shares_the_storage_but_is_another_value(values: Values):
    x = torch.ones(4, 6)
    whole, part = values.read(x), values.read(x[1:3, ::2])
    assert whole != part
    assert row(values, part) == {
        "value_id": part,
        "storage": row(values, whole)["storage"],
        "version": 0,
        "offset": 6,
        "shape": [2, 3],
        "stride": [6, 2],
        "dtype": "float32",
        "device": "cpu",
        "bytes": 24,
        "role": "input",
        "slot": None,
        "kept": True,
    }


def test_what_nobody_holds_any_more_is_said():
    values = Values()
    held, gone = torch.ones(4), torch.ones(4)
    kept, lost = values.read(held), values.read(gone)
    view = gone[1:]
    del gone
    assert row(values, lost)["kept"]
    del view
    assert (row(values, kept)["kept"], row(values, lost)["kept"]) == (True, False)


def test_another_dtype_of_the_same_bytes_is_another_value(values: Values):
    x = torch.ones(4)
    assert values.read(x) != values.read(x.view(torch.int32))


def test_a_write_makes_a_new_version_of_every_view(values: Values):
    x = torch.ones(4)
    before = values.read(x), values.read(x[:2])
    outputs: list[int] = []
    values.write([x], outputs)
    written = values.produce(x, outputs)
    after = values.read(x), values.read(x[:2])
    assert after[0] == written
    assert len({*before, *after}) == 4
    assert row(values, written)["version"] == 1
    # the view was not returned by the writer, yet it is what the writer wrote
    assert outputs == [written, after[1]]


def test_two_views_written_at_once_are_one_write_of_their_storage(values: Values):
    x = torch.ones(4)
    outputs: list[int] = []
    values.write([x[:2], x[2:]], outputs)
    assert row(values, values.produce(x[:2], outputs))["version"] == 1
    assert row(values, values.produce(x[2:], outputs))["version"] == 1
    assert len(outputs) == 2


def test_a_recycled_address_is_not_taken_for_the_old_storage(values: Values):
    seen = set()
    for _ in range(50):
        seen.add(values.read(torch.ones(1024)))  # freed at once: the allocator hands the memory out again
        gc.collect(0)
    assert len(seen) == 50


def test_two_empty_tensors_are_two_values(values: Values):
    a, b = torch.ones(0), torch.ones(0)
    assert values.read(a) != values.read(b)


def test_sparse_tensors_are_known_by_themselves(values: Values):
    a, b = torch.eye(3).to_sparse(), torch.eye(3).to_sparse()
    assert values.read(a) == values.read(a) != values.read(b)
    assert row(values, values.read(a))["shape"] == [3, 3]


def test_a_part_does_not_cover_its_storage(values: Values):
    x = torch.ones(4)
    assert values.covers_storage(x)
    assert values.covers_storage(x.view(2, 2).t())
    assert not values.covers_storage(x[:3])


def test_ids_go_on_after_a_step_and_storages_start_anew(values: Values):
    x = torch.ones(2)
    first = values.read(x)
    values.write([x], [])
    values.forget()
    second = values.read(x)
    assert second > first
    assert row(values, second)["version"] == 0


def test_roles_come_from_the_owners_of_a_storage(values: Values):
    weight, made, given = torch.ones(2, 3), torch.ones(3), torch.ones(3)
    transposed = values.read(weight.t())
    values.produce(made, [])
    owned = (Owned("parameter", "w", weight),)
    assert (row(values, transposed, owned)["role"], row(values, transposed, owned)["slot"]) == ("parameter", "w")
    assert row(values, values.read(made), owned)["role"] == "activation"
    assert row(values, values.read(given), owned)["role"] == "input"


def test_slots_of_a_flat_buffer_come_from_the_exact_part(values: Values):
    flat = torch.ones(10)
    first, second, whole = values.read(flat[:4].view(2, 2)), values.read(flat[4:]), values.read(flat)
    owned = (Owned("gradient", "a", flat[:4]), Owned("gradient", "b", flat[4:]))
    assert [row(values, value, owned)["slot"] for value in (first, second, whole)] == ["a", "b", None]
    assert row(values, whole, owned)["role"] == "gradient"
