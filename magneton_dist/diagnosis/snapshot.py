"""What two variants set differently: torch's switches, environment, versions, arguments of wrappers and optimizers."""

from __future__ import annotations

from collections.abc import Mapping

UNSET = "unset"
_INTERNAL = "torch._C._get_"
_PUBLIC = ("torch.backends.", "torch.get_", "torch.are_", "torch.is_", "torch.")
# What says where a run went, not what it did.
_PLACES = ("env.TORCHELASTIC_", "env.TORCH_NCCL_TRACE", "env.CUDA_VISIBLE_DEVICES")


def differences(snapshots: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Settings that differ between variants.

    Args:
        snapshots: variant -> name -> value, as the tracer's KNOBS table has them.

    Returns:
        name -> variant -> value, `UNSET` where a variant does not have it; without the internal names of settings
        that differ under a public one. Those with public names come first.
    """
    names = sorted({name for snapshot in snapshots.values() for name in snapshot}, key=_order)
    rows: dict[str, dict[str, str]] = {}
    public: dict[str, dict[str, str]] = {}
    for name in names:
        values = {variant: snapshot.get(name, UNSET) for variant, snapshot in snapshots.items()}
        if len(set(values.values())) < 2 or name.startswith(_PLACES):
            continue
        if public.get(name.removeprefix(_INTERNAL)) == values:
            continue
        rows[name] = values
        public[_plain(name)] = values
    return rows


def _order(name: str) -> tuple[bool, str]:
    return name.startswith(_INTERNAL), name


def _plain(name: str) -> str:
    """The name that the internal getter of a public setting has."""
    for prefix in _PUBLIC:
        if name.startswith(prefix):
            plain = name.removeprefix(prefix).replace(".", "_")
            return plain.removesuffix("_enabled") if prefix == "torch.are_" else plain
    return name
