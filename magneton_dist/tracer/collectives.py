"""Every collective of the process, seen at the dispatcher: who, what, how much, from when to when.

One Python kernel per c10d operator at `BackendSelect`, the key that all callers pass: Python, DDP's reducer,
FSDP, functional collectives. The kernel notes the issue, calls on, and follows the returned work to its end.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
import threading
import time
import weakref
from time import monotonic_ns
from typing import Any, Callable, NamedTuple

import torch
import torch.distributed as dist

from magneton_dist.tracer import origin, payload, uncompiled
from magneton_dist.tracer.device_times import DeviceCall, DeviceTimes
from magneton_dist.tracer.rows import FIELDS
from magneton_dist.tracer.spool import Spool
from magneton_dist.tracer.stacks import Stacks
from magneton_dist.tracer.stamps import Stamps
from magneton_dist.tracer.steps import Steps

_COLUMN = {name: index for index, name in enumerate(FIELDS["collective"], start=1)}
_CALL, _OP, _ZERO = (_COLUMN[name] for name in ("call_id", "op", "zero_payload"))
_ISSUE, _START, _END = (_COLUMN[name] for name in ("issue_ns", "start_ns", "end_ns"))

# operator -> index of the argument with what this rank contributes
_PAYLOAD = {
    "allreduce_": 0, "allreduce_coalesced_": 0, "broadcast_": 0, "reduce_": 0,
    "allgather_": 1, "_allgather_base_": 1, "allgather_coalesced_": 1, "allgather_into_tensor_coalesced_": 1,
    "reduce_scatter_": 1, "_reduce_scatter_base_": 1, "reduce_scatter_tensor_coalesced_": 1,
    "gather_": 1, "scatter_": 0, "alltoall_": 1, "alltoall_base_": 1, "barrier": 0,
    "send": 0, "recv_": 0, "recv_any_source_": 0,
}  # fmt: skip
_REDUCING = frozenset({
    "allreduce_", "allreduce_coalesced_", "reduce_", "reduce_scatter_", "_reduce_scatter_base_",
    "reduce_scatter_tensor_coalesced_",
})  # fmt: skip
_POINT_TO_POINT = frozenset({"send", "recv_", "recv_any_source_"})
_ROOTS = ("root_rank", "dst", "src")

# A thread that Python did not start gets a new thread state for every callback, which costs five times the
# callback. One more reference, never returned, keeps the state for the life of the thread.
_keep_thread_state = ctypes.pythonapi.PyGILState_Ensure
_graph_task = torch._C._current_graph_task_id
_group_of = dist.ProcessGroup.unbox
_work_of = dist.Work.unbox

_QUIESCE_S = 0.5
# After its callback ran, a future drops the Python function, on its own thread, with the interpreter held.
_CALLBACK_DEATH_S = 0.01

Row = list[Any]
_Call = tuple[Row, "DeviceCall | None", bool]  # is its stamp still to be written?


class _Group:
    """A process group as the rows name it."""

    __slots__ = ("count", "name", "rank", "size")

    def __init__(self, group: Any, name: str) -> None:
        self.name = name
        self.rank: int = group.rank()
        self.size: int = group.size()
        # Collectives so far. The backends' own numbers cannot be compared between ranks: gloo's advance with
        # point-to-point calls on two ranks only, NCCL's stand still in a coalesced batch, and a group may have
        # both backends.
        self.count = 0


class _DtypeNames(dict[torch.dtype, str]):
    def __missing__(self, dtype: torch.dtype) -> str:
        name = self[dtype] = str(dtype).rpartition(".")[2]
        return name


class _Operator(NamedTuple):
    """Where a c10d operator keeps its arguments."""

    name: str
    group_at: int
    async_at: int
    payload_at: int
    root_at: int | None
    empty: bool  # its tensor only says which device
    reducing: bool
    point_to_point: bool


class Collectives:
    """Writes `collective` rows. A call in flight when a segment closes has a row without an end."""

    def __init__(self, spool: Spool, stamps: Stamps, stacks: Stacks, steps: Steps) -> None:
        self._spool = spool
        self._stamps = stamps
        self._stacks = stacks
        self._steps = steps
        self._devices: DeviceTimes | None = None
        self._groups: dict[int, _Group] = {}  # by the id of the Python object
        self._by_name: dict[str, _Group] = {}
        self._only: _Group | None = None  # as long as we know no other
        self._registered = dist.distributed_c10d._world.pg_map  # those split off in C++ appear only here
        self._uses: dict[str, int] = {}
        self._call_ids = itertools.count()
        self._in_flight: dict[int, Row] = {}
        self._reported: set[int] = set()  # calls that have a row without an end
        self._callbacks: set[int] = set()  # calls whose future holds a Python function of ours
        self._called_back_s = 0.0  # when the last callback ran
        self._backend_threads: set[int] = set()
        self._without_future: set[str] = set()
        # by the id of the work: [itself or a weak reference to it, its row, its device call]
        self._waited: dict[int, list[Any]] = {}
        self._dtypes = _DtypeNames()
        self._main_thread = threading.main_thread().ident or 0
        self._library: torch.library.Library | None = None
        spool.before_flush.append(self._before_flush)

    def install(self) -> None:
        """Register the kernels and follow `Work.wait`."""
        known: set[str] = getattr(torch.library, "_impls", set())
        taken = set(known)
        library = torch.library.Library("c10d", "IMPL")
        for name in _PAYLOAD:
            if f"c10d/{name}/BackendSelect" in taken:
                self._spool.fault(f"collectives {name}", "a library of the job already handles this operator")
                continue
            try:
                library.impl(name, self._kernel(name), "BackendSelect", with_keyset=True)
            except (AttributeError, RuntimeError, ValueError) as error:  # no such operator in this torch
                self._spool.fault(f"collectives {name}", error)
        # A library of the job that comes later may handle the same operators; torch must not refuse it.
        known.difference_update(library._op_impls)
        self._library = library
        for entry in (self._issued, self._returned, self._refused, self._ended):
            uncompiled.ends_here(entry)
        self._follow_waits()

    def add_group(self, group: Any) -> str:
        """Know a new group; returns its name in the record.

        A name that was used before gets a suffix, so that (group, seq) stays unique in a run.
        """
        name = str(group.group_name)
        used = self._uses[name] = self._uses.get(name, 0) + 1
        known = _Group(group, name if used == 1 else f"{name}~{used}")
        self._know(group, known)
        return known.name

    def _know(self, group: Any, known: _Group) -> None:
        self._by_name[str(group.group_name)] = known
        self._only = known if len(self._by_name) == 1 else None
        self._groups[id(group)] = known
        # Never held: a group ends when the job drops it. Its id may then become another's.
        weakref.finalize(group, self._groups.pop, id(group), None).atexit = False

    def quiesce(self) -> None:
        """Wait until no future holds a callback of ours: one left at the end aborts the process."""
        deadline = time.monotonic() + _QUIESCE_S
        while self._callbacks and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(max(0.0, self._called_back_s + _CALLBACK_DEATH_S - time.monotonic()))

    # --- issue ---

    def _kernel(self, name: str) -> Callable[..., Any]:
        overload = getattr(torch.ops.c10d, name).default
        arguments = [argument.name for argument in overload._schema.arguments]
        operator = _Operator(
            name,
            arguments.index("process_group"),
            arguments.index("async_op") if "async_op" in arguments else len(arguments),
            _PAYLOAD[name],
            next((arguments.index(root) for root in _ROOTS if root in arguments), None),
            name == "barrier",
            name in _REDUCING,
            name in _POINT_TO_POINT,
        )
        after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        redispatch = overload._handle.redispatch_boxed
        spool, issued, returned, refused = self._spool, self._issued, self._returned, self._refused

        def kernel(keyset: Any, *args: Any) -> Any:
            call = issued(operator, args) if spool.live else None
            try:
                out = redispatch(keyset & after, *args)
            except BaseException as error:
                if call is not None:
                    refused(call, error)
                raise
            if call is not None:
                returned(operator, args, call, out)
            return out

        uncompiled.passes_through(kernel)
        return kernel

    def _issued(self, operator: _Operator, args: Any) -> _Call | None:
        try:
            only = self._only if len(self._registered) == 1 else None
            group = only or self._group(_group_of(args[operator.group_at]))
            carried = payload.tensors(args[operator.payload_at])
            on_cpu = not carried or carried[0].is_cpu
            if not on_cpu and not carried[0].is_cuda:
                return None  # stands for a tensor while something is being compiled
            if operator.empty:
                carried = []
            # The caller of the kernel. A thread of the autograd engine has none; then what the job waits in says it.
            caller = sys._getframe(1).f_back or sys._current_frames().get(self._main_thread)
            stack = self._stacks.of(caller)
            source = origin.said() or stack.origin(_graph_task() != -1)
            size = carried[0].nbytes if len(carried) == 1 else sum([tensor.nbytes for tensor in carried])
            call_id = next(self._call_ids)
            seq = None
            if not operator.point_to_point:
                seq = group.count = group.count + 1
            row: Row = [
                "collective", call_id, group.name, group.size, group.rank, seq, operator.name,
                source, size, self._dtypes[carried[0].dtype] if carried else None,
                payload.is_zero(carried) if operator.reducing and on_cpu else None,
                None if operator.root_at is None else args[operator.root_at],
                self._steps.step, None, None, None, stack.stack_id,
            ]  # fmt: skip
            on_device = None
            if not on_cpu:
                on_device = self._on_device().issued(
                    row, carried if operator.reducing else [], shadow=source.startswith("join_")
                )
                if on_device is None:
                    return None
            # A kernel that is asked for the CPU time of a running thread may take it off its core on that occasion.
            # Right before an issue, for which all peers wait, that costs 1 ms a collective where ranks share cores.
            late = not torch.cuda.is_initialized()
            row[_ISSUE] = row[_START] = monotonic_ns() if late else self._stamps.stamp()
            self._in_flight[call_id] = row
            return row, on_device, late
        except Exception as error:
            self._spool.fault("collectives issue", error)
            return None

    def _group(self, group: Any) -> _Group:
        known = self._groups.get(id(group))
        if known is not None:
            return known
        # Python has a new object for a group it knew, or other means than c10d's own made the group.
        known = self._by_name.get(str(group.group_name)) or _Group(group, str(group.group_name))
        self._know(group, known)
        return known

    def _on_device(self) -> DeviceTimes:
        if self._devices is None:
            self._devices = DeviceTimes(self._spool, self._ended_on_device, self._lose)
        return self._devices

    # --- completion ---

    def _returned(self, operator: _Operator, args: Any, call: _Call, out: Any) -> None:
        """Arrange to hear of the end."""
        row, on_device, _ = call
        try:
            work = _work_of(out[-1] if isinstance(out, (tuple, list)) else out)
            asynchronous = len(args) <= operator.async_at or args[operator.async_at]
            if on_device is not None and not asynchronous:
                self._on_device().ordered(on_device)  # it ran in the current stream
            elif asynchronous and (on_device is not None or operator.name not in self._without_future):
                self._follow_future(operator, work, row, on_device)
            else:
                self._waited[id(work)] = [work, row, on_device]
        except Exception as error:
            self._lose(row, error)
        self._stamped(call)

    def _refused(self, call: _Call, why: BaseException) -> None:
        """The backend did not take the call, and the job hears of that as ever."""
        self._stamped(call)
        try:
            self._lose(call[0], why)
        except Exception as error:
            self._spool.fault("collectives issue", error)

    def _stamped(self, call: _Call) -> None:
        """Write the stamp of the issue, where that was left until now."""
        row, _, late = call
        try:
            if late:
                self._stamps.stamp(row[_ISSUE])
        except Exception as error:
            self._spool.fault("collectives issue", error)

    def _lose(self, row: Row, why: BaseException | str) -> None:
        """The end of this call will never be known; nothing of it is kept, or memory would grow with the job."""
        self._in_flight.pop(row[_CALL], None)
        if row[_CALL] not in self._reported:
            self._spool.append(row)
        self._reported.discard(row[_CALL])
        self._spool.fault(f"collectives {row[_OP]}", why)

    def _follow_future(self, operator: _Operator, work: Any, row: Row, on_device: DeviceCall | None) -> None:
        try:
            future = work.get_future()
        except RuntimeError:
            if on_device is None:
                self._without_future.add(operator.name)  # gloo: reduce-scatter, send, recv
            self._waited[id(work)] = [work, row, on_device]
            return
        self._callbacks.add(row[_CALL])
        future.add_done_callback(functools.partial(self._future_done, row, on_device))

    def _future_done(self, row: Row, on_device: DeviceCall | None, future: Any) -> None:
        """Runs on the backend's thread, or at once in a stream that is ordered after the collective."""
        try:
            self._ended(row, on_device)
            thread = threading.get_ident()
            if thread not in self._backend_threads:
                self._backend_threads.add(thread)
                _keep_thread_state()
        except Exception as error:
            self._spool.fault("collectives callback", error)
        finally:
            self._called_back_s = time.monotonic()
            self._callbacks.discard(row[_CALL])

    def _follow_waits(self) -> None:
        """The end of works without a future, and of synchronous calls, is when their `wait` returns."""
        wait = dist.Work.wait
        waited, ended = self._waited, self._ended

        @functools.wraps(wait)
        def wait_and_note(work: Any, *args: Any, **kwargs: Any) -> Any:
            result = wait(work, *args, **kwargs)
            if waited:
                entry = waited.pop(id(work), None)
                if entry is not None:
                    ended(entry[1], entry[2])
            return result

        uncompiled.passes_through(wait_and_note)
        dist.Work.wait = wait_and_note  # type: ignore[method-assign, assignment]

    def _ended(self, row: Row, on_device: DeviceCall | None) -> None:
        """The collective has ended, or on a GPU: what the current stream does from here on comes after it."""
        if not self._spool.live:
            return
        if on_device is not None:
            self._on_device().ordered(on_device)
        else:
            row[_END] = self._stamps.stamp()
            self._write(row)

    def _ended_on_device(self, row: Row, start_ns: int, end_ns: int, zero: bool | None) -> None:
        row[_START], row[_END], row[_ZERO] = start_ns, end_ns, zero
        self._write(row)

    def _write(self, row: Row) -> None:
        self._in_flight.pop(row[_CALL], None)
        self._reported.discard(row[_CALL])
        self._spool.append(row)

    def _before_flush(self) -> None:
        """Calls in flight get a row without an end, once; one that ends meanwhile has its row after that."""
        if self._devices is not None:
            self._devices.resolve()
        for call_id, row in list(self._in_flight.items()):
            if call_id not in self._reported:
                self._reported.add(call_id)
                self._spool.put_first(row[:])
        for work_id, entry in list(self._waited.items()):
            if not isinstance(entry[0], weakref.ref):
                # By now the caller holds the work; holding it longer would hold its tensors, too.
                entry[0] = weakref.ref(entry[0], functools.partial(self._forget, work_id, entry))

    def _forget(self, work_id: int, entry: list[Any], _: Any) -> None:
        """Nobody in Python can wait for this work any more: its end stays unknown."""
        if self._waited.get(work_id) is entry:
            del self._waited[work_id]
            self._lose(entry[1], "the end of some calls is unknown: waited for out of sight")
