"""Python's start-up hook of a job that is run again to see which lines it takes: arms that, then runs the shadowed one.

It never imports torch and never raises; processes end with the one that started them.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _arm() -> None:
    """Load the module next to this folder by its path: the job's Python need not have this package."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("_magneton_dist_lines", os.path.join(os.path.dirname(_HERE), "lines.py"))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module.arm(os.environ)


def _run_shadowed() -> None:
    """Run the sitecustomize that Python would have found without us."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    path = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


try:
    _arm()
except Exception as error:
    sys.stderr.write(f"[magneton-dist] lines of this process are not seen: {error!r}\n")
_run_shadowed()
