"""What a node costs: exact for products with weights; the stated rules for the rest; bytes."""

import pytest
from helpers import layer_text, make_net

from minicaffe.inspection import cost
from minicaffe.net.net import Net, read_net
from minicaffe.proto import caffe_pb2

INPUT = 'force_backward: true layer { name: "in" type: "Input" top: "x" input_param { shape { %s } } }'


def node_of(layer, *dims, more=""):
    return make_net(INPUT % " ".join(f"dim: {dim}" for dim in dims) + more + layer).nodes[-1]


@pytest.mark.parametrize("fields, group", [("pad: 1", 1), ("group: 2 stride: 2", 2), ("dilation: 2", 1)])
def test_convolution(fields, group):
    """Multiply-adds, padding included: images, outputs, pixels, and of each the channels of a group and the window."""
    node = node_of(layer_text("Convolution", "c", "x", more=f"convolution_param {{ num_output: 6 kernel_h: 3 kernel_w: 2 {fields} }}"), 2, 4, 7, 9)
    products = 2 * node.tops[0].count * (4 // group) * 3 * 2
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
    for layer, dims, forward, backward in (
            (layer_text("Pooling", "p", "x", more="pooling_param { kernel_h: 3 kernel_w: 2 stride: 2 }"), (1, 2, 9, 12), (216, None), (216, None)),
            (layer_text("ReLU", "r", "x", "x"), (2, 5), (10, 80), (10, None)), ("", (2, 3), (0, 0), (0, 0)),
            (layer_text("Flatten", "f", "x"), (2, 3, 5), (0, 0), (0, 0)), (layer_text("Split", "s", "x", "a b c"), (2, 5), (0, 0), (0, 4 * (30 + 10))),
            (layer_text("Deconvolution", "d", "x", more="convolution_param { num_output: 6 kernel_h: 4 kernel_w: 3 stride: 2 bias_term: false }"),
             (2, 4, 5, 7), (2 * 2 * 5 * 7 * 4 * 6 * 12, None), (2 * 2 * 2 * 5 * 7 * 4 * 6 * 12, None))):
        node = node_of(layer, *dims)
        for direction, (flops, nbytes) in ("forward", forward), ("backward", backward):
            found = cost.of_node(node, direction)
            assert found.flops == flops and nbytes in (None, found.bytes), (node.type, direction)
    net = Net(read_net("models/lenet/deploy.prototxt", caffe_pb2.TEST)[0])
    images = net.nodes[0].tops[0].shape[0]
    macs = {node.name: node.layer.multiply_adds(node.bottoms, node.tops) // images for node in net.nodes if node.blobs}
    assert macs == {"conv1": 288_000, "conv2": 1_600_000, "ip1": 400_000, "ip2": 5_000}


def test_fused_layers():
    """What only passes from one to the other is neither read nor written; in place an array is read once and written once."""
    pairs = [make_net(INPUT % "dim: 2 dim: 3 dim: 4" + layer_text("ReLU", "a", "x") + layer_text("ReLU", "b", "a", last)).nodes[1:] for last in "ab"]
    for pair in pairs:
        assert cost.step(pair, "forward") == (2 * 24, 4 * 2 * 24)
        assert all(cost.step(pair[:1], direction) == cost.of_node(pair[0], direction) for direction in ("forward", "backward"))
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
