"""The configurations that come with the package."""

from pathlib import Path

import pytest

from magneton_dist.config import load
from magneton_dist.config.plan import schedule

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "configs").glob("*.yaml")))
def test_it_loads_and_its_scripts_exist(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    config = load(f"configs/{name}")
    assert config.name == name.removesuffix(".yaml").replace("_", "-")
    assert len(schedule(config)) == len(config.variants) * config.repeats + config.warmup_runs
    for job in config.variants.values():
        assert job.script is not None
        assert (ROOT / job.script).is_file()
