"""What the command replay says of records that cannot be replayed."""

from __future__ import annotations

from pathlib import Path

import pytest

from magneton_dist.errors import InputError
from magneton_dist.replays import replay


def test_an_audit_without_a_whole_run_says_so(tmp_path: Path) -> None:
    (tmp_path / "audit.json").write_text("{}")
    (tmp_path / "join" / "0" / "ranks").mkdir(parents=True)  # killed before it had a manifest
    with pytest.raises(InputError, match="no run in it was recorded to its end"):
        replay(tmp_path)
