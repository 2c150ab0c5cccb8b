"""Allocators written in Python that serve a device and its page-locked host memory."""

import gc

import pytest

from minicaffe import memory
from minicaffe.blob import Blob
from minicaffe.errors import OutOfMemoryError
from minicaffe.memory import Allocator, BuddyAllocator, CachingAllocator, CachingHostAllocator, CUDAPlace, PinnedPlace


class Watch(Allocator):
    """Note each call; refuse what is more than `most`."""

    def __init__(self, upstream, most=1 << 40):
        super().__init__(upstream.place, upstream)
        self.most, self.live = most, {}

    def alloc(self, nbytes):
        if self.stats().live + nbytes > self.most:
            raise OutOfMemoryError(f"{nbytes} are too many")
        address = super().alloc(nbytes)
        self.live[address] = nbytes
        return address

    def free(self, address):
        del self.live[address]
        super().free(address)


@pytest.mark.parametrize("where", ["above", "below"])
def test_each_place_takes_one(where):
    if where == "above":
        watches = [Watch(memory.allocator_of(p, "caching")) for p in (CUDAPlace(0), PinnedPlace())]
        serving = watches
    else:
        watches = [Watch(memory.allocator_of(p, "plain")) for p in (CUDAPlace(0), PinnedPlace())]
        serving = CachingAllocator(watches[0]), CachingHostAllocator(watches[1])
    for allocator in serving:
        memory.use(allocator.place, allocator)
    blobs = [Blob((n, 1000)) for n in (1, 3, 700)]
    for n, blob in enumerate(blobs):
        blob.data[...] = n
        assert blob.gpu_data.__cuda_array_interface__["data"][0] in watches[0].live or where == "below"
    total = sum(4000 * n for n in (1, 3, 700))
    for watch in watches:
        assert watch.stats().live == sum(watch.live.values()) >= total
    assert [memory.stats(watch.place).reserved >= total for watch in watches] == [True, True]
    del blob, blobs
    gc.collect()
    for place in (CUDAPlace(0), PinnedPlace()):
        memory.empty_cache(place)
    assert [watch.live for watch in watches] == [{}, {}]
    assert [watch.stats().count for watch in watches] == [0, 0]


@pytest.mark.parametrize("where", [CUDAPlace(0), PinnedPlace()], ids=repr)
def test_error_leaves_the_blob(where):
    memory.use(where, Watch(memory.allocator_of(where, "plain"), 5000))
    blob = Blob((2000,))
    for _ in range(2):
        with pytest.raises(OutOfMemoryError, match="8000 are too many"):
            blob.data[...] = 1
            str(blob.gpu_data.__cuda_array_interface__)
    memory.use(where, None)
    blob.data[...] = 3
    assert blob.gpu_data.__cuda_array_interface__["data"][0] and (blob.data == 3).all()


@pytest.mark.parametrize("above", [CachingAllocator, BuddyAllocator])
def test_middle_of_a_block(above):
    """No red zones lie there then, as they begin with an allocation of the driver."""
    class Header(Allocator):
        def __init__(self, upstream):
            super().__init__(upstream.place, upstream)

        def alloc(self, nbytes):
            return super().alloc(nbytes + 64) + 64

        def free(self, address):
            super().free(address - 64)

    cut = above(Header(memory.allocator_of(CUDAPlace(0), "plain")))
    memory.use(cut.place, cut)
    blobs = [Blob((n,)) for n in (1, 100, 5000, 2_000_000)]
    for n, blob in enumerate(blobs):
        blob.data[...] = n
        str(blob.mutable_gpu_data.__cuda_array_interface__)
        assert (blob.data == n).all()
    del blob, blobs
    gc.collect()
    cut.empty_cache()
    assert cut.stats().reserved == 0
