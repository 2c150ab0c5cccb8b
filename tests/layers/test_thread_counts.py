"""Layers compute the same bits on any number of threads, also on more than there were when the net was made."""

import numpy as np
import pytest
from gradient import layer_net, run_backward, run_forward

from minicaffe.blob import Dtype
from minicaffe.device.threads import set_num_threads

RANDOM = np.random.default_rng(4)
LABELS, INDEX, INTEGERS = RANDOM.integers(0, 7, (3, 90, 91)), RANDOM.integers(0, 50, 3000), RANDOM.integers(-4, 5, (64, 700))
FILLED = 'weight_filler { type: "gaussian" std: 0.5 } bias_filler { type: "uniform" }'
# The fields of a layer; its bottoms, arrays or shapes of random numbers; which of them get a gradient.
CASES = [
    ('type: "SoftmaxWithLoss"', [(3, 7, 90, 91), LABELS], [0]),
    *((f'type: "Pooling" pooling_param {{ kernel_size: 3 stride: 2 {more} }}', [shape], [0])
      for more in ("pad: 1", "pad: 1 pool: AVE", "pool: STOCHASTIC") for shape in ((1, 1, 150, 131), (3, 7, 41, 33))),
    *((f'type: "LRN" lrn_param {{ norm_region: {region} }}', [(2, 16, 31, 33)], [0]) for region in ("ACROSS_CHANNELS", "WITHIN_CHANNEL")),
    *((f'type: "{kind}" convolution_param {{ num_output: 14 kernel_size: 3 group: 2 stride: 2 {FILLED} }}', [(13, 4, 11, 9)], [0])
      for kind in ("Convolution", "Deconvolution")),
    (f'type: "Convolution" convolution_param {{ num_output: 3 kernel_size: 3 {FILLED} }}', [(16, 2, 8, 9)], [0]),
    (f'type: "Embed" embed_param {{ num_output: 33 input_dim: 50 {FILLED} }}', [INDEX], []),
    ('type: "Softmax"', [(300, 100)], [0]),
    ('type: "Softmax"', [(3, 20, 1000)], [0]),
    ('type: "InnerProduct" inner_product_param { num_output: 90 weight_filler { value: 3 } bias_filler { value: 1 } }', [INTEGERS], [0]),   # exact sums
    ('type: "Dropout"', [(100001,)], [0]),
    *((f'type: "{kind}"', [shape], [0]) for kind in ("BatchNorm", "MVN") for shape in ((2, 3, 4097), (70000, 2), (3, 5, 64, 65)) if kind == "BatchNorm" or len(shape) > 2),
    *((f'type: "{kind}" {kind.lower()}_param {{ filler {{ type: "uniform" min: 0.5 max: 2 }} }}', [shape], [0]) for kind in ("Scale", "Bias", "PReLU")
      for shape in ((3, 2, 40000), (40000, 3), (2, 50001), (1, 1, 70000))),
    *(('type: "Reduction" reduction_param { axis: 1 }', [shape], [0]) for shape in ((3, 2, 40000), (40000, 3))),
    *((f'type: "Eltwise" eltwise_param {{ operation: {operation} }}', [(65537,), (65537,)], [0, 1]) for operation in ("SUM", "PROD", "MAX")),
]


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("fields, bottoms, gradients", CASES)
def test_threads_change_no_bit(fields, bottoms, gradients, dtype):
    arrays = [RANDOM.random(bottom) if isinstance(bottom, tuple) else bottom for bottom in bottoms]
    names = " ".join(f'bottom: "b{i}"' for i in range(len(arrays)))
    results = []
    set_num_threads(1)
    net = layer_net(f'layer {{ name: "l" {names} top: "y" {fields} }}', arrays, dtype)
    top = net.tops[-1][0]
    seed = None if "Loss" in fields else np.random.default_rng(5).integers(-4, 5, top.shape)
    for threads in (1, 2, 3):
        set_num_threads(threads)
        net.clear_param_diffs()
        run_forward(net)
        run_backward(net, gradients, [seed])
        results.append([top.cpu_data.copy(), *(net.bottoms[-1][i].cpu_diff.copy() for i in gradients),
                        *(blob.cpu_diff.copy() for blob in net.layers[-1].blobs)])
    assert any(result.any() for result in results[0][1:])
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(one, two)
