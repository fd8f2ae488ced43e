"""Train a small GPT-2 of transformers with DDP, its attention spelled out (eager) or one operator (sdpa).

    torchrun --nproc_per_node 2 examples/attention/train.py --attention sdpa

Weights and tokens are random: nothing is downloaded. Both variants compute the same.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from transformers import GPT2Config, GPT2LMHeadModel

try:
    from magneton_dist import step as audit_step  # optional: tells an audit how many tokens a step had
except ImportError:

    def audit_step(**units: float) -> None:
        pass


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--attention", choices=("eager", "sdpa"), default="eager")
    add("--layers", type=int, default=2)
    add("--width", type=int, default=128)
    add("--heads", type=int, default=4)
    add("--tokens", type=int, default=256, help="length of a sequence")
    add("--batch", type=int, default=2)
    add("--vocabulary", type=int, default=512)
    add("--steps", type=int, default=40)
    add("--seed", type=int, default=0)
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    return parser.parse_args()


def build(args: argparse.Namespace) -> GPT2LMHeadModel:
    config = GPT2Config(
        n_layer=args.layers,
        n_embd=args.width,
        n_head=args.heads,
        n_positions=args.tokens,
        vocab_size=args.vocabulary,
        # what is dropped differs between the two: nothing after it would be the same work
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        attn_implementation=args.attention,
    )
    torch.manual_seed(args.seed)
    return GPT2LMHeadModel(config)


def main() -> None:
    args = parse()
    local_rank = int(os.environ["LOCAL_RANK"])
    cuda = args.device == "cuda" or (args.device == "auto" and torch.cuda.is_available())
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()

    model = DDP(build(args).to(device), device_ids=[local_rank] if cuda else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1000 * args.seed + rank)
    loss = torch.tensor(float("nan"))
    start = time.monotonic()
    for _ in range(args.steps):
        tokens = torch.randint(args.vocabulary, (args.batch, args.tokens), generator=generator).to(device)
        optimizer.zero_grad(set_to_none=True)
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        audit_step(tokens=tokens.numel())
    seconds = time.monotonic() - start
    print(f"rank {rank}: {args.steps} steps, {seconds:.2f} s, loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
