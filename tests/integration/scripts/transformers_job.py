"""A small GPT-2 of transformers under DDP, with the attention that is named. Prints nothing."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import transformers

STEPS = 5


def main(attention: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    config = transformers.GPT2Config(
        n_embd=64, n_layer=1, n_head=4, vocab_size=101, n_positions=64, use_cache=False, attn_pdrop=0.0,
        attn_implementation=attention,
    )  # fmt: skip
    model = torch.nn.parallel.DistributedDataParallel(transformers.GPT2LMHeadModel(config))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        optimizer.zero_grad()
        tokens = torch.randint(0, 101, (4, 64), generator=data)
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
    dist.destroy_process_group()


main(sys.argv[1])
