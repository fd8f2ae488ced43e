"""The fields of Kineto's JSON that are wanted, and nothing else: what is not named here is skipped unread."""

from __future__ import annotations

import msgspec

# Generations of the profiler write the same field as a number or as text.
Scalar = int | float | str | None
NOTHING = msgspec.Raw()

# Categories of what runs on devices, of all generations of the profiler and in lower case, and what it is.
DEVICE = {
    "kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset", "memcpy": "memcpy", "memset": "memset",
}  # fmt: skip


class DeviceArgs(msgspec.Struct, gc=False):
    """What an event says about itself as far as devices are concerned; an id that it does not give is -1."""

    external_id: Scalar = msgspec.field(name="External id", default=-1)
    correlation: Scalar = -1
    device: Scalar = -1
    stream: Scalar = -1
    graph_node: Scalar = msgspec.field(name="graph node id", default=-1)
    blocks_per_sm: Scalar = msgspec.field(name="blocks per SM", default=-1)
    operator: Scalar = -1  # of our own traces: when the operator was called that launched it, ns


class Args(DeviceArgs, gc=False):
    """All that an event says about itself."""

    python_id: Scalar = msgspec.field(name="Python id", default=-1)
    python_parent: Scalar = msgspec.field(name="Python parent id", default=-1)
    call_stack: Scalar = msgspec.field(name="Call stack", default=None)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=NOTHING)
    types: msgspec.Raw = msgspec.field(name="Input type", default=NOTHING)
    collective: Scalar = msgspec.field(name="Collective name", default=None)
    group: Scalar = msgspec.field(name="Process Group Name", default=None)
    group_ranks: str | list[Scalar] | None = msgspec.field(name="Process Group Ranks", default=None)
    group_size: Scalar = msgspec.field(name="Group size", default=None)
    first_rank: Scalar = msgspec.field(name="Global rank start", default=None)
    rank_stride: Scalar = msgspec.field(name="Global rank stride", default=None)
    elements: Scalar = msgspec.field(name="In msg nelems", default=None)
    dtype: Scalar = None
    seq: Scalar = msgspec.field(name="Seq", default=None)
    root: Scalar = msgspec.field(name="Rank", default=None)
    source: Scalar = msgspec.field(name="Src Rank", default=None)
    destination: Scalar = msgspec.field(name="Dst Rank", default=None)


class Event(msgspec.Struct, gc=False):
    """One event; times in µs."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    ts: Scalar = None
    dur: Scalar = 0
    pid: Scalar = None
    tid: Scalar = None
    args: Args | None = None


class DeviceEvent(Event, gc=False):
    """The same with less to read."""

    args: DeviceArgs | None = None  # type: ignore[assignment]


class BareEvent(msgspec.Struct):
    """An event whose name is no text, or whose arguments cannot be read."""

    ph: str = ""
    cat: str | None = None
    name: object = None
    ts: Scalar = None
    dur: Scalar = 0
    pid: Scalar = None
    tid: Scalar = None
    args: msgspec.Raw = NOTHING


class Device(msgspec.Struct):
    """One entry of `deviceProperties`."""

    id: Scalar = None
    name: str = ""


class ProcessGroup(msgspec.Struct):
    """One entry of `pg_config`."""

    name: Scalar = msgspec.field(name="pg_name", default=None)
    size: Scalar = msgspec.field(name="pg_size", default=None)


class Distributed(msgspec.Struct):
    """`distributedInfo`."""

    backend: str | None = None
    rank: Scalar = None
    world_size: Scalar = None
    nccl_version: Scalar = None
    groups: list[ProcessGroup] | None = msgspec.field(name="pg_config", default=None)


class Head(msgspec.Struct):
    """What stands beside `traceEvents`, before or after it."""

    distributed: Distributed | None = msgspec.field(name="distributedInfo", default=None)
    devices: list[Device] | None = msgspec.field(name="deviceProperties", default=None)
    base_ns: Scalar = msgspec.field(name="baseTimeNanoseconds", default=None)
    schema: Scalar = msgspec.field(name="schemaVersion", default=None)
    host: str | None = msgspec.field(name="host_name", default=None)
    dropped: Scalar = None  # records that CUPTI had no room for; of our own traces

    def merged(self, other: Head) -> Head:
        """Both halves; what the first does not say comes from `other`."""
        return Head(
            self.distributed or other.distributed,
            self.devices or other.devices,
            other.base_ns if self.base_ns is None else self.base_ns,
            other.schema if self.schema is None else self.schema,
            self.host or other.host,
            other.dropped if self.dropped is None else self.dropped,
        )


def number(value: object) -> int | None:
    """`value` as a 64-bit integer; None where it is none."""
    if isinstance(value, str):
        try:
            value = int(value, 0)
        except ValueError:
            return None
    if isinstance(value, float):
        value = int(value) if value == value and abs(value) < 2.0**63 else None
    return value if isinstance(value, int) and -(1 << 63) <= value < 1 << 63 else None
