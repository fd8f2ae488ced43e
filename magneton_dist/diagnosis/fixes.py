"""What to type so that a setting, a variable or an argument is as one of the variants has it."""

from __future__ import annotations

import json
import shlex

from magneton_dist.diagnosis.factors import Factor
from magneton_dist.diagnosis.snapshot import UNSET

# Settings that a function sets; all others of torch.backends are attributes.
_CALLS = {
    "torch.are_deterministic_algorithms_enabled": "torch.use_deterministic_algorithms({})",
    "torch.is_deterministic_algorithms_warn_only_enabled": "torch.use_deterministic_algorithms(True, warn_only={})",
    "torch.is_autocast_cache_enabled": "torch.set_autocast_cache_enabled({})",
    "torch.is_anomaly_enabled": "torch.autograd.set_detect_anomaly({})",
    "torch.backends.mha.get_fastpath_enabled": "torch.backends.mha.set_fastpath_enabled({})",
    "torch.backends.cuda.flash_sdp_enabled": "torch.backends.cuda.enable_flash_sdp({})",
    "torch.backends.cuda.mem_efficient_sdp_enabled": "torch.backends.cuda.enable_mem_efficient_sdp({})",
    "torch.backends.cuda.math_sdp_enabled": "torch.backends.cuda.enable_math_sdp({})",
    "torch.backends.cuda.cudnn_sdp_enabled": "torch.backends.cuda.enable_cudnn_sdp({})",
    "torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed": (
        "torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp({})"
    ),
}
_PLAIN = ("True", "False", "None")
_ORDERS = {
    "contiguous": "{}.contiguous()",
    "channels_last": "{}.to(memory_format=torch.channels_last)",
    "channels_last_3d": "{}.to(memory_format=torch.channels_last_3d)",
}


def statement(factor: Factor, side: int) -> str:
    """What makes `factor` as variant A (side 0) or B (side 1) has it; one line of Python, or of a shell."""
    value = factor.values[side]
    if factor.kind == "environment":
        return f"unset {factor.name}" if value == UNSET else f"export {factor.name}={shlex.quote(value)}"
    if factor.kind == "setting":
        return _setting(factor.name, value)
    return _argument(factor, value)


def _setting(name: str, value: str) -> str:
    literal = value if value in _PLAIN or value.startswith(("torch.", "[")) or _is_number(value) else json.dumps(value)
    if name in _CALLS:
        return _CALLS[name].format(literal)
    owner, _, last = name.rpartition(".")
    if last.startswith(("get_", "_get_")):
        return f"{owner}.{last.replace('get_', 'set_', 1)}({literal})"
    return f"{name} = {literal}"


def _argument(factor: Factor, value: str) -> str:
    if factor.tensor is None:
        name, _, optimizer = factor.name.partition(" of ")
        return f"{optimizer}(..., {name}={value})" if optimizer else f"{name}={value}"
    tensor = factor.name.partition(" of ")[2]
    if factor.aspect == "dtype":
        return f"{tensor}.to(torch.{value})"
    words = value.rpartition("] ")[2] if factor.name.startswith("shape") else value
    known = _ORDERS.get(words)
    return known.format(tensor) if known and not factor.name.startswith("shape") else f"{tensor}: {value}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def fix_text(factors: list[Factor], cheap_side: int, names: tuple[str, str], where: str) -> str:
    """One sentence: what to type, in which variant's world.

    Args:
        factors: the cause, all of them together.
        cheap_side: 0 or 1: the variant that needs less.
        names: of both variants.
        where: the line of source, empty when not known.
    """
    cheap, hungry = names[cheap_side], names[1 - cheap_side]
    lines = [statement(factor, cheap_side) for factor in factors]
    typed = " and ".join(f"`{line}`" for line in lines)
    kinds = {factor.kind for factor in factors}
    if kinds == {"environment"}:
        return f"In {hungry}: {typed} before it starts, as in {cheap}."
    if kinds == {"argument"}:
        made_elsewhere = any(factor.tensor is None and " of " in factor.name for factor in factors)  # an optimizer
        at = f" at {where}" if where and not made_elsewhere else ""
        calls = len([factor for factor in factors if factor.kind == "argument"])
        word = "these arguments" if calls > 1 else "this argument"
        return f"In {hungry}{at}, hand over {word} as {cheap} does: {typed}."
    return f"In {hungry}: {typed}, as in {cheap}."
