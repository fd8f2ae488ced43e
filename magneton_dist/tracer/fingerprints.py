"""Fingerprints of the values of a traced step: which of them are equal in another run, whatever their layout.

Taken on the tensor's own device as soon as a value is there, before anything can overwrite it; what stays is
a few hundred bytes each, which go to the host together when the step is over. Nothing waits for a device.
Small tensors are copied and looked at together, by the dozen.

One fingerprint is taken per content (the same elements of the same version of a storage) and shape, the order
of the modes aside; `magneton_dist.tracer.invariants` says of what. Results of a collective are looked at when
they are first read, or at the end of the step, for they may still be under way when the call returns.

Left out: sparse, quantised and meta tensors, those that wrap another one, and everything while a CUDA graph is
captured. Unfoldings with a long small side are left out too, as are those beyond MOST_WORK of a value or the
budget of a step.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Callable

import torch
from torch.utils.weak import TensorWeakRef

from magneton_dist.tracer import invariants
from magneton_dist.tracer.invariants import LONGEST_PROFILE, MOMENTS, PROFILE, Mode, Normalised, Unfolding
from magneton_dist.tracer.readback import Readback
from magneton_dist.tracer.spool import Spool

LONGEST_SMALL_SIDE = 1024
LARGE = 50_000_000  # elements; beyond it, and ...
LONGEST_SMALL_SIDE_LARGE = 128  # ... in the optimizer, where names and roles tell values apart
MOST_WORK = 2.0**38  # multiplications for the unfoldings of one value
BUDGET_CPU = 2.0**41  # and of one step; beyond it only ...
BUDGET_DEVICE = 2.0**46
LONGEST_SMALL_SIDE_SPENT = 16  # ... these
MOST_FINGERPRINTS = 200_000
MOST_FAILURES = 20

_CHUNK_CPU = 1 << 18  # elements looked at together: what a core's cache holds
_CHUNK_DEVICE = 1 << 22
_LEAST = 4  # so many at least in a batch
_MOST = 256  # and so many at most
_COLLECTIVES = ("c10d.", "_c10d_functional.", "c10d_functional.")

Version = tuple[int, int]  # of a storage: its id, writes so far


class _Content:
    """Elements of one version of a storage, seen through any of its views. Places are in `readback`."""

    __slots__ = ("elements", "moments", "profiles", "readback", "shapes", "unfoldings", "waiting")

    def __init__(self, readback: Readback, elements: int) -> None:
        self.readback = readback
        self.elements = elements
        self.waiting: list[_Shape] | None = None  # in a batch: to be looked at through these
        self.moments = -1
        self.unfoldings: dict[object, tuple[int, int]] = {}  # sides -> place, rows
        self.profiles: dict[Mode, int] = {}
        self.shapes: dict[tuple[Mode, ...], _Shape] = {}


class _Shape:
    """A content seen through certain modes."""

    __slots__ = ("cap", "modes", "sides", "values")

    def __init__(self, modes: tuple[Mode, ...], cap: int) -> None:
        self.values: list[int] = []  # ids of the values that look at it so
        self.modes = modes
        self.cap = cap  # longest small side of the unfoldings
        self.sides: list[object] = []  # of the unfoldings: keys into the content's


class _Batch:
    """Contents of one size and dtype that are looked at together."""

    __slots__ = ("contents", "copies")

    def __init__(self) -> None:
        self.contents: list[_Content] = []
        self.copies: list[torch.Tensor] = []  # their elements in memory order


class Fingerprints:
    """Fingerprints of one step after another; `known` are the values of the step that need no call any more.

    Args:
        spool: where the rows go.
        spectra: take the singular values of every unfolding as well; slow, and it waits for the device.
    """

    def __init__(self, spool: Spool, spectra: bool = False) -> None:
        self._spool = spool
        self._spectra = spectra
        self._failures = 0
        self._sent: list[tuple[list[_Content], list[Readback]]] = []
        self._writing = threading.Lock()
        spool.before_flush.append(self._write_arrived)
        self._forget()

    def read(self, value: int, version: Version, tensor: torch.Tensor, operator: str, phase: str) -> None:
        """`operator` is about to read `tensor`, which holds `value` of that `version` of its storage."""
        if value in self._under_way:
            if operator.startswith(_COLLECTIVES):
                return  # it may be the one that waits for it
            del self._under_way[value]
        self._take(value, version, tensor, phase)

    def written(self, value: int, version: Version, tensor: torch.Tensor, operator: str, phase: str) -> None:
        """`operator` has returned or written `tensor`, which holds `value` now."""
        if operator.startswith(_COLLECTIVES) and "wait_tensor" not in operator:
            self._under_way[value] = (version, TensorWeakRef(tensor))
        else:
            self._under_way.pop(value, None)
            self._take(value, version, tensor, phase)

    def finish(self, current: Callable[[torch.Tensor], Version]) -> None:
        """The step is over; the rows are written as soon as the numbers are on the host.

        Args:
            current: tells the version that a tensor's storage is at.
        """
        for value, (version, reference) in self._under_way.items():
            tensor = reference()
            if tensor is not None and current(tensor) == version:
                self._take(value, version, tensor, "other")
        try:
            with torch.no_grad():
                for batch in self._batches.values():
                    self._look(batch, _CHUNK_DEVICE)
            for readback in self._readbacks.values():
                readback.send()
            self._sent.append((list(self._contents.values()), list(self._readbacks.values())))
        except Exception as error:
            self._spool.fault("fingerprints", error)
        self._forget()
        self._write_arrived()

    def _forget(self) -> None:
        self.known: set[int] = set()
        self._contents: dict[object, _Content] = {}
        self._batches: dict[object, _Batch] = {}
        self._readbacks: dict[object, Readback] = {}
        self._under_way: dict[int, tuple[Version, Any]] = {}  # values, weak references to their tensors
        self._count = 0
        self._work = 0.0

    # --- on the device ---

    def _take(self, value: int, version: Version, tensor: torch.Tensor, phase: str) -> None:
        self.known.add(value)
        try:
            if self._failures < MOST_FAILURES and self._readable(tensor):
                with torch.no_grad(), torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
                    self._note(value, version, tensor, phase)
        except Exception as error:
            self._failures += 1
            self._spool.fault("fingerprints", error)

    def _readable(self, tensor: torch.Tensor) -> bool:
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
            return False
        if type(tensor).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:
            return False  # it wraps another tensor and has no elements of its own
        if self._count >= MOST_FINGERPRINTS:
            self._spool.fault("fingerprints count", f"only the first {MOST_FINGERPRINTS} of a step are taken")
            return False
        if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
            self._spool.fault("fingerprints capture", "what a CUDA graph computes has no fingerprints")
            return False
        return invariants.is_backed(tensor)

    def _note(self, value: int, version: Version, tensor: torch.Tensor, phase: str) -> None:
        flags = tensor.dtype, tensor.is_conj(), tensor.is_neg()
        tensor = invariants.plain(tensor)
        modes = invariants.modes_of(tensor)
        key = (version, tensor.storage_offset(), flags, invariants.merged(modes))
        content = self._contents.get(key)
        if content is None:
            content = self._contents[key] = _Content(self._readback(tensor), tensor.numel())
        shape = content.shapes.get(modes)
        if shape is None:
            self._count += 1
            shape = content.shapes[modes] = _Shape(modes, self._cap(tensor, phase))
            self._look_soon(content, shape, tensor)
        shape.values.append(value)

    def _readback(self, tensor: torch.Tensor) -> Readback:
        stream = torch.cuda.current_stream(tensor.device) if tensor.is_cuda else None
        key = (tensor.device, stream)
        if key not in self._readbacks:
            self._readbacks[key] = Readback(tensor.device, stream)
        return self._readbacks[key]

    def _cap(self, tensor: torch.Tensor, phase: str) -> int:
        if self._work > (BUDGET_CPU if tensor.device.type == "cpu" else BUDGET_DEVICE):
            self._spool.fault(
                "fingerprints budget",
                f"from here on only unfoldings of up to {LONGEST_SMALL_SIDE_SPENT} rows are looked at",
            )
            return LONGEST_SMALL_SIDE_SPENT
        large = phase == "optimizer" or tensor.numel() > LARGE
        return LONGEST_SMALL_SIDE_LARGE if large else LONGEST_SMALL_SIDE

    def _look_soon(self, content: _Content, shape: _Shape, tensor: torch.Tensor) -> None:
        """Look at a large tensor at once; copy a small one, to look at it with others."""
        if content.waiting is not None:
            content.waiting.append(shape)
            return
        content.waiting = [shape]
        tensor = invariants.seen_through(tensor, shape.modes)
        chunk = _CHUNK_CPU if tensor.device.type == "cpu" else _CHUNK_DEVICE
        most = min(_MOST, chunk // max(1, tensor.numel()))
        key = (content.readback, content.elements, tensor.dtype)
        batch = self._batches.setdefault(key, _Batch())
        batch.contents.append(content)
        if most >= _LEAST:
            tensor = tensor.clone(memory_format=torch.contiguous_format).view(-1)
        batch.copies.append(tensor)
        if len(batch.contents) >= most or most < _LEAST:
            del self._batches[key]
            self._look(batch, chunk)

    def _look(self, batch: _Batch, chunk: int) -> None:
        """Compute what is not known yet of the contents of a batch."""
        with torch._C._DisableAutocast():
            together: dict[object, list[tuple[int, _Shape]]] = {}
            for number, content in enumerate(batch.contents):
                for shape in content.waiting or ():
                    sizes = tuple([size for size, _ in shape.modes])
                    together.setdefault((sizes, shape.cap), []).append((number, shape))
                content.waiting = None
            contents, copies = batch.contents, batch.copies
            sums = invariants.moments(_stack(copies), chunk)
            place, out = contents[0].readback.room(sums.numel())
            out.copy_(sums.view(-1))
            for number, content in enumerate(contents):
                content.moments = place + number * MOMENTS
            if contents[0].elements < 2:
                return
            for shapes in together.values():
                numbers = [number for number, _ in shapes]
                chosen = _stack([copies[number] for number in numbers])
                lengths = [size for size, _ in shapes[0][1].modes]
                some = sums if numbers == list(range(len(copies))) else _stack([sums[n] for n in numbers])
                tensors = Normalised(chosen.view(len(numbers), *lengths), some)
                pairs = [(contents[number], shape) for number, shape in shapes]
                self._unfold(tensors, pairs)
                self._profile(tensors, pairs)

    def _unfold(self, tensors: Normalised, pairs: list[tuple[_Content, _Shape]]) -> None:
        sizes = tuple([size for size, _ in pairs[0][1].modes])
        for unfolding in invariants.unfoldings(sizes, pairs[0][1].cap, MOST_WORK):
            new = False
            for content, shape in pairs:
                shape.sides.append(_sides(shape.modes, unfolding))
                new = new or shape.sides[-1] not in content.unfoldings
            if not new:
                continue
            self._work += float(unfolding.rows) * pairs[0][0].elements * len(pairs)
            products = invariants.gram(tensors, unfolding, whole=self._spectra)
            numbers = invariants.s4(products)[:, None]
            if self._spectra:
                numbers = torch.cat([numbers, invariants.singular_values(products)], 1)
            for place, (content, shape) in zip(_places(pairs, numbers), pairs):
                content.unfoldings[shape.sides[-1]] = (place, unfolding.rows)

    def _profile(self, tensors: Normalised, pairs: list[tuple[_Content, _Shape]]) -> None:
        for number, (size, _) in enumerate(pairs[0][1].modes):
            if size > LONGEST_PROFILE or all(
                shape.modes[number] in content.profiles for content, shape in pairs
            ):
                continue
            numbers = invariants.profile(tensors, number)
            for place, (content, shape) in zip(_places(pairs, numbers), pairs):
                content.profiles[shape.modes[number]] = place

    # --- on the host ---

    def _write_arrived(self) -> None:
        """Write the rows of the steps whose numbers have arrived; also called by the spool's thread."""
        with self._writing:
            while self._sent and all(readback.arrived() for readback in self._sent[0][1]):
                contents, readbacks = self._sent.pop(0)
                numbers = {id(readback): readback.numbers() for readback in readbacks}
                for content in contents:
                    for row in _rows(content, numbers[id(content.readback)], self._spectra):
                        self._spool.put("fingerprint", *row)


def _stack(tensors: list[torch.Tensor]) -> torch.Tensor:
    """`tensors` along a new first dimension; a single one is not copied."""
    return tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(tensors)


def _places(pairs: list[tuple[_Content, _Shape]], numbers: torch.Tensor) -> range:
    """Keep `numbers`, (pairs, any count); returns the place of each pair's."""
    place, out = pairs[0][0].readback.room(numbers.numel())
    out.copy_(numbers.reshape(-1))
    return range(place, place + numbers.numel(), numbers.shape[1])


def _sides(modes: tuple[Mode, ...], unfolding: Unfolding) -> object:
    """The sides of an unfolding, equal for all shapes in which it is the same matrix."""
    return frozenset([invariants.merged([modes[m] for m in sorted(side)]) for side in unfolding[:2]])


def _rows(content: _Content, numbers: torch.Tensor, spectra: bool) -> Iterator[tuple[Any, ...]]:
    """The fields of the `fingerprint` rows of a content, one row per shape."""
    at = content.moments
    if at < 0:
        return
    total, absolute, square, fourth, counted = numbers[at : at + 5].tolist()
    checksum = int(numbers[at + 5 : at + 6].view(torch.int64)) & (2**64 - 1)
    excluded = 1.0 - counted / max(1, content.elements)
    for shape in content.shapes.values():
        found = [content.unfoldings[key] for key in shape.sides]
        modes = [mode for mode in shape.modes if mode in content.profiles]
        yield (
            shape.values,
            f"{checksum:016x}",
            content.elements,
            total,
            absolute,
            square**0.5,
            fourth**0.25,
            excluded,
            [size for size, _ in shape.modes],
            [rows for _, rows in found],
            [x for place, _ in found for x in _rounded(numbers, place, 1)],
            [size for size, _ in modes],
            [x for mode in modes for x in _rounded(numbers, content.profiles[mode], PROFILE)],
            [x for place, rows in found for x in _rounded(numbers, place + 1, rows)] if spectra else [],
        )


def _rounded(numbers: torch.Tensor, start: int, count: int) -> list[float]:
    return [round(x, 9) for x in numbers[start : start + count].tolist()]
