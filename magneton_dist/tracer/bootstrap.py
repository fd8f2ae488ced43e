"""Armed in every Python process of the job; becomes a tracer in those that turn out to be ranks.

A rank is a process that creates a process group, takes an optimizer step, or calls `magneton_dist.step`.
torchrun's agent, data loader workers, resource trackers and compile workers do none of these. Two modules of
torch are watched for, because nothing of torch may be imported before the script imports it.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import os
import signal
import sys
import time
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable

from magneton_dist.tracer.environment import Settings

if TYPE_CHECKING:
    from magneton_dist.tracer.session import Session

_GROUPS_MODULE = "torch.distributed.distributed_c10d"
_OPTIMIZER_MODULE = "torch.optim.optimizer"

_settings: Settings | None = None  # None: this process is not to be traced
_python_start_ns = 0
_session: Session | None = None  # once the process is known to be a rank


def arm(settings: Settings) -> None:
    """Watch this process for the first sign that it is a rank."""
    global _settings, _python_start_ns
    _settings = settings
    _python_start_ns = time.monotonic_ns()
    _die_with_the_agent()
    watched = {_GROUPS_MODULE: _watch_groups, _OPTIMIZER_MODULE: _watch_optimizers}
    sys.meta_path.insert(0, ImportWatcher(watched))


def step(*, tokens: float | None = None, samples: float | None = None) -> None:
    """Say, once per iteration, that a step of this rank ends here; overrides what the tracer makes out.

    Does nothing in a process that is not traced.

    Args:
        tokens: tokens this rank worked on in the step; makes joules per token known.
        samples: the same in samples, for jobs without tokens.
    """
    with _Quietly():
        session = _rank(first_group=None)
        if session is not None:
            units, unit = (tokens, "tokens") if tokens is not None else (samples, "samples")
            session.steps.called(None if units is None else float(units), None if units is None else unit)


def _rank(first_group: Any) -> Session | None:
    """The session of this process, made now if this is the first sign that it is a rank."""
    global _session
    if _session is None and _settings is not None:
        from magneton_dist.tracer.session import Session

        _session = Session(_settings, _python_start_ns, first_group)
        os.register_at_fork(after_in_child=_darken)
    return _session


def _darken() -> None:
    """A forked child is no rank."""
    global _settings, _session
    if _session is not None:
        _session.darken()
    _settings = _session = None


class _Quietly:
    """What goes wrong inside ends the tracing of this process, never the job. Lets `SystemExit` pass."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool:
        if not isinstance(error, Exception):
            return False
        sys.stderr.write(f"[magneton-dist] this process is traced no longer: {error!r}\n")
        if _session is not None:
            _session.spool.fault("tracer", error)
            _session.spool.close()
        _darken()
        return True


class ImportWatcher(importlib.abc.MetaPathFinder):
    """Calls a function with a module right after the module was executed by whoever imports it."""

    def __init__(self, callbacks: dict[str, Callable[[Any], None]]) -> None:
        self._callbacks = callbacks

    def find_spec(
        self, fullname: str, path: Any = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec that the other finders have, of a watched module with the callback behind its execution."""
        if fullname not in self._callbacks:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                self._call_after(spec.loader, self._callbacks[fullname])
                return spec
        return None

    @staticmethod
    def _call_after(loader: Any, callback: Callable[[Any], None]) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            with _Quietly():
                callback(module)

        loader.exec_module = exec_module


def _watch_groups(c10d: Any) -> None:
    """Hook the one function behind `init_process_group` and `new_group`; both look it up when called."""
    create, destroy = c10d._new_process_group_helper, c10d.destroy_process_group

    @functools.wraps(create)
    def _new_process_group_helper(*args: Any, **kwargs: Any) -> Any:
        result = create(*args, **kwargs)
        with _Quietly():
            group = result[0]
            if group is not c10d.GroupMember.NON_GROUP_MEMBER:
                session = _rank(first_group=group)
                if session is not None:
                    ranks = args[2] if len(args) > 2 else kwargs["global_ranks_in_group"]
                    session.group_created(group, list(ranks))
        return result

    @functools.wraps(destroy)
    def destroy_process_group(group: Any = None) -> Any:
        with _Quietly():
            if _session is not None:
                _session.before_groups_die(all_of_them=group is None or group is c10d.GroupMember.WORLD)
        return destroy(group)

    c10d._new_process_group_helper = _new_process_group_helper
    c10d.destroy_process_group = destroy_process_group


def _watch_optimizers(module: Any) -> None:
    """Hooks of all optimizers, for the life of the process: torch iterates over them while it calls them.

    A compiled step has none: dynamo, which traces through the hooks, must find them empty.
    """
    from magneton_dist.tracer import uncompiled

    torch = sys.modules["torch"]

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if _session is not None:
            with _Quietly():
                _session.steps.optimizer_begins()

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if _settings is not None:
            with _Quietly():
                session = _rank(first_group=None)
                if session is not None:
                    session.steps.optimizer_ends(optimizer)

    for entry in (before, after, step):
        uncompiled.ends_here(entry)
    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)


def _die_with_the_agent() -> None:
    """torchrun gives each rank its own session: a killed agent would leave its ranks running.

    Only for direct children of an agent (whose own environment has no LOCAL_RANK): the signal fires when the
    thread that started a process ends, which a rank's own helpers must survive.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ or "LOCAL_RANK" not in os.environ:
        return
    agent = os.getppid()
    try:
        with open(f"/proc/{agent}/environ", "rb") as file:
            if any(entry.startswith(b"LOCAL_RANK=") for entry in file.read().split(b"\0")):
                return
    except OSError:
        return
    import ctypes

    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent:
        os._exit(1)
