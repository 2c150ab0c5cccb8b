"""Fillers: distributions by their moments, the same numbers for the same seed, and every refusal."""

import numpy as np
import pytest

from minicaffe.blob import Blob, Dtype
from minicaffe.common import Generator
from minicaffe.device.threads import set_num_threads
from minicaffe.errors import ConfigError
from minicaffe.filler import fill
from minicaffe.proto import caffe_pb2


def filled(shape, dtype=Dtype.FLOAT, seed=1, **fields):
    blob = Blob(shape, dtype)
    fill(blob, caffe_pb2.FillerParameter(**fields), Generator(seed))
    return blob.data


def check_moments(values, mean, std):
    """Mean within five standard errors and deviation within 2 %."""
    assert abs(values.mean() - mean) < 5 * std / np.sqrt(values.size)
    assert abs(values.std() - std) < 0.02 * std


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
def test_uniform(dtype):
    values = filled((200, 300), dtype, type="uniform", min=-3, max=5)
    check_moments(values, 1, 8 / np.sqrt(12))
    assert values.min() >= -3 and values.max() < 5
    assert len(np.unique(values)) > 59_000
    assert (filled((2, 3), dtype, type="uniform", min=2, max=2) == 2).all()


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
def test_gaussian(dtype):
    values = filled((200, 300), dtype, type="gaussian", mean=2, std=0.5)
    check_moments(values, 2, 0.5)
    assert abs(((values - 2) ** 4).mean() / 0.5**4 - 3) < 0.1  # kurtosis of a normal distribution
    for sparse in (0, 15, 100):
        values = filled((100, 600), dtype, type="gaussian", std=1, sparse=sparse)
        assert abs((values != 0).mean() - sparse / 100) < 0.01


@pytest.mark.parametrize("norm, fan", [("FAN_IN", 75), ("FAN_OUT", 25 * 200), ("AVERAGE", (75 + 5000) / 2)])
def test_xavier_and_msra(norm, fan):
    norm = caffe_pb2.FillerParameter.VarianceNorm.Value(norm)
    values = filled((200, 3, 5, 5), type="xavier", variance_norm=norm)
    bound = np.sqrt(3 / fan)
    check_moments(values, 0, bound / np.sqrt(3))
    assert abs(values).max() <= bound
    check_moments(filled((200, 3, 5, 5), type="msra", variance_norm=norm), 0, np.sqrt(2 / fan))
    values = abs(filled((7,), type="xavier", variance_norm=caffe_pb2.FillerParameter.FAN_OUT))    # one axis is that of the outputs
    assert (values < np.sqrt(3 / 7)).all() and values.max() > np.sqrt(3 / 7) / 3


def test_constant_unitball_and_bilinear():
    assert (filled((3, 4), value=2.5) == 2.5).all() and not filled((3, 4)).any()
    values = filled((7, 50), type="positive_unitball")
    assert (values >= 0).all()
    np.testing.assert_allclose(values.sum(axis=1), 1, rtol=1e-5)
    for line in [0.5, 1, 0.5], [0.25, 0.75, 0.75, 0.25]:
        size = len(line)
        np.testing.assert_allclose(filled((2, 1, size, size), type="bilinear"), np.broadcast_to(np.outer(line, line), (2, 1, size, size)))


def test_numbers_of_the_generator():
    set_num_threads(1)
    one = filled((300, 300), type="gaussian", seed=3)
    set_num_threads(3)
    np.testing.assert_array_equal(one, filled((300, 300), type="gaussian", seed=3))
    assert (one != filled((300, 300), type="gaussian", seed=4)).mean() > 0.99
    generator = Generator(5)
    a, b = Blob((1000,)), Blob((1000,))
    fill(a, caffe_pb2.FillerParameter(type="uniform"), generator)
    fill(b, caffe_pb2.FillerParameter(type="uniform"), generator)
    assert generator.offset == 2000 and (a.data != b.data).mean() > 0.99
    # Counter 0 and key 0 give 6627e8d5 e169c58d bc57ac4c 9b00dbd8 (Random123's known-answer file)
    value = filled((1,), Dtype.DOUBLE, seed=0, type="uniform")[0]
    assert value == (0x6627E8D5 >> 8) / 2**24


@pytest.mark.parametrize("shape, fields, words", [
    ((2,), {"type": "gaus"}, "unknown filler 'gaus'"),
    ((0, 3), {}, "empty blob"),
    ((2,), {"type": "uniform", "min": 2, "max": 1}, "at most max"),
    ((2,), {"type": "gaussian", "std": 0}, "more than 0"),
    ((2, 2), {"type": "gaussian", "sparse": 3}, "number of outputs 2"),
    ((2, 2), {"type": "xavier", "sparse": 1}, "only the gaussian"),
    ((2, 2), {"type": "bilinear"}, "4 axes"),
    ((1, 1, 2, 3), {"type": "bilinear"}, "square in the last two"),
    ((), {"type": "xavier"}, "needs a blob with an axis"),
])
def test_refusals(shape, fields, words):
    with pytest.raises(ConfigError, match=words):
        filled(shape, **fields)


@pytest.mark.parametrize(("field", "behind"), [("", ""), ("inner_product_param.weight_filler", "inner_product_param.weight_filler.")])
def test_fields_of_errors(field, behind):
    for fields, name in ({"type": "gaussian", "std": 0}, "std"), ({"type": "uniform", "min": 2, "max": 1}, "min"), ({"type": "none"}, "type"):
        with pytest.raises(ConfigError) as raised:
            fill(Blob((2,)), caffe_pb2.FillerParameter(**fields), Generator(1), field)
        assert raised.value.field == behind + name
    with pytest.raises(ConfigError, match="cannot fill an empty blob") as raised:
        fill(Blob((0,)), caffe_pb2.FillerParameter(), Generator(1), field)
    assert raised.value.field == (field or None)
