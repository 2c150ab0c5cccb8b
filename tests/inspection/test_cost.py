"""What a node costs: exact for products with weights, compared with loops that count; the stated rules for the rest; bytes."""

from itertools import product

import pytest

from minicaffe.inspection import cost
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text

INPUT = 'force_backward: true layer { name: "in" type: "Input" top: "x" input_param { shape { %s } } }'


def node_of(layer, *dims, more=""):
    text = INPUT % " ".join(f"dim: {dim}" for dim in dims) + more + layer
    return Net(parse_text(text, caffe_pb2.NetParameter)[0]).nodes[-1]


def counted(images, channels, outputs, group, out, kernel):
    """Multiply-adds of a convolution by loops, padding included; `out` and `kernel`: (height, width)."""
    total = 0
    for _ in product(range(images), range(outputs), *map(range, out)):
        total += channels // group * kernel[0] * kernel[1]
    return total


@pytest.mark.parametrize("fields, group", [("pad: 1", 1), ("group: 2 stride: 2", 2), ("dilation: 2", 1)])
def test_convolution(fields, group):
    node = node_of(f'layer {{ name: "c" type: "Convolution" bottom: "x" top: "y" convolution_param {{ num_output: 6 kernel_h: 3 kernel_w: 2 {fields} }} }}',
                   2, 4, 7, 9)
    products = 2 * counted(2, 4, 6, group, node.tops[0].shape[2:], (3, 2))
    assert cost.of_node(node, "forward").flops == products
    assert cost.of_node(node, "backward").flops == 2 * products + node.tops[0].count       # bottom, weights, and the sums of the bias
    node.bottom_needs = [False]
    assert cost.of_node(node, "backward").flops == products + node.tops[0].count
    node.layer.param_propagate_down = [False, False]
    assert cost.of_node(node, "backward").flops == 0


def test_inner_product_and_bytes():
    node = node_of('layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 10 } }', 3, 8)
    assert cost.of_node(node, "forward") == (2 * 3 * 8 * 10, 4 * (3 * 8 + 80 + 10 + 3 * 10))
    # reads dy, x, W and the two gradients it adds to; writes dx and the gradients
    assert cost.of_node(node, "backward") == (2 * 2 * 3 * 8 * 10 + 30, 4 * (30 + 24 + 80 + 2 * 90 + 24))
    node.bottom_needs = [False]     # neither W nor dx
    assert cost.of_node(node, "backward") == (2 * 3 * 8 * 10 + 30, 4 * (30 + 24 + 2 * 90))


@pytest.mark.parametrize("kind, gates", [("LSTM", 4), ("RNN", 1)])
def test_recurrent_layers(kind, gates):
    steps, n, inputs, size = 5, 2, 3, 4
    node = node_of(f'layer {{ name: "r" type: "{kind}" bottom: "x" bottom: "cont" top: "y" recurrent_param {{ num_output: {size} }} }}', steps, n,
                   inputs, more=f'layer {{ name: "c" type: "Input" top: "cont" input_param {{ shape {{ dim: {steps} dim: {n} }} }} }}')
    rows = steps * n
    products = 2 * rows * gates * size * (inputs + size) + (2 * rows * size * size if kind == "RNN" else 0)
    assert cost.of_node(node, "forward").flops == products and cost.of_node(node, "backward").flops == 2 * products
    node.bottom_needs = [False, False]
    assert cost.of_node(node, "backward").flops == 2 * products - 2 * rows * gates * size * inputs


def test_rules_of_other_layers():
    pool = node_of('layer { name: "p" type: "Pooling" bottom: "x" top: "y" pooling_param { kernel_h: 3 kernel_w: 2 stride: 2 } }', 1, 2, 9, 12)
    assert cost.of_node(pool, "forward").flops == cost.of_node(pool, "backward").flops == 2 * 9 * 12
    relu = node_of('layer { name: "r" type: "ReLU" bottom: "x" top: "x" }', 2, 5)
    assert cost.of_node(relu, "forward") == (10, 80) and cost.of_node(relu, "backward").flops == 10
    entry = Net(parse_text(INPUT % "dim: 2 dim: 3", caffe_pb2.NetParameter)[0]).nodes[0]
    assert cost.of_node(entry, "forward") == cost.of_node(entry, "backward") == (0, 0)
    flat = node_of('layer { name: "f" type: "Flatten" bottom: "x" top: "y" }', 2, 3, 5)
    assert cost.of_node(flat, "forward") == cost.of_node(flat, "backward") == (0, 0)
    split = node_of('layer { name: "s" type: "Split" bottom: "x" top: "a" top: "b" top: "c" }', 2, 5)
    assert cost.of_node(split, "forward") == (0, 0) and cost.of_node(split, "backward") == (0, 4 * (30 + 10))
    node = node_of('layer { name: "d" type: "Deconvolution" bottom: "x" top: "y" convolution_param { num_output: 6 kernel_h: 4 kernel_w: 3 '
                   'stride: 2 bias_term: false } }', 2, 4, 5, 7)
    assert cost.of_node(node, "forward").flops == 2 * 2 * 5 * 7 * 4 * 6 * 12
    assert cost.of_node(node, "backward").flops == 2 * cost.of_node(node, "forward").flops
    from minicaffe.net.net import read_net
    net = Net(read_net("models/lenet/deploy.prototxt", caffe_pb2.TEST)[0])
    images = net.nodes[0].tops[0].shape[0]
    macs = {node.name: node.layer.multiply_adds(node.bottoms, node.tops) // images for node in net.nodes if node.blobs}
    assert macs == {"conv1": 288_000, "conv2": 1_600_000, "ip1": 400_000, "ip2": 5_000}


def test_fused_layers():
    """What only passes from one to the other is neither read nor written; in place an array is read once and written once."""
    text = (INPUT % "dim: 2 dim: 3 dim: 4" + 'layer { name: "a" type: "ReLU" bottom: "x" top: "%s" } '
            'layer { name: "b" type: "ReLU" bottom: "%s" top: "%s" }')
    pairs = {last: Net(parse_text(text % ("a", "a", last), caffe_pb2.NetParameter)[0]).nodes[1:] for last in "ab"}
    for pair in pairs.values():
        assert cost.step(pair, "forward") == (2 * 24, 4 * 2 * 24)
        assert cost.step(pair[:1], "forward") == cost.of_node(pair[0], "forward") and cost.step(pair[:1], "backward") == cost.of_node(pair[0], "backward")
    pair = pairs["b"]
    # reads the gradient of b and the data that a ReLU reads; writes the gradient of x
    data = {id(blob) for node in pair for blob in [*(node.bottoms if node.layer.backward_reads_bottoms else ()),
                                                   *(node.tops if node.layer.backward_reads_tops else ())]}
    assert cost.step(pair, "backward") == (2 * 24, 4 * 24 * (2 + len(data)))
    assert cost.step([], "forward") == (0, 0)


@pytest.mark.parametrize("kind", ["ReLU", "TanH"])
def test_layers_in_place(kind):
    apart, inside = (node_of(f'layer {{ name: "a" type: "{kind}" bottom: "x" top: "{top}" }}', 2, 3) for top in "yx")
    assert cost.of_node(inside, "forward") == cost.of_node(apart, "forward") == (apart.layer.flops(apart.bottoms, apart.tops), 4 * 2 * 6)
    assert cost.of_node(inside, "backward").bytes == cost.of_node(apart, "backward").bytes == 4 * 3 * 6       # dy and what the type reads; dx
