import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import magneton_dist

ROOT = Path(magneton_dist.__file__).resolve().parents[1]


def test_the_version_is_the_projects():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert magneton_dist.__version__ == project["version"]


@pytest.mark.parametrize("name", magneton_dist.__all__)
def test_every_public_name_is_there(name: str):
    assert getattr(magneton_dist, name) is not None
    assert name in dir(magneton_dist)


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        magneton_dist.nothing  # noqa: B018


def test_importing_it_loads_nothing_else():
    code = "import magneton_dist, sys; print(*[m for m in ('torch', 'polars', 'ray', 'pydantic') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ""
