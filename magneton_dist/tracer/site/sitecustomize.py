"""Python's start-up hook, found first on the job's PYTHONPATH: arms the tracer, then runs the shadowed one.

It never imports torch and never raises. Where the tracer stays dark it costs the import of this file only.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _our_package() -> None:
    """Make `import magneton_dist` mean the package this file belongs to, installed here or not."""
    from importlib.util import module_from_spec, spec_from_file_location

    root = os.path.dirname(os.path.dirname(_HERE))
    spec = spec_from_file_location(
        "magneton_dist", os.path.join(root, "__init__.py"), submodule_search_locations=[root]
    )
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["magneton_dist"] = module
    spec.loader.exec_module(module)


def _arm() -> None:
    _our_package()
    from magneton_dist.tracer import environment

    settings = environment.read_settings(os.environ)
    if settings is not None:
        from magneton_dist.tracer import bootstrap

        bootstrap.arm(settings)


def _run_shadowed() -> None:
    """Run the sitecustomize that Python would have found without us."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    path = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


if os.environ.get("MAGNETON_DIST_SPOOL"):
    try:
        _arm()
    except Exception as error:
        sys.stderr.write(f"[magneton-dist] this process is not traced: {error!r}\n")
_run_shadowed()
