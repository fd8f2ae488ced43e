"""Train a small GPT with DDP on documents that give every rank another number of batches.

    torchrun --nproc_per_node 2 examples/uneven_inputs/train.py --sync join

A rank that has run out of batches must not leave its peers hanging in their all-reduces. `--sync` says how:
`join` (torch's Join: the finished rank keeps reducing zeros), `early-exit` (magneton_dist.sync.EarlyExit: it
leaves), `throw` (Join's throw_on_early_termination: everybody stops with the first, so less data are used).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from contextlib import AbstractContextManager

import data
import torch
import torch.distributed as dist
from model import GPT
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

try:
    from magneton_dist import step as audit_step  # optional: tells an audit how many tokens a step had
except ImportError:

    def audit_step(**units: float) -> None:
        pass


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--sync", choices=("join", "early-exit", "throw"), default="join")
    add("--on-finish", choices=("park", "release"), default="park", help="of a rank, with early-exit")
    add("--layers", type=int, default=2)
    add("--dim", type=int, default=128)
    add("--tokens", type=int, default=512, help="length of a packed sequence")
    add("--batch", type=int, default=1, help="sequences in a batch")
    add("--vocabulary", type=int, default=512)
    add("--docs", type=int, default=128, help="documents on each rank")
    add("--median", type=float, default=30.0, help="median length of rank 0's documents, in tokens")
    add("--sigma", type=float, default=0.8, help="standard deviation of the logarithm of the lengths")
    add("--skew", type=float, default=4.8, help="how much longer the last rank's documents are")
    add("--balanced", action="store_true", help="documents of one length, the same on all ranks")
    add("--zero-branch", action="store_true", help="add a loss of weight 0: a gradient bucket of zeros")
    add("--epochs", type=int, default=1)
    add("--lr", type=float, default=1e-3)
    add("--bucket-mb", type=float, default=1.0, help="size of DDP's gradient buckets")
    add("--seed", type=int, default=0)
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    args = parser.parse_args()
    if args.balanced:
        args.sigma, args.skew = 0.0, 1.0
    return args


def read_batches(args: argparse.Namespace, rank: int, world_size: int) -> torch.Tensor:
    """This rank's corpus as packed batches, shape (batches, batch, tokens)."""
    generator = torch.Generator().manual_seed(1000 * args.seed + rank)
    median = data.corpus_median(rank, world_size, args.median, args.skew)
    lengths = data.document_lengths(args.docs, median, args.sigma, generator)
    return data.pack(data.write_documents(lengths, args.vocabulary, generator), args.tokens, args.batch)


def uneven(model: DDP, sync: str, on_finish: str) -> AbstractContextManager[object]:
    """The context in which ranks may run out of batches at different times."""
    if sync == "early-exit":
        from magneton_dist.sync import EarlyExit

        return EarlyExit(model, on_finish=on_finish)
    return Join([model], throw_on_early_termination=sync == "throw")


def checksum(model: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def main() -> None:
    args = parse()
    local_rank = int(os.environ["LOCAL_RANK"])
    cuda = args.device == "cuda" or (args.device == "auto" and torch.cuda.is_available())
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    batches = read_batches(args, rank, world_size)
    torch.manual_seed(args.seed)
    # Wide enough that the weight-0 term fills a whole gradient bucket.
    zero_width = int(args.bucket_mb * 2**20 / 4 / args.dim) + 1 if args.zero_branch else 0
    gpt = GPT(args.vocabulary, args.tokens, args.layers, args.dim, zero_width).to(device)
    model = DDP(gpt, device_ids=[local_rank] if cuda else None, bucket_cap_mb=args.bucket_mb)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    loss = torch.tensor(float("nan"))
    steps = 0
    start = time.monotonic()
    for epoch in range(args.epochs):
        last_epoch = epoch == args.epochs - 1
        try:
            with uneven(model, args.sync, args.on_finish if last_epoch else "park"):
                for batch in batches:
                    optimizer.zero_grad(set_to_none=True)
                    loss = model(batch.to(device))
                    loss.backward()
                    optimizer.step()
                    audit_step(tokens=batch.numel())
                    steps += 1
        except RuntimeError:
            if args.sync != "throw":
                raise
            break  # the first rank to finish ended the training of all
    seconds = time.monotonic() - start
    print(
        f"rank {rank}: {steps} steps of {len(batches)} batches, {seconds:.2f} s, loss {loss.item():.4f}, "
        f"parameters {checksum(model)}",
        flush=True,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
