"""Tensors as values: what a graph of operators reads and writes.

A value is one layout (offset, sizes, strides, dtype) of one storage after one write to it. Views share the
storage; an in-place write gives the storage a new version, and with it every view of it a new value. A
storage is known by its address, which cannot be recycled while a weak reference to it is held.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from magneton_dist.tracer.model import Owned

_STRIDED = torch.strided


class _Storage:
    """One storage of the step."""

    __slots__ = ("device", "id", "made_here", "reference", "version", "writer")

    def __init__(self, number: int, reference: Any, device: str, writer: list[int] | None) -> None:
        self.id = number
        self.reference = reference  # keeps the address from being used again
        self.device = device
        self.version = 0
        self.writer = writer  # outputs of the operator that made or last wrote it, None before the first
        self.made_here = writer is not None

    def held(self) -> bool:
        """Does anybody still hold it?"""
        if isinstance(self.reference, StorageWeakRef):
            return not self.reference.expired()
        return self.reference() is not None


_Key = tuple[int, int, int, tuple[int, ...], tuple[int, ...], torch.dtype]


class Values:
    """The values of one step after another; ids go on counting, storages are forgotten at `forget`."""

    def __init__(self) -> None:
        # Counters, for autograd's device threads come here too: taking the next number is atomic.
        self._value_numbers = count(1)
        self._storage_numbers = count(1)
        self.forget()

    def forget(self) -> None:
        """Drop everything known of the step, ready for the next one."""
        self._ids: dict[_Key, int] = {}
        self._storages: dict[int, _Storage] = {}
        # Sparse and opaque tensors have no storage of their own to be known by.
        self._opaque: dict[int, _Storage] = {}
        self._by_id: dict[int, _Storage] = {}

    def read(self, tensor: torch.Tensor) -> int:
        """Id of the value that `tensor` holds now, as an operator's input."""
        storage, key = self._look_up(tensor, None)
        value = self._ids.get(key)
        if value is None:
            value = self._add(key)
            if storage.writer is not None:
                # First seen through this view: whoever wrote the storage wrote this value too.
                storage.writer.append(value)
        return value

    def write(self, tensors: list[torch.Tensor], outputs: list[int]) -> None:
        """The operator with these `outputs` wrote into `tensors`: a new version of their storages."""
        storages = [self._look_up(tensor, outputs)[0] for tensor in tensors]
        for storage in {storage.id: storage for storage in storages}.values():
            storage.version += 1
            storage.writer = outputs

    def produce(self, tensor: torch.Tensor, outputs: list[int]) -> int:
        """Id of the value that the operator with these `outputs` returned or wrote as `tensor`."""
        key = self._look_up(tensor, outputs)[1]
        value = self._ids.get(key) or self._add(key)
        if value not in outputs:
            outputs.append(value)
        return value

    def version_of(self, tensor: torch.Tensor) -> tuple[int, int]:
        """Storage of `tensor` and the writes to it so far in this step."""
        storage, _ = self._look_up(tensor, None)
        return storage.id, storage.version

    def covers_storage(self, tensor: torch.Tensor) -> bool:
        """Is nothing of the storage left out of `tensor`? If so, overwriting `tensor` reads nothing."""
        if tensor.layout is not _STRIDED:
            return True
        return tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes()

    def rows(self, owned: Iterable[Owned]) -> Iterator[tuple[Any, ...]]:
        """Every value of the step as the fields of a `value` row; `owned` says the roles."""
        owners = self._owners(owned)
        for (number, version, offset, shape, stride, dtype), value in self._ids.items():
            storage = self._by_id[number]
            numel = 1
            for size in shape:
                numel *= size
            role, slot = _role(storage, owners.get(number), offset, numel)
            yield (
                value,
                number,
                version,
                offset,
                list(shape),
                list(stride),
                str(dtype)[len("torch.") :],
                storage.device,
                numel * dtype.itemsize,
                role,
                slot,
                storage.held(),
            )

    def _look_up(self, tensor: torch.Tensor, writer: list[int] | None) -> tuple[_Storage, _Key]:
        """Storage of `tensor`, if new made by the operator with the outputs `writer`, and the key of its value."""
        if tensor.layout is _STRIDED:
            untyped = tensor.untyped_storage()
            address = untyped._cdata
            storage = self._storages.get(address)
            if storage is None:
                storage = self._storages[address] = self._new(StorageWeakRef(untyped), tensor, writer)
            offset, stride = tensor.storage_offset(), tensor.stride()
        else:
            storage = self._opaque.get(id(tensor))
            if storage is None or storage.reference() is not tensor:
                storage = self._opaque[id(tensor)] = self._new(weakref.ref(tensor), tensor, writer)
            offset, stride = 0, (0,) * tensor.dim()
        key = (storage.id, storage.version, offset, tensor.shape, stride, tensor.dtype)
        return storage, key  # type: ignore[return-value]

    def _new(self, reference: Any, tensor: torch.Tensor, writer: list[int] | None) -> _Storage:
        storage = _Storage(next(self._storage_numbers), reference, str(tensor.device), writer)
        self._by_id[storage.id] = storage
        return storage

    def _add(self, key: _Key) -> int:
        value = self._ids[key] = next(self._value_numbers)
        return value

    def _owners(self, owned: Iterable[Owned]) -> dict[int, dict[tuple[int, int], Owned]]:
        """Storage id -> (offset, number of elements) -> who owns that part of it."""
        owners: dict[int, dict[tuple[int, int], Owned]] = {}
        for owner in owned:
            storage, key = self._look_up(owner.tensor, None)
            owners.setdefault(storage.id, {}).setdefault((key[2], owner.tensor.numel()), owner)
        return owners


def _role(
    storage: _Storage, owners: dict[tuple[int, int], Owned] | None, offset: int, numel: int
) -> tuple[str, str | None]:
    """Who owns this part of the storage: exactly, or as the storage's only owner, or by role alone."""
    if not owners:
        return ("activation" if storage.made_here else "input"), None
    owner = owners.get((offset, numel))
    if owner is None and len(owners) == 1:
        owner = next(iter(owners.values()))
    if owner is not None:
        return owner.role, owner.slot
    roles = {owner.role for owner in owners.values()}
    return (roles.pop(), None) if len(roles) == 1 else ("activation", None)
