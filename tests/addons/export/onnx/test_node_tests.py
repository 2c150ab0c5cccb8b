"""The node tests of the package onnx: an import gives the stored outputs, or an error that names the node."""

import warnings

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="no package onnx: pip install -r tests/requirements.txt")
pytest.importorskip("onnxruntime", reason="no package onnxruntime: pip install -r tests/requirements.txt")

from pathlib import Path  # noqa: E402

from onnx import numpy_helper  # noqa: E402

from minicaffe import errors  # noqa: E402
from minicaffe.addons.export.exporting import run_net  # noqa: E402
from minicaffe.addons.export.onnx import load  # noqa: E402

STORED = sorted(path for folder in ("pytorch-operator", "simple") for path in (Path(onnx.__file__).parent / "backend/test/data" / folder).iterdir())
TIES = "ArgMax takes the last of equal maxima, which a warning says"
DIFFERS = {"test_argmax_keepdims_example": TIES, "test_argmax_negative_axis_keepdims_example": TIES, "test_argmax_no_keepdims_example": TIES,
           "test_resize_downsample_scales_linear_align_corners": "onnxruntime differs, too: its last place of a size of 2.4 is the last value's"}


def array_of(value):
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def imported(tmp_path, model, inputs, outputs, alone):
    """Return the Net with all inputs, or the first of float32 alone and constants for the others; None if it is refused."""
    held = {tensor.name for tensor in model.graph.initializer}
    names = [info.name for info in model.graph.input if info.name not in held]
    values = dict(zip(names, map(array_of, inputs)))
    floats = [name for name in names if isinstance(values.get(name), np.ndarray) and values[name].dtype == np.float32]
    kept = floats[:1] if alone else names
    model.graph.initializer.extend(numpy_helper.from_array(values[name], name) for name in names
                                   if name not in kept and isinstance(values.get(name), np.ndarray))
    onnx.save(model, tmp_path / "a.onnx")
    try:
        net = load(tmp_path / "a.onnx", check=False).net
    except errors.Error as error:
        assert "its importer has a fault" not in str(error) and "a.onnx" in str(error)
        return False
    found = run_net(net, {name: values[name] for name in kept})
    assert {info.name for info in model.graph.output} <= {blob.name for blob in net.output_blobs}
    for info, value in zip(model.graph.output, map(array_of, outputs)):
        assert found[info.name].shape == value.shape
        np.testing.assert_allclose(found[info.name], value, 1e-3, 1e-5)
    return True


@pytest.mark.parametrize("folder", STORED, ids=lambda folder: folder.name)
def test_stored_model(tmp_path, folder):
    def arrays(kind):
        paths = sorted((folder / "test_data_set_0").glob(f"{kind}_*.pb"), key=lambda path: int(path.stem.split("_")[1]))
        try:
            return [numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes())) for path in paths]
        except Exception:       # a sequence
            return [None] * len(paths)
    for alone in False, True:
        imported(tmp_path, onnx.load(folder / "model.onnx"), arrays("input"), arrays("output"), alone)


@pytest.mark.slow(30)
def test_node_tests(tmp_path):
    warnings.simplefilter("ignore")
    from onnx.backend.test.case.node import collect_testcases
    right = 0
    for case in collect_testcases(None):
        for alone in False, True:
            model = onnx.ModelProto()
            model.CopyFrom(case.model)
            if case.name not in DIFFERS:
                right += imported(tmp_path, model, *case.data_sets[0], alone)
    assert right > 530
