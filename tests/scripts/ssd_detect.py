# Object detection with SSD, in the style of the notebook ssd_detect: label map, Transformer, detection_out, boxes drawn.
import cv2
import numpy as np

import caffe
from caffe.proto import caffe_pb2
from google.protobuf import text_format

caffe.set_mode_cpu()

# A net small enough to set its weights by hand: it looks at cells of 16 x 16 pixels, and how red or blue they are.
with open('deploy.prototxt', 'w') as f:
    f.write('''name: "cells"
layer { name: "data" type: "Input" top: "data" input_param { shape: { dim: 1 dim: 3 dim: 64 dim: 64 } } }
layer { name: "pool" type: "Pooling" bottom: "data" top: "pool" pooling_param { pool: AVE kernel_size: 16 stride: 16 } }
layer { name: "pool_mbox_loc" type: "Convolution" bottom: "pool" top: "pool_mbox_loc"
  convolution_param { num_output: 4 kernel_size: 1 } }
layer { name: "pool_mbox_loc_perm" type: "Permute" bottom: "pool_mbox_loc" top: "pool_mbox_loc_perm"
  permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: "mbox_loc" type: "Flatten" bottom: "pool_mbox_loc_perm" top: "mbox_loc" flatten_param { axis: 1 } }
layer { name: "pool_mbox_conf" type: "Convolution" bottom: "pool" top: "pool_mbox_conf"
  convolution_param { num_output: 3 kernel_size: 1 } }
layer { name: "pool_mbox_conf_perm" type: "Permute" bottom: "pool_mbox_conf" top: "pool_mbox_conf_perm"
  permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: "mbox_conf" type: "Reshape" bottom: "pool_mbox_conf_perm" top: "mbox_conf"
  reshape_param { shape { dim: 0 dim: -1 dim: 3 } } }
layer { name: "mbox_conf_softmax" type: "Softmax" bottom: "mbox_conf" top: "mbox_conf_softmax" softmax_param { axis: 2 } }
layer { name: "mbox_conf_flatten" type: "Flatten" bottom: "mbox_conf_softmax" top: "mbox_conf_flatten" flatten_param { axis: 1 } }
layer { name: "mbox_priorbox" type: "PriorBox" bottom: "pool" bottom: "data" top: "mbox_priorbox"
  prior_box_param { min_size: 16 variance: 0.1 variance: 0.1 variance: 0.2 variance: 0.2 } }
layer { name: "detection_out" type: "DetectionOutput" bottom: "mbox_loc" bottom: "mbox_conf_flatten" bottom: "mbox_priorbox"
  top: "detection_out" include { phase: TEST }
  detection_output_param { num_classes: 3 share_location: true background_label_id: 0 code_type: CENTER_SIZE
    nms_param { nms_threshold: 0.45 top_k: 400 } keep_top_k: 200 confidence_threshold: 0.01 } }''')
with open('labelmap.prototxt', 'w') as f:
    f.write('''item { name: "none_of_the_above" label: 0 display_name: "background" }
item { name: "tomato" label: 1 display_name: "tomato" }
item { name: "plum" label: 2 display_name: "plum" }''')

net = caffe.Net('deploy.prototxt', caffe.TEST)
net.params['pool_mbox_conf'][0].data[...] = np.array([[0, 0, 0], [-.1, -.1, .1], [.1, -.1, -.1]])[:, :, None, None]  # of B, G, R
net.params['pool_mbox_conf'][1].data[...] = [8, 0, 0]  # background unless there is colour
net.save('cells.caffemodel')
net = caffe.Net('deploy.prototxt', 'cells.caffemodel', caffe.TEST)

image = np.full((64, 64, 3), 100, np.uint8)
image[16:32, 32:48] = (20, 20, 230)   # OpenCV writes BGR
image[48:64, 0:16] = (230, 30, 30)
cv2.imwrite('fruit.png', image)


def get_labelname(labelmap, labels):
    names = dict((item.label, item.display_name) for item in labelmap.item)
    return [names[label] for label in labels]


labelmap = caffe_pb2.LabelMap()
with open('labelmap.prototxt', 'r') as file:
    text_format.Merge(str(file.read()), labelmap)

transformer = caffe.io.Transformer({'data': net.blobs['data'].data.shape})
transformer.set_transpose('data', (2, 0, 1))
transformer.set_mean('data', np.array([104, 117, 123]))  # mean pixel
transformer.set_raw_scale('data', 255)  # the reference model operates on images in [0,255] range instead of [0,1]
transformer.set_channel_swap('data', (2, 1, 0))  # the reference model has channels in BGR order instead of RGB

net.blobs['data'].reshape(1, 3, 64, 64)
picture = caffe.io.load_image('fruit.png')
net.blobs['data'].data[...] = transformer.preprocess('data', picture)
detections = net.forward()['detection_out']

# Get detections with confidence higher than 0.6.
det_label, det_conf = detections[0, 0, :, 1], detections[0, 0, :, 2]
top_indices = [i for i, conf in enumerate(det_conf) if conf >= 0.6]
top_conf = det_conf[top_indices]
top_labels = get_labelname(labelmap, det_label[top_indices].tolist())

boxes = []
for i in range(top_conf.shape[0]):
    box = detections[0, 0, top_indices[i], 3:] * np.array([picture.shape[1], picture.shape[0]] * 2)
    xmin, ymin, xmax, ymax = (int(round(edge)) for edge in box)
    boxes.append((top_labels[i], xmin, ymin, xmax, ymax))

assert sorted(boxes) == [('plum', 0, 48, 16, 64), ('tomato', 32, 16, 48, 32)], boxes
