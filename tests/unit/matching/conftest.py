import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    """Small tensors gain nothing from threads, and lose much where the cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
