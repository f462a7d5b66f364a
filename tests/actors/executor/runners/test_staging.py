"""Arrays to a device in one copy. (Here the device is the host; the layout is the same.)"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pageant.actors.executor.runners.staging import Staging, packed_bytes

ARRAYS = [
    np.arange(5, dtype=np.int64),
    np.arange(6, dtype=np.int32).reshape(2, 3)[:, ::-1],
    np.empty(0, np.float32),
    np.array([0.5], np.float32),
]


@pytest.fixture
def staging():
    return Staging(torch.device("cpu"))


def test_arrays_come_back_with_their_values_dtypes_and_shapes(staging):
    for array, tensor in zip(ARRAYS, staging.send(ARRAYS), strict=True):
        assert tensor.numpy().dtype == array.dtype and tensor.shape == array.shape
        assert np.array_equal(tensor.numpy(), array)


def test_each_begins_where_kernels_like_it(staging):
    tensors = staging.send(ARRAYS)
    begins = [tensor.data_ptr() - tensors[0].data_ptr() for tensor in tensors if len(tensor)]
    assert begins == [0, 48, 80]
    assert packed_bytes(ARRAYS) == 96


def test_what_was_sent_stays_while_more_is_sent(staging):
    sent = [staging.send([np.full(100, number)]) for number in range(30)]
    assert [int(tensor[0]) for (tensor,) in sent] == list(range(30))


def test_the_same_shapes_land_in_the_same_places(staging):
    memory = torch.zeros(200, dtype=torch.uint8)
    first = staging.send(ARRAYS, memory)
    second = staging.send([array + 1 for array in ARRAYS], memory)
    for old, new, array in zip(first, second, ARRAYS, strict=True):
        assert old.data_ptr() == new.data_ptr() or not array.size
        assert np.array_equal(old.numpy(), array + 1)
