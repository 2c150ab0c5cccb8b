"""Net.feed on a device: copies and waits are counted, and orders checked by the simulated device's late work and by its clocks.

``deferred=1`` runs work only when something waits for it, so what nothing waits for is missing, and a page-locked array that is
overwritten too early is seen; ``race=1`` finds two streams on the same bytes without an order. Each run is a process of its own.
"""

import pytest
from processes import run

pytestmark = pytest.mark.slow(14)    # all together

NET = """
import ctypes, functools, logging
import helpers, training
from helpers import layer_text
from minicaffe.memory import CUDAPlace
minicaffe.set_mode_gpu()
BATCH, WIDTH = 8, 700
TEXT = (layer_text("Input", "in", "", "data label", "input_param { shape { dim: 8 dim: 700 } shape { dim: 8 } }")
        + layer_text("InnerProduct", "ip", "data", "ip", 'inner_product_param { num_output: 5 weight_filler { type: "xavier" } }')
        + layer_text("SoftmaxWithLoss", "loss", "ip label") + layer_text("SoftmaxWithLoss", "again", "ip label", "again", "loss_weight: 0.1"))
make_solver, make_net = functools.partial(training.make_solver, TEXT), functools.partial(helpers.make_net, TEXT)
memory.use(CUDAPlace(0), "plain")   # race=1: kernels count with whole allocations
random = np.random.default_rng(0)
batches = [(random.standard_normal((BATCH, WIDTH), np.float32), random.integers(0, 5, BATCH)) for _ in range(8)]

def losses(solver, put):
    "Train with each batch; `put(net, data, label)` brings it in."
    found = []
    for data, label in batches:
        put(solver.net, data, label)
        solver.step(1)
        found.append(solver.smoothed_loss)
    return found

def assign(net, data, label):
    net.blobs["data"].data[...] = data
    net.blobs["label"].data[...] = label

def feed(net, data, label):
    data, label = data.copy(), label.copy()
    net.feed(data=data, label=label)
    data[...], label[...] = np.nan, 99      # it is the caller's again

def copies(call):
    with memory.record() as events:
        call()
    return sorted(e.detail for e in events if e.kind == "copy")

def main():
"""
def fed(code, place="sim", settings="", setup=""):
    text = run(f"{NET.replace('def main', setup + 'def main')}{code}\nmain()", place, settings)     # in a function: what it made is gone at the end
    assert "not given back" not in text, text
    return text


@pytest.mark.parametrize("settings", ["deferred=1", "race=1", "deferred=1,race=1,uninitialized=1,leak=1"])
def test_a_training_with_a_graph(place, settings):
    """The same numbers as by plain assignment and on the CPU, from one recorded graph; losses are read late, or after each step."""
    fed("""
    found = []
    for put in feed, assign:
        solver = make_solver()
        seen = losses(solver, put)
        graph, address = solver.training_step.recorded.graph, solver.net.blobs["data"].gpu_data.address
        assert graph is not None
        for data, label in batches:
            put(solver.net, data, label)
            solver.step(1)
            assert solver._deferred_loss
        assert solver.training_step.recorded.graph is graph and solver.net.blobs["data"].gpu_data.address == address
        found.append([*seen, solver.smoothed_loss, *(blob.cpu_data.copy() for blob in solver.net.learnable_params)])
    for a, b in zip(*found):
        np.testing.assert_array_equal(a, b)
    minicaffe.set_mode_cpu()
    on_cpu = make_solver()
    np.testing.assert_allclose(found[0][:8], losses(on_cpu, feed), rtol=1e-5)
    losses(on_cpu, feed)
    np.testing.assert_allclose(found[0][9], on_cpu.net.learnable_params[0].cpu_data, rtol=1e-4, atol=1e-6)
    """, place, settings)


def test_neither_feed_nor_step_waits():
    """Where a graph is replayed: a feed waits only for the event of the feed before the last, so that two page-locked arrays are enough."""
    fed("""
    solver = make_solver()
    losses(solver, feed)
    library = ctypes.CDLL(minicaffe.sim.library())
    device = cuda.current()
    waits = {"cuStreamSynchronize": cuda.computing(device).synchronize, "cuCtxSynchronize": device.synchronize,
             "cuEventSynchronize": cuda.Event(device).synchronize}
    for call in waits:
        assert library.mcsim_configure(f"fail={call}:{3 if 'Event' in call else 1}".encode()) == 0
    (data, label), (data_2, label_2) = batches[:2]
    solver.net.feed(data=data, label=label)
    solver.step(1)
    solver.net.feed(data=data_2, label=label_2)
    for call, wait in waits.items():
        refused(errors.DeviceError, wait, call, "made to fail")     # so it was not called before, the event's twice
    solver.step(1)
    assert np.isfinite(solver.smoothed_loss)
    held = memory.stats(memory.PinnedPlace()).reserved
    for data, label in batches:
        solver.net.feed(data=data, label=label)
    assert memory.stats(memory.PinnedPlace()).reserved == held
    """, "sim", "deferred=1")


def test_how_often_is_copied(place):
    """Each array of the host once to the device, one of the device never; nothing is copied when labels are looked at or data read."""
    fed("""
    solver = make_solver()
    losses(solver, feed)
    data, label = batches[0]
    expected = ["device to device"] * 2 + ["host to device"] * 2
    found = copies(lambda: solver.net.feed(data=data, label=label))
    assert found == expected, found
    assert copies(lambda: (solver.net.blobs["data"].cpu_data, solver.net.inspect_inputs())) == []
    assert copies(lambda: solver.net.blobs["data"].data) == []      # for writing: both sides were valid
    assert copies(lambda: solver.net.feed(data=data, label=label)) == expected     # what the host has is not copied first
    other = Blob((BATCH, WIDTH))
    other.data[...] = data
    on_device = other.gpu_data
    assert copies(lambda: solver.net.feed(data=on_device)) == ["device to device"]
    solver.net.blobs["data"].data[...] = 0
    other.mutable_gpu_data
    assert copies(lambda: solver.net.feed(data=other)) == ["device to device"]
    assert (solver.net.blobs["data"].cpu_data == data).all()
    """, place)


ARRAYS = """
Stream = cuda.Stream
fill = cuda.kernel('extern "C" __global__ void fill(float* x, float value, int n) {'
                   ' for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = value; }', "fill")
stream = Stream(cuda.current())
owned = Blob((BATCH, WIDTH), name="theirs")
address = owned.mutable_gpu_data.address
cuda.current().synchronize()
net = make_net()
data = net.blobs["data"]

def write(value):
    "As their library does, on its stream."
    fill((1,), (64,), (owned.mutable_gpu_data, np.float32(value), np.int32(owned.count)), stream=stream)

class Interface:
    def __init__(self, stream, shape=(BATCH, WIDTH), typestr="<f4", strides=None, address=address):
        self.__cuda_array_interface__ = dict(shape=shape, typestr=typestr, data=(address, False), version=3, strides=strides,
                                             stream=stream)
"""


@pytest.mark.parametrize("settings", ["deferred=1", "race=1", "deferred=1,race=1,uninitialized=1"])
def test_foreign_arrays_in_order(place, settings):
    """What they write before is copied, what they write afterwards is not, where the interface names their stream; otherwise it is a race."""
    fed("""
    for value in range(1, 4):
        write(value)
        net.feed(data=Interface(stream.address))
        write(-1)
        assert (data.cpu_data == value).all()
    if os.environ["MINICAFFE_SIM"] == "race=1":
        write(1)
        refused(errors.DeviceError, lambda: (net.feed(data=Interface(None)), cuda.current().synchronize()), "race")
    """, place, settings, setup=ARRAYS)


def test_foreign_memory_kept_until_copied():
    fed("""
    import weakref
    write(3)
    array = Interface(stream.address)
    kept = weakref.ref(array)
    net.feed(data=array)
    del array
    gc.collect()
    assert kept() is not None
    cuda.current().synchronize()
    net.feed(label=np.arange(8) % 5)
    net.blobs["label"].gpu_data, cuda.current().synchronize()
    net.blobs["data"].data[...] = 1
    net.blobs["data"].gpu_data              # copies drop what is done
    assert kept() is None
    """, "sim", "deferred=1", setup=ARRAYS)


def test_arrays_that_do_not_fit(place):
    """None of the arrays of a call is copied then."""
    fed("""
    label = np.ones(8, np.float32)
    net.feed(data=np.full((BATCH, WIDTH), 7.0))
    write(1)
    for array, kind, words in (
            (Interface(None, typestr="<f8"), errors.WrongTypeError, ["data: ", "float32 on the GPU", "got float64", "x.float()"]),
            (Interface(None, (WIDTH, BATCH)), errors.ShapeError, ["data: ", "[8, 700], got [700, 8]", "reshape(700, 8)"]),
            (Interface(None, strides=(4, 4 * BATCH)), errors.ShapeError, ["data: ", "contiguous", "x.contiguous()"]),
            (Interface(None, typestr="<i8"), errors.WrongTypeError, ["data: ", "got int64"]),
            (Interface(None, address=0x1000), errors.DeviceError, ["data", "no memory of a device"])):
        error = refused(kind, lambda: net.feed(label=label, data=array), *words)
    assert not net.blobs["label"].cpu_data.any() and (data.cpu_data == 7).all()
    stream.synchronize()
    net.feed(label=label, data=Interface(None, strides=(4 * WIDTH, 4)))
    assert net.blobs["label"].cpu_data.all() and (data.cpu_data == 1).all()
    minicaffe.set_mode_cpu()
    refused(errors.ConfigError, lambda: net.feed(data=Interface(None)), "data: ", "computes on the CPU", "set_mode_gpu()")
    """, place, setup=ARRAYS)


def test_another_gpu():
    fed("""
    other = Blob((BATCH, WIDTH))
    other.data[...] = 3
    there = other.gpu_data
    minicaffe.set_device(1)
    net = make_net()
    refused(errors.WrongDeviceError, lambda: net.feed(data=there), "data is on GPU 0", "the current GPU is 1")
    cuda.enable_peer_access(1, 0)
    net.feed(data=there, label=np.ones(8))
    assert (net.blobs["data"].cpu_data == 3).all()
    net.feed(data=batches[0][0])
    minicaffe.set_device(0)
    refused(errors.WrongDeviceError, lambda: net.feed(data=batches[0][0]), "GPU 1")
    """, "sim", "devices=2,peers=0-1,race=1")


@pytest.mark.parametrize("settings", ["race=1", "deferred=1"])
def test_feeds_beside_recordings(place, settings):
    fed("""
    from concurrent.futures import ThreadPoolExecutor
    before = losses(make_solver(), assign)
    sys.setswitchinterval(1e-5)

    def work(number):
        assert cuda.current().index == 0    # inherited, unlike Caffe's mode
        minicaffe.set_random_seed(1)
        return losses(make_solver(), feed)

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(work, range(9))) == [before] * 9
    """, place, settings)


def test_late_loss_not_finite(place):
    """It is reported at the next step, of the right iteration; with ``nan = "stop"`` no loss is late."""
    text = fed("""
    logging.basicConfig(level=logging.WARNING)
    bad = np.full((BATCH, WIDTH), np.nan)
    for then in {}, {"data": batches[0][0]}:
        solver = make_solver()
        losses(solver, feed)
        solver.net.feed(data=bad)
        solver.step(1)
        assert solver._deferred_loss is not None
        if then:
            solver.net.feed(**then)
        solver.step(1)
    solver = make_solver()
    solver.nan = "stop"
    losses(solver, feed)
    solver.net.feed(data=bad)
    refused(errors.NotFiniteError, lambda: solver.step(1), "iteration 9")
    """, place)
    lines = [line for line in text.splitlines() if "Iteration 8: the loss is nan" in line]
    assert "'data' of layer 'in'" in lines[0] and "unless it came from an input that was fed again" in lines[1], text


def test_loss_used_at_once(place, tmp_path):
    """Of iterations that are displayed or precede a snapshot."""
    fed(f"""
    solver = make_solver(average_loss=3, snapshot=20, snapshot_prefix={str(tmp_path / "s")!r}, display=10)
    losses(solver, feed)
    at_once = []
    for number in range(8, 22):
        solver.step(1)
        at_once += [number] * (solver._deferred_loss is None)
    assert at_once == [10, 19, 20], at_once
    """, place)
