"""Programs that a person would call clean: nothing above the floor, or only what a person would agree with."""

from __future__ import annotations

import gpt2
import pytest
import torch

from magneton_dist.records.audit import Finding

from .recorded import findings

SIZES = gpt2.Config()


def told(found: list[Finding]) -> list[tuple[str, str, float | None, list[str]]]:
    return [(f.kind, f.title, f.share, f.where.stack[:2]) for f in found]


def training(model: torch.nn.Module, loss) -> list[Finding]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = gpt2.ids_of(SIZES, 4)

    def step() -> None:
        loss(model, ids).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return findings(step)


@pytest.mark.parametrize("layout", ["packed", "split"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_gpt_written_by_hand(layout: str, attention: str):
    assert told(training(gpt2.fresh(SIZES, layout, attention), lambda model, ids: model(ids))) == []


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_gpt2_by_transformers(attention: str):
    pytest.importorskip("transformers")
    model = gpt2.transformers_model(SIZES, attention)
    assert told(training(model, lambda model, ids: model(ids, labels=ids).loss)) == []


def test_llama_by_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=96, intermediate_size=256, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=3,
        vocab_size=211, max_position_embeddings=40, use_cache=False,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    assert told(training(model, lambda model, ids: model(ids, labels=ids).loss)) == []
