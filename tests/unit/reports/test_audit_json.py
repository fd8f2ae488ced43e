import json
import math

import msgspec
import pytest

from magneton_dist.errors import InputError, RecordError
from magneton_dist.records.audit import AUDIT_VERSION, Interval
from magneton_dist.reports.audit_json import read_audit_json, write_audit_json

replace = msgspec.structs.replace


@pytest.mark.parametrize("name", ["audit", "alone", "troubled", "hostile"])
def test_reads_what_it_wrote(name, request, tmp_path):
    audit = request.getfixturevalue(name)
    write_audit_json(audit, tmp_path / "audit.json")
    assert read_audit_json(tmp_path / "audit.json") == audit
    assert [p.name for p in tmp_path.iterdir()] == ["audit.json"]


def test_is_plain_json_with_the_designed_keys(audit, tmp_path):
    write_audit_json(audit, tmp_path / "audit.json")
    data = json.loads((tmp_path / "audit.json").read_text())
    assert data["schema_version"] == AUDIT_VERSION
    assert data["variants"]["join"]["ranks"][0]["states"]["working/compute"]["s"] == pytest.approx(0.320)
    assert data["findings"][0]["kind"] == "shadow-collective"
    assert data["comparison"]["verdict"] == "waste"


def test_unmeasured_is_null_not_zero(troubled, tmp_path):
    write_audit_json(troubled, tmp_path / "audit.json")
    data = json.loads((tmp_path / "audit.json").read_text())
    assert data["variants"]["join"]["energy_j"] is None
    assert data["variants"]["join"]["ranks"][0]["states"]["finished/wait"]["j"] is None


@pytest.mark.parametrize("figure", [math.nan, math.inf])
def test_refuses_what_json_cannot_say_and_keeps_the_old_file(audit, figure, tmp_path):
    path = tmp_path / "audit.json"
    write_audit_json(audit, path)
    before = path.read_bytes()
    ranks = [replace(audit.variants["join"].ranks[0], energy_j=figure)]
    wrong = replace(audit, variants={"join": replace(audit.variants["join"], ranks=ranks)})
    with pytest.raises(RecordError, match="no finite number"):
        write_audit_json(wrong, path)
    wrong = replace(audit, variants={"join": replace(audit.variants["join"], time_s=Interval(figure))})
    with pytest.raises(RecordError, match="no finite number"):
        write_audit_json(wrong, path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["audit.json"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(schema_version=AUDIT_VERSION + 1), f"schema version {AUDIT_VERSION + 1}"),
        (lambda d: d.update(findings="none"), "findings"),
        (lambda d: d.pop("variants"), "variants"),
        (lambda d: d.update(energy_kind="guessed"), "guessed"),
        (lambda d: d.pop("schema_version"), "schema_version"),
    ],
)
def test_refuses_other_schemas(audit, change, message, tmp_path):
    path = tmp_path / "audit.json"
    write_audit_json(audit, path)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(RecordError, match=message):
        read_audit_json(path)


def test_truncated_or_absent_is_one_clear_error(audit, tmp_path):
    path = tmp_path / "audit.json"
    with pytest.raises(RecordError, match=r"audit\.json"):
        read_audit_json(path)
    write_audit_json(audit, path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(RecordError, match="truncated"):
        read_audit_json(path)


def test_a_failed_write_leaves_no_draft(audit, tmp_path):
    (tmp_path / "audit.json").mkdir()
    with pytest.raises(InputError, match=r"audit\.json: cannot be written: Is a directory"):
        write_audit_json(audit, tmp_path / "audit.json")
    assert [p.name for p in tmp_path.iterdir()] == ["audit.json"]
