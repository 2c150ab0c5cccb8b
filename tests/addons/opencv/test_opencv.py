"""OpenCV 4 reads the files that minicaffe writes and computes the same; minicaffe reads the caffemodels that OpenCV writes."""

import numpy as np
import opencv_table
import pytest

import minicaffe as caffe
from minicaffe.proto.binary import read_net

pytestmark = pytest.mark.slow(8)    # all together

SLIM = ("alexnet", "caffenet", "fcn", "vgg16")  # the table of docs/opencv_models.md has them in full width
# ResNet-50 with random weights multiplies rounding: in double precision OpenCV is off by 7e-5, minicaffe by 2e-5.
TOLERANCE = {"resnet50/deploy": 3e-4}
# Models and layers that OpenCV 4 cannot read, and what it says.
REFUSED = {
    "lstm_text/deploy": "Embed", "ArgMax, axis 1": "ArgMax", "Bias": "Bias", "Clip": "Clip", "Reduction, MEAN": "Reduction", "SPP": "SPP",
    "Threshold": "Threshold", "Tile": "Tile: repeats", "PReLU, shared": "0 <= d",  # its one slope is a scalar, a blob without axes
    "Pooling, rounded down": "kernel",  # OpenCV's Caffe has no round_mode
}
# What OpenCV 4 reads and computes otherwise than Caffe: it does not look at `transpose`, nor at base, scale and shift of Log.
DIFFERENT = ["InnerProduct, transposed", "Log"]


@pytest.fixture(scope="module")
def cv2():
    """OpenCV with its Caffe importer, which version 5 dropped."""
    module = pytest.importorskip("cv2", reason="OpenCV is not installed")
    if not hasattr(module.dnn, "readNetFromCaffe"):
        pytest.skip(f'OpenCV {module.__version__} has no Caffe importer; pip install "opencv-python-headless<5"')
    return module


@pytest.fixture(autouse=True)
def computes_on_the_cpu(on_cpu):
    """OpenCV computes on the CPU, so a difference is one of the files, not of the device."""


def check(cv2, name, param, folder):
    """Compare a net; where the lists above have it, their reason must hold still, else they and the table in docs/ are old."""
    row = opencv_table.compare(cv2, name, param, folder)
    if name in REFUSED:
        assert row.difference is None and REFUSED[name] in row.error
    else:
        assert not row.error
        assert (row.difference <= TOLERANCE.get(name, opencv_table.LARGEST)) == (name not in DIFFERENT)
    assert row.half <= 0.1  # 16 bits are right to 0.0005 of a weight; nets without trained weights multiply that


@pytest.mark.parametrize("model", list(opencv_table.deploy_nets()))
def test_model(cv2, model, tmp_path):
    param = opencv_table.model_net(model)
    check(cv2, model, opencv_table.slim(param) if model.startswith(SLIM) else param, tmp_path)


@pytest.mark.parametrize("layer", list(opencv_table.LAYERS))
def test_layer(cv2, layer, tmp_path):
    check(cv2, layer, opencv_table.layer_net(layer), tmp_path)


def test_half_precision_weights_of_opencv(cv2, tmp_path):
    net = opencv_table.filled(opencv_table.model_net("lenet/deploy"))
    net.save(tmp_path / "a.caffemodel")
    before = {name: [blob.cpu_data.copy() for blob in blobs] for name, blobs in net.params.items()}
    cv2.dnn.shrinkCaffeModel(str(tmp_path / "a.caffemodel"), str(tmp_path / "b.caffemodel"))
    assert (tmp_path / "b.caffemodel").stat().st_size < 0.51 * (tmp_path / "a.caffemodel").stat().st_size
    _, layers = read_net(tmp_path / "b.caffemodel")
    assert {blob.data.dtype for layer in layers for blob in layer.blobs} == {np.dtype(np.float32)}
    net.copy_from(tmp_path / "b.caffemodel")
    for name, blobs in before.items():
        for now, then in zip(net.params[name], blobs):
            np.testing.assert_array_equal(now.cpu_data, then.astype(np.float16))
    with open(tmp_path / "b.caffemodel", "rb") as file:
        content = bytearray(file.read())
    place = content.index(b"\x50\x02\x62")  # raw_data_type: FLOAT16, then raw_data
    content[place + 1] = 3
    (tmp_path / "c.caffemodel").write_bytes(content)
    with pytest.raises(caffe.errors.DataError, match="layer 'conv1'.*: blobs.0.: has raw_data of type 3") as error:
        net.copy_from(tmp_path / "c.caffemodel")
    assert "c.caffemodel" in str(error.value)


def test_the_page_is_the_tools():
    path = opencv_table.ROOT / "docs" / "opencv_models.md"
    rows = [line.split(" | ") for line in path.read_text().splitlines() if line.startswith("| ") and not line.startswith("| net ")]
    assert [row[0].removeprefix("| ") for row in rows] == [*opencv_table.deploy_nets(), *opencv_table.LAYERS]
    assert all(bool(row[2]) != bool(row[4].rstrip("| ")) for row in rows)
    row = opencv_table.Row("x", 1e-6, 2e-4)
    assert "| x | yes | 1.0e-06 | 2.0e-04 |" in opencv_table.page("4.14", [row], [opencv_table.Row("y", error="bad")])
