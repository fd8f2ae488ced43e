from __future__ import annotations

from pathlib import Path

from magneton_dist.cluster.manifests import delete, store, versions


def test_delivered_files_stay_in_their_folder(tmp_path: Path) -> None:
    store(tmp_path / "ranks", {"steps.parquet": b"1", "../../evil": b"2"})
    assert sorted(path.name for path in (tmp_path / "ranks").iterdir()) == ["evil", "steps.parquet"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ranks"]


def test_a_folder_is_deleted_under_another_name(tmp_path: Path) -> None:
    for name in ("spool", ".spool"):  # the second was left by a deletion that was killed
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    delete(tmp_path / "spool", tmp_path / ".spool")
    assert list(tmp_path.iterdir()) == []


def test_versions_name_this_package() -> None:
    assert "python" in versions()


def test_delivered_contents_of_tensors_are_their_owners(tmp_path: Path) -> None:
    store(tmp_path / "new", {"a/b/input-1.bin": b"1"})
    assert (tmp_path / "new" / "input-1.bin").read_bytes() == b"1"
    assert (tmp_path / "new" / "input-1.bin").stat().st_mode & 0o777 == 0o600
