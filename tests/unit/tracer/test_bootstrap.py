import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

import magneton_dist
from magneton_dist.tracer import bootstrap
from magneton_dist.tracer.bootstrap import ImportWatcher


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Watch for a module `watched_module` with the given source."""
    (tmp_path / "watched_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "watched_module", raising=False)

    def start(callback):
        monkeypatch.setattr(sys, "meta_path", [ImportWatcher({"watched_module": callback}), *sys.meta_path])

    yield start
    sys.modules.pop("watched_module", None)


def test_a_watched_module_is_seen_after_its_execution_and_before_its_importer_goes_on(watch):
    def double(module: ModuleType) -> None:
        module.value *= 2

    watch(double)
    module = importlib.import_module("watched_module")
    assert module.value == 2
    assert module.__spec__.loader.get_source("watched_module") == "value = 1\n"
    importlib.reload(module)
    assert module.value == 2


def test_a_failing_callback_leaves_the_import_alone(watch, capsys: pytest.CaptureFixture[str]):
    watch(lambda module: 1 / 0)
    assert importlib.import_module("watched_module").value == 1
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_other_modules_are_not_looked_for(watch):
    watch(lambda module: None)
    watcher = sys.meta_path[0]
    assert watcher.find_spec("json") is None
    assert watcher.find_spec("no_such_module") is None


def test_step_does_nothing_in_the_dark(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bootstrap, "_settings", None)
    magneton_dist.step(tokens=3)
    assert bootstrap._session is None


def test_quietly_lets_the_end_of_the_job_pass():
    with pytest.raises(SystemExit), bootstrap._Quietly():
        raise SystemExit(0)
    with pytest.raises(KeyboardInterrupt), bootstrap._Quietly():
        raise KeyboardInterrupt
    with bootstrap._Quietly():
        raise ValueError
