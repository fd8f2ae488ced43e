import gc

import torch
from torch import nn

from magneton_dist.tracer.updates import ParameterWatch


def test_only_writes_count():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    watch = ParameterWatch()
    assert not watch.changed([model(torch.ones(2, 4)).sum()])
    assert not watch.changed([model(torch.ones(2, 4)).sum()])
    model(torch.ones(2, 4)).sum().backward()
    assert not watch.changed([model(torch.ones(2, 4)).sum()])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert watch.changed([model(torch.ones(2, 4)).sum()])
    assert not watch.changed([model(torch.ones(2, 4)).sum()])


def test_a_model_that_was_dropped_is_replaced():
    watch = ParameterWatch()
    for _ in range(2):
        model = nn.Linear(2, 2)
        assert not watch.changed([model(torch.ones(1, 2))])
        with torch.no_grad():
            model.weight.mul_(2)
            model.bias.mul_(2)
        assert watch.changed([model(torch.ones(1, 2))])
        del model
        gc.collect()


def test_outputs_without_a_graph():
    assert not ParameterWatch().changed([torch.ones(3)])
    assert not ParameterWatch().changed([])


def test_a_large_graph_is_searched_in_bounded_time():
    value = nn.Parameter(torch.ones(1)) * 1
    for _ in range(14):
        value = value + value  # 2 ** 14 paths, 14 nodes
    watch = ParameterWatch()
    assert not watch.changed([value])
    assert len(watch._watched) == 1
