# Classification with a trained net, in the style of Caffe's notebook 00-classification.
import os
import sys

import cv2
import numpy as np

caffe_root = '../'
sys.path.insert(0, caffe_root + 'python')
import caffe

DEPLOY = '''
name: "Tiny"
input: "data"
input_dim: 10 input_dim: 3 input_dim: 24 input_dim: 24
layers { name: "conv1" type: CONVOLUTION bottom: "data" top: "conv1"
  convolution_param { num_output: 8 kernel_size: 5 stride: 2 weight_filler { type: "gaussian" std: 0.01 } } }
layers { name: "relu1" type: RELU bottom: "conv1" top: "conv1" }
layers { name: "norm1" type: LRN bottom: "conv1" top: "norm1" lrn_param { local_size: 5 alpha: 0.0001 beta: 0.75 } }
layers { name: "pool1" type: POOLING bottom: "norm1" top: "pool1" pooling_param { pool: MAX kernel_size: 3 stride: 2 } }
layers { name: "fc8" type: INNER_PRODUCT bottom: "pool1" top: "fc8"
  inner_product_param { num_output: 10 weight_filler { type: "gaussian" std: 0.1 } } }
layers { name: "prob" type: SOFTMAX bottom: "fc8" top: "prob" }
'''
with open('deploy.prototxt', 'w') as f:
    f.write(DEPLOY)
caffe.set_random_seed(1)
caffe.Net('deploy.prototxt', caffe.TEST).save('tiny.caffemodel')
picture = np.random.RandomState(0).randint(0, 255, (32, 40, 3)).astype(np.uint8)
cv2.imwrite('cat.png', cv2.GaussianBlur(picture, (5, 5), 0))
assert os.path.isfile('tiny.caffemodel')

net = caffe.Net('deploy.prototxt',  # defines the structure of the model
                'tiny.caffemodel',  # contains the trained weights
                caffe.TEST)         # use test mode (e.g., don't perform dropout)

# load the mean image for subtraction
mu = np.array([104.0, 116.7, 122.7]).reshape(3, 1, 1) * np.ones((3, 30, 30))
mu = mu.mean(1).mean(1)


transformer = caffe.io.Transformer({'data': net.blobs['data'].data.shape})
transformer.set_transpose('data', (2, 0, 1))
transformer.set_mean('data', mu)
transformer.set_raw_scale('data', 255)
transformer.set_channel_swap('data', (2, 1, 0))

net.blobs['data'].reshape(50, 3, 24, 24)
image = caffe.io.load_image('cat.png')
transformed_image = transformer.preprocess('data', image)
net.blobs['data'].data[...] = transformed_image
output = net.forward()
output_prob = output['prob'][0]

assert output['prob'].shape == (50, 10)
assert abs(output_prob.sum() - 1) < 1e-5
assert np.allclose(output['prob'], output_prob, atol=1e-6)

top_inds = output_prob.argsort()[::-1][:5]
print('probabilities:', list(zip(output_prob[top_inds], top_inds)))
for layer_name, param in net.params.items():
    print(layer_name + '\t' + str(param[0].data.shape), str(param[1].data.shape))
feat = net.blobs['conv1'].data[0, :6]
assert feat.min() >= 0
back = transformer.deprocess('data', net.blobs['data'].data[0])
assert np.allclose(back, caffe.io.resize_image(image, (24, 24)), atol=1e-4)

classifier = caffe.Classifier('deploy.prototxt', 'tiny.caffemodel', image_dims=(32, 32), mean=mu, raw_scale=255,
                              channel_swap=(2, 1, 0))
assert classifier.predict([image, image]).shape == (2, 10)
