"""Why something was copied: Caffe's own example, layers, updates, engines' layouts."""

import numpy as np
import pytest
from small_net import NET, recorded

import minicaffe
from minicaffe.addons import trace
from minicaffe.blob import Blob
from minicaffe.errors import ConfigError, WrongTypeError
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2, text

on_device = pytest.mark.parametrize("where", ["sim"], indirect=True)      # nothing is copied without one


def copies(made):
    return [(number, event) for number, event in enumerate(made.events) if event.kind == "copy"]


@on_device
def test_the_example_of_caffes_tutorial(where):
    """docs/tutorial/net_layer_blob.md of Caffe: foo and bar are const and mutable accesses; its comments say what is copied."""
    blob = Blob((4,), name="blob")
    blob.data[...] = 1          # the data is on the CPU initially
    data = blob.data_memory
    calls = [
        (data.gpu_data, "host to device"),      # data copied cpu->gpu
        (data.cpu_data, None),                  # no data copied since both have up-to-date contents
        (data.mutable_gpu_data, None),          # no data copied
        (data.mutable_gpu_data, None),          # no data copied when we are still on GPU
        (data.cpu_data, "device to host"),      # data copied gpu->cpu, since the gpu side has modified the data
        (data.gpu_data, None),                  # no data copied since both have up-to-date contents
        (data.mutable_cpu_data, None),          # still no data copied
        (data.mutable_gpu_data, "host to device"),      # data copied cpu->gpu
        (data.mutable_cpu_data, "device to host"),      # data copied gpu->cpu
    ]
    lengths = []
    with trace.record() as made:
        for call, _ in calls:
            before = data.copies
            call()
            lengths.append(data.copies - before)
    assert lengths == [int(copied is not None) for _, copied in calls]
    found = copies(made)
    assert [event.detail for _, event in found] == [copied for _, copied in calls if copied]
    assert all(event.nbytes == 16 and event.name == "blob data" and event.took > 0 for _, event in found)
    heads = [event.detail.rpartition(" by ")[0] for event in made.events if event.kind == "head"]
    assert heads == ["HEAD_AT_CPU -> SYNCED", "SYNCED -> HEAD_AT_GPU", "HEAD_AT_GPU -> SYNCED", "SYNCED -> HEAD_AT_CPU",
                     "HEAD_AT_CPU -> HEAD_AT_GPU", "HEAD_AT_GPU -> HEAD_AT_CPU"]
    said = [trace.why(made, number) for number, _ in found]
    assert said[0] == ("blob was copied from host to device (16 bytes): your code accessed it on the device (gpu_data). It was "
                       "written before the record began. Its head was HEAD_AT_CPU, only the host's side is valid; since then it is "
                       "SYNCED, host and device hold the same.")
    assert "It was written last on the device, by a call of mutable_gpu_data." in said[1]
    assert "accessed it on the host (mutable_cpu_data)" in said[3]
    assert made.document["why"] == {str(number): text for (number, _), text in zip(found, said)}
    assert made.at(0).heads == {"blob data": "HEAD_AT_CPU"} and made.at(len(made)).heads == {"blob data": "HEAD_AT_CPU"}
    for number in (-1, len(made)):
        with pytest.raises(ConfigError, match=rf"number: must be from 0 to {len(made) - 1}, got {number}"):
            trace.why(made, number)
    with pytest.raises(WrongTypeError, match="not a copy"):
        trace.why(made, next(number for number, event in enumerate(made.events) if event.kind == "head"))


@on_device
def test_writers_and_readers_of_copies(where, make_solver):
    solver = make_solver()
    with trace.record(solver) as made:
        solver.step(2)
        solver.net.blobs["ip"].data.sum()
        np.sum(solver.net.param_table.params[0].data)
    said = {(event.name, event.detail): trace.why(made, number) for number, event in copies(made)}
    assert "layer conv (forward) accessed it on the device" in said["data data", "host to device"]
    assert "It was written last by layer in (forward)" in said["data data", "host to device"]
    assert "It was written last by layer loss (forward)." in said["loss data", "device to host"]
    assert "what runs between layer loss (forward) and layer loss (backward) accessed" in said["loss data", "device to host"]
    assert "It was written last by layer ip (forward)" in said["ip data", "device to host"]
    assert "It was written last by the solver's update in iteration 1." in said["conv[0] data", "device to host"]
    more = f'layer {{ name: "kept" type: "Python" bottom: "ip" top: "ip" python_param {{ module: "{__name__}" layer: "Kept" }} }}\n'
    solver, made = recorded(make_solver(NET.replace('layer { name: "loss"', more + 'layer { name: "loss"')))
    said = next(trace.why(made, number) for number, event in copies(made)
                if (event.name, event.detail) == ("ip data", "device to host"))
    assert "layer kept (forward) accessed it on the host" in said and "It was written last by layer ip (forward)." in said


@on_device
def test_copy_from_another_memory(where):
    """What the copy replaces, here nothing, is not its source."""
    source, target, zeros = (Blob((4,), name=name) for name in ("source", "target", "zeros"))
    source.data[...] = 1
    source.gpu_data     # noqa: B018  (on the device)
    with trace.record() as made:
        target.copy_from(source)
        target.copy_from(source)
        zeros.gpu_data, zeros.cpu_data      # noqa: B018
    first, second, third = (trace.why(made, number) for number, _ in copies(made))
    assert first == second == "target was copied from another memory, device to device (16 bytes), by your code."
    assert "It was written last on the device, by a call of gpu_data. Its head was HEAD_AT_GPU" in third


class Kept(minicaffe.Layer):
    """Writes what it reads, in place, on the host."""

    def reshape(self, bottom, top):
        pass

    def forward(self, bottom, top):
        top[0].data[...] = bottom[0].data

    def backward(self, top, propagate_down, bottom):
        pass


def test_reorders(onednn):
    onednn(True)
    param, _ = text.parse_text("""layer { name: "in" type: "Input" top: "data" input_param { shape { dim: 2 dim: 16 dim: 20 dim: 20 } } }
      layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 16 kernel_size: 3
        weight_filler { type: "xavier" } } }""", caffe_pb2.NetParameter)
    net = Net(param)
    with trace.record(net) as made:
        net.forward_from_to(0, 1)
        net.blobs["conv"].data.sum()
    number = next(i for i, event in enumerate(made.events) if event.kind == "reorder" and event.name == "conv data")
    assert made.events[number].detail.endswith(" to plain") and made.events[number].took > 0
    assert "reordered from" in trace.why(made, number) and "It was written last by layer conv (forward)." in trace.why(made, number)
