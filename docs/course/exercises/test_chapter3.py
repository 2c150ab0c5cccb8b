"""Checks the answers of chapter3.py, the last against a real workspace."""

import pytest
from chapter3 import find, new_parameters, renew

import minicaffe as caffe

NET = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 5 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 2 } }
layer { name: "ip2" type: "InnerProduct" bottom: "ip" top: "ip2" inner_product_param { num_output: %d } }
"""


def test_find():
    inner, outer, outermost = {"a": 1}, {"a": 2, "b": 3}, {"c": 0}
    assert [find(name, [inner, outer, outermost]) for name in "abc"] == [1, 3, 0]
    assert find("a", [outer, inner]) == 2
    with pytest.raises(KeyError):
        find("d", [inner, outer, outermost])


def test_new_parameters():
    there = {"ip[0]": (2, 5), "ip[1]": (2,)}
    assert new_parameters({"ip[0]": (2, 5), "ip2[0]": (3, 2), "ip[1]": (2,), "ip2[1]": (3,)}, there) == ["ip2[0]", "ip2[1]"]
    assert new_parameters(there, there) == []
    with pytest.raises(ValueError):
        new_parameters({"ip[0]": (4, 5)}, there)


def test_renew():
    workspace = caffe.Workspace()
    old = workspace.create_net(NET % 3, caffe.TRAIN, name="old")
    old.params["ip"][0].data[...] = 7
    workspace.delete_net("old")
    renew(workspace, "ip2")
    new = workspace.create_net(NET % 4, caffe.TRAIN, name="new")
    assert new.params["ip2"][0].shape == (4, 2)
    assert (new.params["ip"][0].data == 7).all(), "the other layer has lost what it learned"
