"""A small model under DDP in which one setting or argument, and three that do not matter, can be changed.

Usage: diagnosis_job.py CASE a|b [decoys]. Variant b has what the case is about; `decoys` sets what does not matter.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

CASE, VARIANT, *REST = sys.argv[1:]
CHANGED, STEPS = VARIANT == "b", 6


class Products(nn.Module):
    """Products of matrices in one precision."""

    def __init__(self, dtype: torch.dtype = torch.float32, width: int = 768) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.dtype, self.width = dtype, width

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(self.dtype) @ self.weight.to(self.dtype)).float()

    def batch(self, generator: torch.Generator) -> Tensor:
        return torch.randn(self.width, self.width, generator=generator)


class Attention(nn.Module):
    """Attention by torch's own call."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(64, 3 * 64)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.view(*x.shape[:2], 4, 16).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return functional.scaled_dot_product_attention(q, k, v)

    def batch(self, generator: torch.Generator) -> Tensor:
        return torch.randn(2, 384, 64, generator=generator)


class Convolution(nn.Module):
    """A convolution whose input and weight may lie in channels_last."""

    def __init__(self, order: torch.memory_format = torch.contiguous_format) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(32, 32, 3, padding=1).to(memory_format=order)
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(x)

    def batch(self, generator: torch.Generator) -> Tensor:
        return torch.randn(4, 32, 40, 40, generator=generator).to(memory_format=self.order)


class Norm(nn.Module):
    """A layer norm of a matrix or of one that lies transposed in memory."""

    def __init__(self, *, transposed: bool) -> None:
        super().__init__()
        self.norm, self.transposed = nn.LayerNorm(1024), transposed

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)

    def batch(self, generator: torch.Generator) -> Tensor:
        x = torch.randn(1024, 1024, generator=generator)
        return x.t().contiguous().t() if self.transposed else x


def model() -> nn.Module:
    """The model of the case, with its settings made."""
    if CASE == "precision":
        torch.backends.mkldnn.matmul.fp32_precision = "bf16" if CHANGED else "ieee"
        return Products()
    if CASE == "bf16-matmul":
        torch.backends.mkldnn.enabled = not CHANGED
        return Products(torch.bfloat16, 512)
    if CASE == "attention":
        torch.backends.cuda.enable_flash_sdp(not CHANGED)
        return Attention()
    if CASE == "convolution":
        torch.backends.mkldnn.enabled = not CHANGED
        return Convolution()
    if CASE == "layout":
        return Convolution(torch.channels_last if CHANGED else torch.contiguous_format)
    if CASE == "norm":
        return Norm(transposed=CHANGED)
    if CASE == "pair":
        torch.backends.mkldnn.enabled = CHANGED
        torch.backends.mkldnn.matmul.fp32_precision = "bf16" if CHANGED else "ieee"
    return Products()  # noise, decoys: nothing is changed; environment: by the launcher


def decoys() -> None:
    """Three settings of which nothing here takes notice."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_fp16_accumulation = True
    torch.backends.mha.set_fastpath_enabled(False)


def main() -> None:
    torch.manual_seed(0)
    if REST and CHANGED:
        decoys()
    dist.init_process_group("gloo")
    inner = model()
    wrapped = nn.parallel.DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-4)
    data = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(int(os.environ.get("STEPS", STEPS))):
        optimizer.zero_grad()
        wrapped(inner.batch(data)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


main()
