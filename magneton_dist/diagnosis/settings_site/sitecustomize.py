"""Start-up hook of a variant that has a fix applied: before every optimizer step, torch's settings are as it says.

The tracer's own hook runs this one, and makes the package importable. Before every step, because the script may set
the same settings as it begins; the first step, in which they may be the script's, is one of warm-up.
"""

import json
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_TRACER = "magneton_dist.tracer"
_OPTIMIZERS = "torch.optim"  # not its `optimizer`, for which the tracer watches


def _apply_before_steps(_: object) -> None:
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    from magneton_dist.diagnosis.switches import apply

    settings = json.loads(os.environ["MAGNETON_DIST_SETTINGS"])
    told: list[str] = []

    def hook(*_: object) -> None:
        refused = apply((name, text) for name, text in settings)
        if refused and not told:
            told.extend(refused)
            sys.stderr.write(f"[magneton-dist] not applied: {', '.join(refused)}\n")

    register_optimizer_step_pre_hook(hook)


def _watch() -> None:
    from magneton_dist.tracer.bootstrap import ImportWatcher

    sys.meta_path.insert(0, ImportWatcher({_OPTIMIZERS: _apply_before_steps}))


def _run_shadowed() -> None:
    """Run the sitecustomize that Python would have found without us and the tracer."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    tracer = os.path.join(os.path.dirname(os.path.dirname(_HERE)), "tracer", "site")
    seen = _HERE, os.path.abspath(tracer)
    path = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) not in seen]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


if _TRACER in sys.modules:  # the process is of a job that is traced
    _watch()
_run_shadowed()
