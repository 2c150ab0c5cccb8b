"""caffe.io: messages and arrays both ways, crops, and the Transformer's steps in order."""

import numpy as np
import pytest

from minicaffe import io
from minicaffe.errors import ConfigError, ShapeError
from minicaffe.proto import caffe_pb2


def test_blobs_both_ways():
    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3), np.float32(7).reshape(())]
    back = io.blobprotovector_str_to_arraylist(io.arraylist_to_blobprotovector_str(arrays))
    for array, other in zip(arrays, back):
        assert array.shape == other.shape
        np.testing.assert_array_equal(array, other)
    legacy = caffe_pb2.BlobProto(num=1, channels=2, height=1, width=3, data=range(6))
    assert io.blobproto_to_array(legacy).shape == (1, 2, 1, 3)
    with pytest.raises(ShapeError, match="100 values"):
        io.blobproto_to_array(caffe_pb2.BlobProto(data=[0] * 100))


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_datum_both_ways(dtype):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    datum = io.array_to_datum(array, 5)
    assert datum.label == 5 and bool(datum.data) == (dtype == np.uint8)
    np.testing.assert_array_equal(io.datum_to_array(datum), array)
    with pytest.raises(ShapeError, match="channels, height, width"):
        io.array_to_datum(array[0])


def test_oversample_gives_corners_centre_and_mirrors():
    image = np.arange(5 * 7, dtype=np.float32).reshape(5, 7, 1)
    crops = io.oversample([image], (3, 3))
    assert crops.shape == (10, 3, 3, 1)
    np.testing.assert_array_equal(crops[3], image[2:, 4:])
    np.testing.assert_array_equal(crops[4], image[1:4, 2:5])
    np.testing.assert_array_equal(crops[5:], crops[:5, :, ::-1])
    with pytest.raises(ShapeError, match="do not fit"):
        io.oversample([image], (6, 3))


def test_transformer_there_and_back():
    image = np.random.default_rng(0).random((4, 5, 3)).astype(np.float32)
    before = image.copy()
    transformer = io.Transformer({"data": (1, 3, 4, 5)})
    transformer.set_transpose("data", (2, 0, 1))
    transformer.set_channel_swap("data", (2, 0, 1))
    transformer.set_raw_scale("data", 255)
    transformer.set_mean("data", np.array([104.0, 117, 123]))
    transformer.set_input_scale("data", 0.5)
    made = transformer.preprocess("data", image)
    want = (image.transpose(2, 0, 1)[[2, 0, 1]] * 255 - np.array([104, 117, 123]).reshape(3, 1, 1)) * 0.5
    np.testing.assert_allclose(made, want, rtol=1e-5)
    np.testing.assert_array_equal(image, before)
    np.testing.assert_allclose(transformer.deprocess("data", made), image, atol=1e-5)
    with pytest.raises(ConfigError, match="not one of the inputs"):
        transformer.preprocess("other", image)
    with pytest.raises(ShapeError, match="3 channels"):
        transformer.set_mean("data", np.zeros(2))
