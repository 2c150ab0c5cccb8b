"""Checks the answers of chapter1.py against blobs."""

import numpy as np
from chapter1 import allocations, index_of, indices_of

from minicaffe import memory
from minicaffe.blob import Blob

SHAPES = [(7,), (3, 4), (2, 3, 4, 5), (1, 6, 1, 2)]


def test_index_of():
    for shape in SHAPES:
        blob = Blob(shape)
        for index in np.ndindex(shape):
            assert index_of(index, shape) == blob.offset(index)


def test_indices_of():
    for shape in SHAPES:
        assert [indices_of(at, shape) for at in range(np.prod(shape))] == list(np.ndindex(shape))


def test_allocations():
    for counts in ([5, 3, 5], [1, 2, 3, 4], [10, 1, 11, 11, 2], [8]):
        blob = Blob()
        with memory.record() as events:
            for count in counts:
                blob.reshape(count)
                _ = blob.data
        assert allocations(counts) == sum(event.kind == "alloc" for event in events), counts
