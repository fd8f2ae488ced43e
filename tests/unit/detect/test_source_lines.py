from magneton_dist.detect.source_lines import user_frames, user_line

STACK = [
    "/env/lib/python3.11/site-packages/torch/nn/parallel/distributed.py:1 forward",
    "/env/lib/python3.11/site-packages/mylib/loop.py:5 fit",
    "/env/lib/python3.11/contextlib.py:3 inner",
    "/home/me/train.py:9 main",
    "<frozen runpy>:1 run",
]


def test_frames_of_frameworks_are_left_out_and_the_users_libraries_stay() -> None:
    assert user_frames(STACK) == ["/env/lib/python3.11/site-packages/mylib/loop.py:5 fit", "/home/me/train.py:9 main"]


def test_the_innermost_line_without_its_function() -> None:
    assert user_line(STACK) == "/env/lib/python3.11/site-packages/mylib/loop.py:5"


def test_no_user_frame_is_none() -> None:
    assert user_line(STACK[:1]) is None


def test_a_users_folder_may_be_called_torch() -> None:
    assert user_line(["/home/torch/train.py:3 main"]) == "/home/torch/train.py:3"
