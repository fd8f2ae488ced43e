import threading

import pytest

from magneton_dist import sync
from magneton_dist.tracer import origin
from magneton_dist.tracer.origin import classify

SITE = "/env/lib/python3.11/site-packages/torch"
C10D = (f"{SITE}/distributed/distributed_c10d.py", 1, "all_reduce")
LOGGER = (f"{SITE}/distributed/c10d_logger.py", 2, "wrapper")
MAIN = ("/home/me/train.py", 9, "main")
CALL = (f"{SITE}/nn/modules/module.py", 3, "_call_impl")
DDP = f"{SITE}/nn/parallel/distributed.py"
JOIN = f"{SITE}/distributed/algorithms/join.py"
ENGINE = [(f"{SITE}/autograd/graph.py", 4, "_engine_run_backward"), (f"{SITE}/_tensor.py", 5, "backward"), MAIN]
EXIT = [(JOIN, 6, "__exit__"), ("/home/me/helper.py", 7, "train_unevenly"), MAIN]
SYNC = sync.__file__.replace("__init__", "routing")


@pytest.mark.parametrize(
    ("expected", "frames"),
    [
        ("user", [C10D, LOGGER, MAIN]),
        ("user", [MAIN]),
        ("ddp_buffers", [(DDP, 1, "_sync_buffers"), (DDP, 2, "_pre_forward"), (DDP, 3, "forward"), CALL, MAIN]),
        ("ddp_buffers", [(f"{SITE}/distributed/utils.py", 1, "_sync_module_states"), (DDP, 2, "__init__"), MAIN]),
        # a collective in a module's forward, below DDP
        ("user", [C10D, LOGGER, ("/home/me/model.py", 1, "forward"), CALL, (DDP, 3, "forward"), CALL, MAIN]),
        ("user", [C10D, (f"{SITE}/nn/modules/batchnorm.py", 1, "forward"), CALL, (DDP, 3, "forward"), CALL, MAIN]),
        ("fsdp", [C10D, LOGGER, (f"{SITE}/distributed/fsdp/_fully_shard/_fsdp_collectives.py", 1, "f"), CALL, MAIN]),
        ("join_control", [C10D, LOGGER, (JOIN, 1, "_get_num_nonjoined_procs"), *EXIT]),
        ("join_control", [C10D, LOGGER, (JOIN, 1, "notify_join_context"), (DDP, 2, "_pre_forward"), CALL, MAIN]),
        ("join_control", [C10D, (DDP, 1, "_check_global_requires_backward_grad_sync"), (DDP, 2, "_pre_forward"), MAIN]),
        ("join_shadow", [(DDP, 1, "_match_all_reduce_for_bwd_pass"), (DDP, 2, "main_hook"), *EXIT]),
        ("join_shadow", [C10D, (DDP, 1, "_check_global_requires_backward_grad_sync"), (DDP, 2, "main_hook"), *EXIT]),
        # a hook of the user's own, behind a decorator
        ("join_shadow", [C10D, ("/home/me/hook.py", 1, "main_hook"), ("/home/me/hook.py", 2, "wrapped"), *EXIT]),
        ("join_final", [C10D, (DDP, 1, "_sync_final_model"), (DDP, 2, "post_hook"), *EXIT]),
        ("user", [C10D, (SYNC, 1, "kernel"), LOGGER, MAIN]),
        ("ddp_buffers", [(SYNC, 1, "kernel"), (DDP, 2, "_pre_forward"), CALL, MAIN]),
    ],
)  # fmt: skip
def test_outside_the_backward_pass(expected: str, frames: list[origin.Frame]):
    assert classify(frames, in_backward=False) == expected


@pytest.mark.parametrize(
    ("expected", "frames"),
    [
        ("ddp", ENGINE),  # the reducer calls from C++
        ("ddp", []),  # on a thread of the engine
        ("ddp", [C10D, LOGGER, ("/home/me/hooks.py", 1, "my_comm_hook"), *ENGINE]),
        ("ddp", [C10D, (f"{SITE}/distributed/algorithms/ddp_comm_hooks/default_hooks.py", 1, "_hook"), *ENGINE]),
        ("ddp", [(DDP, 1, "backward"), (f"{SITE}/autograd/function.py", 2, "apply"), *ENGINE]),
        ("ddp", [(SYNC, 1, "kernel"), *ENGINE]),
        ("user", [C10D, ("/home/me/tp.py", 1, "backward"), (f"{SITE}/autograd/function.py", 2, "apply"), *ENGINE]),
        ("fsdp", [C10D, (f"{SITE}/distributed/fsdp/_runtime_utils.py", 1, "_post_backward_hook"), *ENGINE]),
    ],
)  # fmt: skip
def test_in_the_backward_pass(expected: str, frames: list[origin.Frame]):
    assert classify(frames, in_backward=True) == expected


def test_labels_nest_and_end_with_their_block():
    assert origin.said() is None
    with origin.label("a"):
        with origin.label("b"):
            assert origin.said() == "b"
        assert origin.said() == "a"
        with pytest.raises(KeyError), origin.label("c"):
            raise KeyError
        assert origin.said() == "a"
    assert origin.said() is None


def test_labels_are_a_threads_own():
    heard: list[str | None] = []
    with origin.label("a"):
        thread = threading.Thread(target=lambda: heard.append(origin.said()))
        thread.start()
        thread.join()
    assert heard == [None]
