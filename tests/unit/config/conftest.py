from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from magneton_dist.config import AuditConfig, load
from magneton_dist.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with a `train.py`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('train')\n")
    return tmp_path


@pytest.fixture
def read(folder: Path) -> Callable[..., AuditConfig]:
    """Write `a.yaml` and load it with overrides."""

    def write_and_load(text: str, *overrides: str) -> AuditConfig:
        (folder / "a.yaml").write_text(text)
        return load("a.yaml", overrides)

    return write_and_load


@pytest.fixture
def refused(read: Callable[..., AuditConfig]) -> Callable[..., str]:
    """The one-line error of a configuration that must be refused."""

    def message(text: str, *overrides: str) -> str:
        with pytest.raises(ConfigError) as caught:
            read(text, *overrides)
        assert caught.value.exit_code == 2
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return message
