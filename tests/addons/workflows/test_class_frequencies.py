"""Weights of ``train --class-weights auto``: by frequencies of labels, which are counted only where a record has one label."""

from types import SimpleNamespace

import numpy as np
import pytest

from minicaffe.addons.workflows.class_weights import count_labels, inverse_frequencies
from minicaffe.errors import ConfigError
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text


@pytest.mark.parametrize("seed", range(20))
def test_inverse_frequencies(seed):
    """The mean over the records is 1."""
    counts = np.random.default_rng(seed).integers(0, 5, 6)
    counts[seed % 6] += 1
    found = inverse_frequencies(counts)
    assert (found * counts).sum() == pytest.approx(counts.sum()) and ((found > 0) == (counts > 0)).all()
    products = [weight * count for weight, count in zip(found, counts, strict=True) if count]
    assert products == pytest.approx([products[0]] * len(products))


@pytest.mark.parametrize("kind, fields, maker", [
    ("Data", "data_param { label_size: 2 }", "Data with label_size"), ("Data", "data_param { label_size: 1 }", "Data with label_size"),
    ("ImageData", "image_data_param { label_size: 2 }", "ImageData with label_size"), ("HDF5Data", "", "HDF5Data"), (None, "", "no data layer")])
def test_labels_that_are_not_counted(kind, fields, maker):
    source = kind and SimpleNamespace(param=parse_text(f'name: "d" type: "{kind}" {fields}', caffe_pb2.LayerParameter)[0])
    with pytest.raises(ConfigError, match=f"counts the labels of Data or ImageData, and {maker} makes 'label'; give a file with a weight"):
        count_labels(source, "label")
