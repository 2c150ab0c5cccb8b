"""Every public name of BVLC's pycaffe, the graph of caffe.draw excepted, and of SSD's additions: it exists, it is what it should be, and docs/api.md has it."""

import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import scan_names

import minicaffe as caffe

ROOT = Path(__file__).resolve().parents[2]
CALLABLE = {
    "caffe": """Net SGDSolver NesterovSolver AdaGradSolver RMSPropSolver AdaDeltaSolver AdamSolver Timer init_log log set_mode_cpu
        set_mode_gpu set_device Layer get_solver layer_type_list set_random_seed solver_count set_solver_count solver_rank set_solver_rank
        set_multiprocess Classifier Detector NetSpec to_proto""",
    "caffe._caffe": """Net Blob Layer Solver SGDSolver NesterovSolver AdaGradSolver RMSPropSolver AdaDeltaSolver AdamSolver Timer
        LayerParameter SolverParameter init_log log set_mode_cpu
        set_mode_gpu set_device set_random_seed set_multiprocess layer_type_list get_solver solver_count set_solver_count solver_rank
        set_solver_rank""",
    "caffe.pycaffe": "Net SGDSolver NesterovSolver AdaGradSolver RMSPropSolver AdaDeltaSolver AdamSolver Timer",
    "caffe.io": """blobproto_to_array array_to_blobproto arraylist_to_blobprotovector_str blobprotovector_str_to_arraylist array_to_datum
        datum_to_array load_image resize_image oversample Transformer""",
    "caffe.net_spec": "param_name_dict to_proto assign_proto Top Function NetSpec Layers Parameters",
    "caffe.classifier": "Classifier", "caffe.detector": "Detector",
    "caffe.draw": "draw_net_to_file draw_net get_layer_lr_mult",
    "caffe.coord_map": """conv_params crop_params coord_map compose inverse coord_map_from_to crop UndefinedMapException
        AxisMismatchException""",
    "caffe.proto.caffe_pb2": "NetParameter LayerParameter SolverParameter BlobProto BlobProtoVector Datum V1LayerParameter NetState",
    "caffe.model_libs": """check_if_exist make_if_not_exist UnpackVariable ConvBNLayer CreateAnnotatedDataLayer VGGNetBody
        CreateMultiBoxHead""",
}
VALUES = {"caffe": {"TRAIN": 0, "TEST": 1, "__version__": caffe.__version__, "io": caffe.io, "layers": caffe.layers, "params": caffe.params},
          "caffe.net_spec": {"layers": caffe.layers, "params": caffe.params}}
MEMBERS = {
    "Net": """blobs blob_loss_weights params layers layer_dict inputs outputs top_names bottom_names _layer_names _blob_names _blobs
        _inputs _outputs _blob_loss_weights _top_ids _bottom_ids forward backward forward_all forward_backward_all _batch set_input_arrays
        _forward _backward reshape copy_from share_with save save_hdf5 load_hdf5 clear_param_diffs before_forward after_forward
        before_backward after_backward""",
    "Blob": "data diff shape num channels height width count reshape",
    "SGDSolver": "net test_nets iter step solve restore snapshot apply_update share_weights add_callback param lr",
    "Layer": "blobs type phase setup reshape forward backward param_str",
    "Timer": "start stop ms", "Classifier": "predict transformer crop_dims image_dims",
    "Detector": "detect_windows detect_selective_search crop configure_crop",
    "Transformer": "preprocess deprocess set_transpose set_channel_swap set_raw_scale set_mean set_input_scale",
    "NetSpec": "tops keys to_proto update", "Top": "fn n to_proto update", "Function": "type_name inputs params ntop in_place tops update",
    "LayerBlobs": "add_blob", "SolverParameter": "max_iter display layer_wise_reduce base_lr",
}
PAIRS = [(module, name) for module, names in CALLABLE.items() for name in names.split()]


def module_of(name):
    return importlib.import_module(name.replace("caffe", "minicaffe", 1)) if name != "caffe.proto.caffe_pb2" else caffe.proto.caffe_pb2


@pytest.mark.parametrize("module", CALLABLE)
def test_callables(module):
    assert [name for name in CALLABLE[module].split() if not callable(getattr(module_of(module), name))] == []


def test_values_and_members(objects):
    for module, values in VALUES.items():
        assert {name: getattr(module_of(module), name) for name in values} == values
    assert not [(owner, name) for owner, names in MEMBERS.items() for name in names.split() if not hasattr(objects[owner], name)]
    words = set(re.findall(r"\w+", (ROOT / "docs" / "api.md").read_text()))
    names = {name for _, name in PAIRS} | {name for names in VALUES.values() for name in names}
    names |= {name for members in MEMBERS.values() for name in members.split()} | {module.rpartition(".")[2] for module in CALLABLE}
    assert not (names | {"_gpu_data_ptr", "_gpu_diff_ptr"}) - words


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    folder = tmp_path_factory.mktemp("names")
    (folder / "net.prototxt").write_text("""
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: [1, 3, 2, 2] } } }
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc" inner_product_param { num_output: 2 } }
layer { name: "loss" type: "EuclideanLoss" bottom: "fc" bottom: "fc" top: "loss" }""")
    (folder / "solver.prototxt").write_text(f'net: "{folder}/net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 1')
    net, solver = caffe.Net(str(folder / "net.prototxt"), caffe.TEST), caffe.SGDSolver(str(folder / "solver.prototxt"))
    net.save(str(folder / "net.caffemodel"))
    files = str(folder / "net.prototxt"), str(folder / "net.caffemodel")
    n = caffe.NetSpec()
    n.x = caffe.layers.Input()
    layer = caffe.Layer(caffe.proto.caffe_pb2.LayerParameter(type="Python"))
    return {"Net": net, "Blob": net.blobs["data"], "SGDSolver": solver, "Layer": layer, "Timer": caffe.Timer(),
            "Classifier": caffe.Classifier(*files), "Detector": caffe.Detector(*files), "NetSpec": n, "Top": n.x, "Function": n.x.fn,
            "Transformer": caffe.io.Transformer({}), "LayerBlobs": layer.blobs, "SolverParameter": solver.param}


def test_addresses_on_the_device(monkeypatch):
    monkeypatch.setenv("MINICAFFE_DEVICE", "sim")
    blob = caffe._caffe.Blob((2, 3))
    caffe.set_mode_gpu()
    for name, array in (("_gpu_data_ptr", "gpu_data"), ("_gpu_diff_ptr", "gpu_diff")):
        address = getattr(blob, name)
        assert isinstance(address, int) and address == getattr(blob, array).address


@pytest.fixture
def scan(capsys):
    """Return a function that runs tools/scan_names.py in this process."""
    def run(*paths):
        status = scan_names.main(list(map(str, paths)))
        return SimpleNamespace(returncode=status, **capsys.readouterr()._asdict())
    return run


def test_names_of_the_scripts():
    done = subprocess.run([sys.executable, scan_names.__file__, ROOT / "tests" / "scripts"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and re.search(r"\d+ with caffe, \d{2,} names: 0 missing", done.stdout), done.stdout


PROGRAM = """import caffe, numpy as np
import caffe.draw as d
from caffe import layers as L, params as P, nothing
from caffe.io import load_image as load, gone
from caffe.proto import caffe_pb2 as pb
net = caffe.Net('x', caffe.TEST)
net.blobs, caffe.no_such.thing, d.draw_net, d.lost, L.Anything, P.Pooling.MAX, pb.NetParameter, pb.Unknown, np.absent
caffe.io.skimage.io.imread('x')
caffe.model_libs.VGGNetBody, caffe.Net.forward, caffe.Net.fly
"""


def test_scan(tmp_path, scan):
    (tmp_path / "a.py").write_text(PROGRAM)
    done = scan(tmp_path)
    lines = [line.removeprefix(f"{tmp_path}/").partition(": missing")[0] for line in done.out.splitlines()]
    assert done.returncode == 1 and lines[:-2] + lines[-2:-1] == [
        "a.py:3: caffe.nothing", "a.py:4: caffe.io.gone", "a.py:7: caffe.draw.lost", "a.py:7: caffe.no_such.thing", "a.py:7: caffe.proto.caffe_pb2.Unknown",
        "a.py:8: caffe.io.skimage.io.imread: left out: scikit-image, which caffe.io imported; write import skimage", "a.py:9: caffe.Net.fly"]
    assert lines[-1].startswith("1 files, 1 with caffe") and lines[-1].endswith("6 missing, 1 left out with a reason")


def test_scan_of_other_files(tmp_path, scan):
    (tmp_path / "a.ipynb").write_text('{"cells": [{"cell_type": "code", "source": ["%matplotlib inline\\n", "import caffe as c\\n"]}, '
                                      '{"cell_type": "markdown", "source": ["c.what"]}, {"cell_type": "code", "source": "c.absent()"}]}')
    (tmp_path / "b.py").write_text("import caffe\nprint caffe.TEST, caffe.missing.x\n")
    (tmp_path / "c.ipynb").write_text("no notebook")
    done = scan(tmp_path)
    assert done.returncode == 1 and "a.ipynb:cell 3:1: caffe.absent: missing: caffe has no absent" in done.out
    assert "b.py:2: caffe.missing.x: missing: caffe has no missing" in done.out and "2 missing, 0 left out" in done.out
    assert "b.py: is no Python 3, searched by pattern" in done.err and "c.ipynb: cannot be read, left out" in done.err
    assert (scan(tmp_path / "none").returncode, scan(tmp_path / "a.ipynb", tmp_path / "empty").returncode) == (2, 2)
    (tmp_path / "empty").mkdir()
    assert "no .py or .ipynb file there" in scan(tmp_path / "empty").err
