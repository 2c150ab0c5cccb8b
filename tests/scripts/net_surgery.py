# Net surgery, in the style of Caffe's notebook: filters by hand, and a classifier made fully convolutional.
import numpy as np

import caffe

with open('conv.prototxt', 'w') as f:
    f.write('''name: "convolution"
layer { name: "data" type: "Input" top: "data" input_param { shape: { dim: 1 dim: 1 dim: 100 dim: 100 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 3 kernel_size: 5 stride: 1
    weight_filler { type: "gaussian" std: 0.01 } bias_filler { type: "constant" value: 0 } } }''')
net = caffe.Net('conv.prototxt', caffe.TEST)

im = np.random.RandomState(0).rand(60, 70).astype(np.float32)
im_input = im[np.newaxis, np.newaxis, :, :]
net.blobs['data'].reshape(*im_input.shape)
net.blobs['data'].data[...] = im_input
net.forward()
conv0 = net.blobs['conv'].data.copy()
net.params['conv'][1].data[0] = 1.
net.forward()
assert abs((net.blobs['conv'].data[0, 0] - conv0[0, 0]).mean() - 1) < 1e-5

# a Gaussian blur, and edges along both axes
ksize = net.params['conv'][0].data.shape[2:]
sigma = 1.
y, x = np.mgrid[-ksize[0] // 2 + 1:ksize[0] // 2 + 1, -ksize[1] // 2 + 1:ksize[1] // 2 + 1]
g = np.exp(-((x ** 2 + y ** 2) / (2.0 * sigma ** 2)))
gaussian = (g / g.sum()).astype(np.float32)
net.params['conv'][0].data[0] = gaussian
net.params['conv'][0].data[1:] = 0
net.params['conv'][0].data[1, 0, 1:4, 1:4] = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
net.params['conv'][1].data[...] = 0
net.forward()
blurred = net.blobs['conv'].data[0, 0]
assert abs(blurred[0, 0] - (im[:5, :5] * gaussian).sum()) < 1e-5
assert blurred.std() < im.std()

# cast a classifier into a fully convolutional net
BODY = '''layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1" convolution_param { num_output: 6 kernel_size: 3
  weight_filler { type: "xavier" } } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1" pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
'''
with open('classifier.prototxt', 'w') as f:
    f.write('layer { name: "data" type: "Input" top: "data" input_param { shape: { dim: 1 dim: 2 dim: 14 dim: 14 } } }' + BODY + '''
layer { name: "fc6" type: "InnerProduct" bottom: "pool1" top: "fc6" inner_product_param { num_output: 20 weight_filler { type: "xavier" } } }
layer { name: "relu6" type: "ReLU" bottom: "fc6" top: "fc6" }
layer { name: "fc7" type: "InnerProduct" bottom: "fc6" top: "fc7" inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "fc7" top: "prob" }''')
with open('full_conv.prototxt', 'w') as f:
    f.write('layer { name: "data" type: "Input" top: "data" input_param { shape: { dim: 1 dim: 2 dim: 30 dim: 30 } } }' + BODY + '''
layer { name: "fc6-conv" type: "Convolution" bottom: "pool1" top: "fc6-conv" convolution_param { num_output: 20 kernel_size: 6 } }
layer { name: "relu6" type: "ReLU" bottom: "fc6-conv" top: "fc6-conv" }
layer { name: "fc7-conv" type: "Convolution" bottom: "fc6-conv" top: "fc7-conv" convolution_param { num_output: 5 kernel_size: 1 } }
layer { name: "prob" type: "Softmax" bottom: "fc7-conv" top: "prob" }''')
caffe.Net('classifier.prototxt', caffe.TEST).save('classifier.caffemodel')
net = caffe.Net('classifier.prototxt', 'classifier.caffemodel', caffe.TEST)
params = ['fc6', 'fc7']
fc_params = {pr: (net.params[pr][0].data, net.params[pr][1].data) for pr in params}


net_full_conv = caffe.Net('full_conv.prototxt', 'classifier.caffemodel', caffe.TEST)
params_full_conv = ['fc6-conv', 'fc7-conv']
conv_params = {pr: (net_full_conv.params[pr][0].data, net_full_conv.params[pr][1].data) for pr in params_full_conv}
for pr, pr_conv in zip(params, params_full_conv):
    conv_params[pr_conv][0].flat = fc_params[pr][0].flat  # flat unrolls the arrays
    conv_params[pr_conv][1][...] = fc_params[pr][1]
net_full_conv.save('full_conv.caffemodel')

big = np.random.RandomState(1).rand(1, 2, 30, 30).astype(np.float32)
out = net_full_conv.forward_all(data=big)

assert out['prob'].shape == (1, 5, 9, 9)
for i, j in ((0, 0), (3, 5), (8, 8)):
    window = big[:, :, 2 * i:2 * i + 14, 2 * j:2 * j + 14]
    assert np.allclose(net.forward(data=window)['prob'][0], out['prob'][0, :, i, j], atol=1e-5)
