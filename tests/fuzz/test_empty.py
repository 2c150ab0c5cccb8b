"""Blobs without elements: no layer divides by a size that is 0. Each seed net runs with each dimension of its inputs set to 0."""

import subprocess
import sys
from pathlib import Path

import pytest

NETS = Path(__file__).resolve().parent / "nets"
SSD = {
    "Normalize": "", "Permute": "permute_param { order: 0 order: 2 order: 1 order: 3 }",
    "PriorBox": "prior_box_param { min_size: 4 img_size: 16 }", "SmoothL1Loss": "",
}
RUN = """
import itertools, logging, sys
from pathlib import Path
import minicaffe
from minicaffe.errors import Error
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text

nets, device = sys.argv[1:]
logging.disable()
if device != "cpu":
    minicaffe.set_mode_gpu()
texts = {path.stem: path.read_text() for path in sorted(Path(nets).glob("*.prototxt")) if not path.stem.startswith("old")}
for kind, param in %r.items():
    bottoms = 'bottom: "x" bottom: "x"' if kind.endswith("Loss") else 'bottom: "x"'
    texts[kind] = ('layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 4 dim: 6 dim: 5 } } }'
                   'layer { name: "y" type: "' + kind + '" ' + bottoms + ' top: "y" ' + param + ' }')
cases = 0
for name, text in texts.items():
    whole, _ = parse_text(text, caffe_pb2.NetParameter)
    source = whole.layer[0]
    shapes = source.dummy_data_param.shape or source.input_param.shape
    given = caffe_pb2.LayerParameter(name="in", type="Input", top=source.top)
    given.input_param.shape.extend(shapes)
    # One input, or all of them, since some must agree.
    emptied = [([i], axis) for i, shape in enumerate(shapes) for axis in range(len(shape.dim))]
    emptied += [(range(len(shapes)), axis) for axis in range(max((len(shape.dim) for shape in shapes), default=0))]
    emptied.append((range(len(shapes)), "none"))  # no shape at all
    for (which, axis), phase in itertools.product(emptied, (0, 1)):
        param = caffe_pb2.NetParameter(force_backward=True, layer=[given, *whole.layer[1:]])
        param.state.phase = phase
        if axis == "none":
            param.layer[0].ClearField("input_param")
        for i in which:
            if axis != "none" and axis < len(shapes[i].dim):
                param.layer[0].input_param.shape[i].dim[axis] = 0
        print(name, "inputs", list(which), "axis", axis, "phase", phase, flush=True)
        try:
            net = Net(param)
            net.forward_from_to(0, len(net.layers) - 1)
            net.backward_from_to(len(net.layers) - 1, 0)
        except Error:
            pass    # what may not be empty says so
        cases += 1
print(cases, "cases")
"""


@pytest.mark.slow(2)
def test_each_dimension_0(device, tmp_path):
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", RUN % SSD, str(NETS), device], cwd=tmp_path, capture_output=True,
                          text=True, timeout=300)  # fmt: skip
    last = done.stdout.splitlines()[-1:]
    assert done.returncode == 0, f"{last}: {done.stderr[-3000:]}"
    assert int(last[0].split()[0]) > 200
