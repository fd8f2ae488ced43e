"""Documents of log-normal length, packed end to end into sequences of one fixed length.

Every rank reads one corpus, and every corpus holds the same number of documents. The documents of some
corpora are longer than those of others (chat against code, say), so the ranks end up with different numbers
of packed sequences: the data are uneven, not the script.
"""

from __future__ import annotations

import torch

END_OF_DOCUMENT = 0


def corpus_median(rank: int, world_size: int, median: float, skew: float) -> float:
    """Median document length of one rank's corpus, in tokens: from `median` up to `median * skew`."""
    return median * skew ** (rank / max(1, world_size - 1))


def document_lengths(documents: int, median: float, sigma: float, generator: torch.Generator) -> torch.Tensor:
    """Lengths in tokens, shape (documents,), at least 2: one token and the end of the document.

    `sigma` is the standard deviation of the logarithm; 0 makes all documents equally long.
    """
    spread = torch.randn(documents, generator=generator, dtype=torch.float64)
    return (median * (sigma * spread).exp()).round().long().clamp(min=2)


def write_documents(lengths: torch.Tensor, vocabulary: int, generator: torch.Generator) -> torch.Tensor:
    """The documents one after the other, shape (total length,).

    Each counts from a random token in steps of a random size, so there is something to learn, and ends with
    END_OF_DOCUMENT.
    """
    first = torch.randint(vocabulary - 1, lengths.shape, generator=generator)
    step = torch.randint(1, 8, lengths.shape, generator=generator)
    ends = lengths.cumsum(0)
    position = torch.arange(int(ends[-1])) - (ends - lengths).repeat_interleave(lengths)
    counted = first.repeat_interleave(lengths) + step.repeat_interleave(lengths) * position
    tokens = 1 + counted % (vocabulary - 1)
    tokens[ends - 1] = END_OF_DOCUMENT
    return tokens


def pack(stream: torch.Tensor, tokens: int, batch: int) -> torch.Tensor:
    """Full batches, shape (batches, batch, tokens); what does not fill the last batch is left out."""
    batches = stream.numel() // (batch * tokens)
    return stream[: batches * batch * tokens].view(batches, batch, tokens)
