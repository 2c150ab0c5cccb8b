"""Several devices: each has its memory, stream and kernels; choosing one, and copies between them."""

import pytest
from processes import command, run


@pytest.fixture(scope="module")
def text():
    """One process for all: what it wrote."""
    return run("""
    from minicaffe.memory import CUDAPlace
    from minicaffe.memory.registry import registry

    def put(device, array):
        address = memory.alloc(CUDAPlace(device), array.nbytes)
        registry.device_side(CUDAPlace(device)).copy_to_device(address, array.ctypes.data, array.nbytes)
        return address

    def get(device, address, like):
        out = np.empty_like(like)
        registry.device_side(CUDAPlace(device)).copy_to_host(out.ctypes.data, address, out.nbytes)
        return out

    assert cuda.count() == 3
    minicaffe.set_device(1)
    assert cuda.current() is None  # choosing is not switching
    minicaffe.set_mode_gpu()
    assert cuda.current().index == 1
    one = Blob((1000,))
    one.data[...] = 1
    one.scale_data(3)
    assert memory.used(CUDAPlace(1)) >= 4000 and memory.used(CUDAPlace(0)) == 0
    minicaffe.set_device(0)
    assert cuda.current().index == 0
    zero = Blob((1000,))
    zero.data[...] = 2
    zero.scale_data(5)
    assert memory.used(CUDAPlace(0)) >= 4000
    assert zero.asum_data() == 10000 and (one.cpu_data == 3).all()
    used = memory.used(CUDAPlace(0))
    del zero
    gc.collect()
    assert memory.used(CUDAPlace(0)) == used - 4000 and memory.used(CUDAPlace(1)) >= 4000
    print("each keeps its memory")

    values = np.arange(5000, dtype=np.float32)
    here, there = put(0, values), put(2, np.zeros_like(values))
    zero_, two = cuda.get_device(0), cuda.get_device(2)
    assert zero_.reaches(two) and two.reaches(zero_) and zero_.reaches(zero_)
    zero_.copy_to_peer(here, two, there, values.nbytes)
    assert (get(2, there, values) == values).all() and (get(0, here, values) == values).all()
    refused(errors.DeviceError, lambda: zero_.copy_to_peer(here, two, there, values.nbytes + (64 << 20)), "cuMemcpyPeerAsync")
    refused(errors.DeviceError, lambda: zero_.copy_to_peer(there, two, here, values.nbytes), "cuMemcpyPeerAsync")
    print("peers copy")

    f = cuda.elementwise("T x", "T y", "y = x + 1", "add_one")
    for index in 2, 0, 1:
        minicaffe.set_device(index)
        x, y = Blob((300,)), Blob((300,))
        x.data[...] = index
        f(x, y)
        assert (y.cpu_data == index + 1).all()
    print("a kernel is loaded on each device")

    one.scale_data(2)  # it lies on device 1, which is the present one
    assert (one.cpu_data == 6).all()
    refused(errors.DeviceError, lambda: minicaffe.set_device(3), "no device 3", "has 3")
    assert cuda.current().index == 1
    print("a wrong number changes nothing")

    minicaffe.set_device(0)
    try:
        one.scale_data(2)
        assert (one.cpu_data == 12).all()
        print("a blob of another device: follows")
    except errors.Error as error:
        print("a blob of another device: refused:", error)
    """, "sim", "devices=3")


@pytest.mark.parametrize("line", ["each keeps its memory", "peers copy", "a kernel is loaded on each device",
                                  "a wrong number changes nothing", "a blob of another device: "])
def test_two_devices(text, line):
    assert line in text


def test_a_training_on_the_second_device(tmp_path):
    from training import NET
    (tmp_path / "net.prototxt").write_text(NET)
    text = command("train", "net.prototxt", "--gpu", "1", "--max-iter", "3", "--snapshot-after-train", "false", cwd=tmp_path,
                   device="sim", settings="devices=2")
    assert "Use GPU with device ID 1" in text


def test_device_query_lists_all():
    text = command("device_query", device="sim", settings="devices=2,memory=1GiB")
    assert text.count("minicaffe simulated device") == 2 and "1,073,741,824 bytes" in text
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("Peers")] == ["1", "0"]
