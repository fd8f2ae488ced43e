from __future__ import annotations

from pathlib import Path

import pytest

from magneton_dist.cluster.manifests import read_manifest, store, versions, write_manifest
from magneton_dist.errors import RecordError
from magneton_dist.records.manifest import Manifest


def test_delivered_files_stay_in_their_folder(tmp_path: Path) -> None:
    store(tmp_path / "ranks", {"steps.parquet": b"1", "../../evil": b"2"})
    assert sorted(path.name for path in (tmp_path / "ranks").iterdir()) == ["evil", "steps.parquet"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ranks"]


def test_a_manifest_comes_back_as_it_was(tmp_path: Path) -> None:
    manifest = Manifest("audit", "a", 0, "now", 2, ["torchrun"], None, [], {}, versions())
    write_manifest(tmp_path / "run", manifest)
    assert read_manifest(tmp_path / "run") == manifest
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["manifest.json"]


def test_a_damaged_manifest_is_a_record_error(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"audit": ')
    with pytest.raises(RecordError, match=r"manifest\.json: cannot be read"):
        read_manifest(tmp_path)
