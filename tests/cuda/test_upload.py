"""Batches on their way to the device: which stream waits for which, shown by the simulated device's late work and its clocks.

``deferred=1`` runs work only when something waits for it, so what nothing waits for is missing; ``race=1`` finds two streams on
the same bytes without an order. Each run is a process of its own, since both are of the process.
"""

from pathlib import Path

import numpy as np
import pytest
from helpers import layer_text
from processes import run, run_gpu
from training import losses, make_solver

from minicaffe.errors import Error

pytestmark = pytest.mark.slow(6)    # all together

ROOT = Path(__file__).resolve().parent.parent.parent
BATCHES = """
from minicaffe.data.upload import DeviceUpload, pinned_array
from minicaffe.memory import CUDAPlace
from minicaffe.memory.registry import registry
minicaffe.set_mode_gpu()
N = 5000
arrays = [pinned_array((N,), "f") for _ in range(2)]
fetched = 0

def fetch():
    "Batch k is full of k; its array is that of batch k - 2, as the prefetch thread has it."
    global fetched
    fetched += 1
    arrays[fetched % 2][:] = fetched
    return (arrays[fetched % 2],)

def on_device(blob):
    return blob.mutable_gpu_data.address

side = registry.device_side(CUDAPlace(0))
"""


ORDERS = ["deferred=1", "race=1", "deferred=1,race=1"]


@pytest.mark.parametrize("settings", ORDERS)
def test_order_of_batches(place, settings):
    """The host never waits for the device here, but where it must."""
    run(BATCHES + """
top, seen = Blob((N,)), [Blob((N,)) for _ in range(6)]
for blob in seen:
    blob.gpu_data
upload = DeviceUpload()
upload.send(fetch)
for blob in seen:
    upload.copy_to([top])
    upload.send(fetch)
    side.copy_within(on_device(blob), on_device(top), 4 * N)
assert [set(blob.cpu_data) for blob in seen] == [{k} for k in range(1, 7)], [set(blob.cpu_data) for blob in seen]
""", place, settings)


@pytest.mark.parametrize("settings", ORDERS)
def test_batches_of_several_sizes(place, settings):
    """The top keeps the memory of the largest; reading it does not write to arrays of earlier batches, which others fill by then."""
    run(BATCHES + """
sizes = [5, 3, 5, 2, 4, 5, 1]
def fetch():
    global fetched
    fetched += 1
    array = arrays[fetched % 2][:sizes[fetched - 1]]
    array[:] = fetched
    return (array,)

top, upload = Blob((5,)), DeviceUpload()
before = top.data_memory
upload.send(fetch)
for k in range(1, 7):
    upload.copy_to([top])
    upload.send(fetch)
    values = [array[0] for array in arrays]
    assert top.shape == (sizes[k - 1],) and top.data_memory is before
    assert (top.cpu_data == k).all(), (k, top.cpu_data)
    assert [array[0] for array in arrays] == values
""", place, settings)


PRODUCT = 'inner_product_param { num_output: 10 weight_filler { type: "xavier" } }'
PRODUCT = 'inner_product_param { num_output: 10 weight_filler { type: "xavier" } }'
# A Split gives the labels to both losses. Its tops are the blob of the source, which the host checks while the iteration is recorded.
DATA = layer_text("Data", "in", "", "data label", """include { phase: TRAIN } transform_param { scale: 0.00390625 }
  data_param { source: "models/data/fashion_mnist_test_lmdb" backend: LMDB batch_size: 4 }""") + (
    layer_text("InnerProduct", "ip", "data", "ip", PRODUCT) + layer_text("SoftmaxWithLoss", "loss", "ip label")
    + layer_text("InnerProduct", "ip2", "data", "ip2", PRODUCT) + layer_text("SoftmaxWithLoss", "loss2", "ip2 label", "loss2", "loss_weight: 0.3"))


@pytest.mark.parametrize(("settings", "allocator"), [("deferred=1,race=1,uninitialized=1", "plain"), ("race=1", "caching")])
def test_a_training_from_a_database(place, settings, allocator):
    """Copies on the stream of their own, kernels, and what the host reads, all in order."""
    run_gpu(f"""
    from training import make_solver, losses
    memory.use(memory.CUDAPlace(0), {allocator!r})
    solver = make_solver({DATA!r})
    late = losses(solver, 7)
    assert solver.training_step.recorded.graph is not None
    minicaffe.set_mode_cpu()
    np.testing.assert_allclose(late, losses(make_solver({DATA!r}), 7), atol=1e-5)
    """, place, settings, cwd=ROOT)


@pytest.mark.parametrize("second", ["", layer_text("SoftmaxWithLoss", "second", "ip label")], ids=["one", "two"])
@pytest.mark.parametrize("loss", ["SoftmaxWithLoss", "MultinomialLogisticLoss", "HingeLoss"])
def test_labels_checked_before_replays(loss, second):
    """Kernels cannot raise, so the host does; weights stay as they were. A Split gives the labels to two losses."""
    solver = make_solver(layer_text("Input", "in", "", "data label", "input_param { shape { dim: [4, 3] } shape { dim: 4 } }")
                         + layer_text("InnerProduct", "ip", "data", "ip", PRODUCT.replace("10", "5")) + layer_text(loss, "loss", "ip label") + second)
    data, label = map(solver.net.blob_by_name, ("data", "label"))
    data.data[...] = 1
    losses(solver, 5)
    assert solver.training_step.recorded.graph is not None, "no graph was recorded, so this test says nothing"
    before = [blob.cpu_data.copy() for blob in solver.net.learnable_params]
    label.data[...] = [1, 7, 2, 3]
    with pytest.raises(Error, match=r"label.* 7|7.*label"):
        solver.step(1)
    for blob, kept in zip(solver.net.learnable_params, before):
        np.testing.assert_array_equal(blob.cpu_data, kept)
    label.data[...] = [1, 4, 2, 3]
    assert np.isfinite(losses(solver, 2)).all()
