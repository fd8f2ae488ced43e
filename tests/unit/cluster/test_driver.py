from __future__ import annotations

from pathlib import Path

import pytest

from magneton_dist.cluster.driver import _audit_folder
from magneton_dist.config import AuditConfig, Job
from magneton_dist.errors import InputError


def config(runs: Path) -> AuditConfig:
    return AuditConfig(name="x", variants={"a": Job(script="t.py")}, baseline="a", runs=runs)


def test_two_audits_of_one_second_have_folders_of_their_own(tmp_path: Path) -> None:
    first, second = _audit_folder(config(tmp_path)), _audit_folder(config(tmp_path))
    assert first != second
    assert first.parent == second.parent == tmp_path
    assert first.name.startswith("x-")


def test_a_folder_that_cannot_be_written_is_the_user_s_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"runs: .*file/runs: cannot be written") as caught:
        _audit_folder(config(tmp_path / "file" / "runs"))
    assert caught.value.exit_code == 2
