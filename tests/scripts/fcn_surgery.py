# Fully convolutional segmentation: NetSpec with crops from coord_map, deconvolutions filled for interpolation (FCN's surgery.py).
import numpy as np

import caffe
from caffe import layers as L, params as P
from caffe.coord_map import crop


def conv_relu(bottom, nout, ks=3, stride=1, pad=1):
    conv = L.Convolution(bottom, kernel_size=ks, stride=stride, num_output=nout, pad=pad, weight_filler=dict(type='xavier'),
                         param=[dict(lr_mult=1, decay_mult=1), dict(lr_mult=2, decay_mult=0)])
    return conv, L.ReLU(conv, in_place=True)


def fcn(classes=3):
    n = caffe.NetSpec()
    n.data = L.Input(shape=dict(dim=[1, 1, 32, 40]))
    n.conv1, n.relu1 = conv_relu(n.data, 4, pad=20)
    n.pool1 = L.Pooling(n.relu1, pool=P.Pooling.MAX, kernel_size=2, stride=2)
    n.conv2, n.relu2 = conv_relu(n.pool1, 6)
    n.pool2 = L.Pooling(n.relu2, pool=P.Pooling.MAX, kernel_size=2, stride=2)
    n.score_fr = L.Convolution(n.pool2, num_output=classes, kernel_size=3, pad=0, weight_filler=dict(type='xavier'))
    n.upscore2 = L.Deconvolution(n.score_fr, convolution_param=dict(num_output=classes, kernel_size=4, stride=2, bias_term=False),
                                 param=[dict(lr_mult=0)])
    n.score_pool1 = L.Convolution(n.pool1, num_output=classes, kernel_size=1, pad=0, weight_filler=dict(type='xavier'))
    n.score_pool1c = crop(n.score_pool1, n.upscore2)
    n.fuse = L.Eltwise(n.upscore2, n.score_pool1c, operation=P.Eltwise.SUM)
    n.upscore = L.Deconvolution(n.fuse, convolution_param=dict(num_output=classes, kernel_size=4, stride=2, bias_term=False),
                                param=[dict(lr_mult=0)])
    n.score = crop(n.upscore, n.data)
    return n.to_proto()


def upsample_filt(size):
    """Make a 2D bilinear kernel suitable for upsampling of the given (h, w) size."""
    factor = (size + 1) // 2
    center = factor - 1 if size % 2 == 1 else factor - 0.5
    og = np.ogrid[:size, :size]
    return (1 - abs(og[0] - center) / factor) * (1 - abs(og[1] - center) / factor)


def interp(net, layers):
    """Set weights of each layer in layers to bilinear kernels for interpolation."""
    for l in layers:
        m, k, h, w = net.params[l][0].data.shape
        assert (m == k or k == 1) and h == w, 'filters need to be square'
        filt = upsample_filt(h)
        net.params[l][0].data[range(m), range(k), :, :] = filt


with open('fcn.prototxt', 'w') as f:
    f.write(str(fcn()))
caffe.set_random_seed(0)
net = caffe.Net('fcn.prototxt', caffe.TEST)
interp_layers = [k for k in net.params.keys() if 'up' in k]
assert interp_layers == ['upscore2', 'upscore']
interp(net, interp_layers)
image = np.random.RandomState(0).rand(1, 1, 32, 40).astype(np.float32)
net.blobs['data'].data[...] = image
net.forward()
assert net.blobs['score'].data.shape == (1, 3, 32, 40)
print(net.blobs['score'].data[0].argmax(axis=0))

# interpolation of a plane is the plane
ramp = np.arange(net.blobs['fuse'].width, dtype=np.float32)
net.blobs['fuse'].data[...] = ramp
net.forward(start='upscore', end='upscore')
row = net.blobs['upscore'].data[0, 0, 10, 2:-2]
assert np.allclose(np.diff(row), 0.5, atol=1e-5)

# another size of picture goes through the same net
net.blobs['data'].reshape(1, 1, 48, 56)
net.reshape()
assert net.blobs['score'].data.shape == (1, 3, 48, 56)


def transplant(new_net, net, suffix=''):
    """Transfer weights by copying matching parameters."""
    for p in net.params:
        p_new = p + suffix
        if p_new not in new_net.params:
            print('dropping', p)
            continue
        for i in range(len(net.params[p])):
            if i > (len(new_net.params[p_new]) - 1):
                break
            new_net.params[p_new][i].data.flat = net.params[p][i].data.flat


other = caffe.Net('fcn.prototxt', caffe.TEST)
transplant(other, net)
net.blobs['data'].reshape(1, 1, 32, 40)
assert np.allclose(other.forward(data=image)['score'], net.forward(data=image)['score'], atol=1e-5)
