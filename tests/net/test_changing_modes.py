"""A net that computes on the CPU and on a device by turns gives what a net gives that never changed: with a plan, and without.

It launches as many kernels, too, and has the same schedule."""

import gc

import numpy as np
import pytest
from helpers import layer_text, make_net, one_of
from test_memory_plan import CHANNELS_LAST, CONV, INPUT, LOSS, NETS, feed, layer, net_of

import minicaffe
from minicaffe import sim
from minicaffe.blob import Blob
from minicaffe.common import caffe
from minicaffe.errors import DependencyError

# Engines of the CPU leave to the Concat the gradients of ReLUs before it, and write slices of its top directly; those of a device do not.
MODULE = INPUT + "".join(layer(name, "Convolution", ["x"], [name], CONV.format(count)) + layer(f"{name}r", "ReLU", [name], [name])
                         for name, count in (("c", 16), ("d", 32), ("e", 16))) + layer("join", "Concat", ["c", "d", "e"], ["join"])
JOINED = {
    "a module of branches": MODULE + LOSS % "join",
    "two modules": MODULE + layer("f", "Convolution", ["join"], ["f"], CONV.format(16)) + layer("fr", "ReLU", ["f"], ["f"])
                   + layer("p", "Pooling", ["join"], ["p"], "pooling_param { kernel_size: 3 stride: 1 pad: 1 }")
                   + layer("again", "Concat", ["f", "p"], ["again"]) + LOSS % "again",
    "norms": INPUT + layer("c", "Convolution", ["x"], ["c"], CONV.format(16)) + layer("n", "BatchNorm", ["c"], ["c"])
             + layer("s", "Scale", ["c"], ["c"], "scale_param { bias_term: true }") + layer("r", "ReLU", ["c"], ["c"]) + LOSS % "c",
}
MODES = {"cpu": minicaffe.set_mode_cpu, "device": minicaffe.set_mode_gpu}


@pytest.fixture(autouse=True)
def both(device, monkeypatch):
    """A device beside the CPU: that of ``--device gpu``, else the simulated one."""
    monkeypatch.setenv("MINICAFFE_DEVICE", "gpu" if device == "gpu" else "sim")
    try:
        minicaffe.set_mode_gpu()
    except DependencyError as error:
        pytest.skip(str(error))
    yield
    gc.collect()
    minicaffe.set_mode_cpu() if device == "cpu" else minicaffe.set_mode_gpu()


def passes(net, seed):
    """Run forward and backward with gradients from zero; return the loss, data and gradients of the parameters, and the kernels launched.

    Launches are not counted with channels last: gradients that the CPU left in plain order are converted once."""
    net.clear_param_diffs()
    feed(net, seed)
    minicaffe.set_random_seed(seed)
    on_device = caffe.mode == "gpu" and sim.selected() and not CHANNELS_LAST      # on a GPU libraries launch more in their first passes
    before = minicaffe.cuda.current().launches if on_device else 0
    loss = net.forward_backward()
    launches = minicaffe.cuda.current().launches - before if on_device else 0
    return [loss, *(array.copy() for blob in net.param_table.params for array in (blob.cpu_data, blob.cpu_diff)), launches]


CHOSEN = {**JOINED, **{name: text for i, (name, text) in enumerate(NETS.items()) if not name.startswith("random") or i % 8 == 0}}


@pytest.mark.parametrize("plan", ["memory", None])
@pytest.mark.parametrize("name", one_of(3, CHOSEN))
def test_modes_by_turns(name, plan):
    text = CHOSEN[name]
    changing = net_of(text, plan=plan)
    for seed, mode in enumerate(["cpu", "device", "cpu", "cpu", "device", "device"]):
        MODES[mode]()
        fresh = net_of(text, plan=plan)
        for blob, other in zip(fresh.param_table.params, changing.param_table.params, strict=True):
            blob.data[...] = other.cpu_data
        for mine, other in zip(fresh.layers, changing.layers, strict=True):
            if (state := other.get_state()) is not None:
                mine.set_state(state)
        for i, (found, wanted) in enumerate(zip(passes(changing, seed), passes(fresh, seed), strict=True)):
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4 * max(1e-3, np.abs(wanted).max(initial=0)),
                                       err_msg=f"number {i} on {mode}, run {seed}")
        found, wanted = ([{key: row[key] for key in ("direction", "layers", "part_of", "reads", "writes", "updates")} for row in net.schedule().as_dict()["rows"]]
                         for net in (changing, fresh))
        assert found == wanted, f"schedule on {mode}, run {seed}"


def test_feed_of_host_and_device():
    """An array of the host is sent while the device computes; a blob whose values are on the device is copied there."""
    minicaffe.set_mode_gpu()
    net = make_net(layer_text("Input", "data", more="input_param { shape { dim: 2 dim: 3 } }")
                   + layer_text("Power", "y", "data", more="power_param { scale: 2 }"))
    values, blob = np.arange(6.0).reshape(2, 3), Blob((2, 3))
    blob.data[...] = 30
    blob.data_memory.mutable_gpu_data()
    for given, wanted in ((values, 2 * values), (values + 1, 2 * values + 2), (blob, np.full((2, 3), 60))):
        net.feed(data=given)
        net.forward_from_to(0, 1)
        np.testing.assert_array_equal(net.blob_by_name("y").cpu_data, wanted)
