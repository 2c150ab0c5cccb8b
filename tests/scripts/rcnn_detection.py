# R-CNN detection: scores of windows, and non-maximum suppression, in the style of Caffe's notebook detection.
import cv2
import numpy as np

import caffe

with open('deploy.prototxt', 'w') as f:
    f.write('''name: "R-CNN"
layer { name: "data" type: "Input" top: "data" input_param { shape: { dim: 4 dim: 3 dim: 16 dim: 16 } } }
layer { name: "pool" type: "Pooling" bottom: "data" top: "pool" pooling_param { pool: AVE global_pooling: true } }
layer { name: "fc-rcnn" type: "InnerProduct" bottom: "pool" top: "fc-rcnn" inner_product_param { num_output: 2 } }''')
net = caffe.Net('deploy.prototxt', caffe.TEST)
net.params['fc-rcnn'][0].data[...] = [[0, 0, 1], [1, 0, 0]]  # red and blue, as channels are BGR
net.save('rcnn.caffemodel')

image = np.full((60, 80, 3), 40, np.uint8)
image[10:30, 10:40] = (40, 40, 240)   # OpenCV writes BGR: a red thing
image[35:55, 50:75] = (240, 40, 40)   # and a blue one
cv2.imwrite('things.png', image)

mean = np.array([50., 50., 50.])
detector = caffe.Detector('deploy.prototxt', 'rcnn.caffemodel', mean=mean, raw_scale=255, channel_swap=(2, 1, 0), context_pad=2)
windows = np.array([(y, x, y + 20, x + 27) for y in range(0, 40, 5) for x in range(0, 50, 5)])
detections = detector.detect_windows([('things.png', windows)])
assert len(detections) == len(windows)
predictions = np.array([d['prediction'] for d in detections])
boxes = np.array([d['window'] for d in detections])
print('top scores:', predictions.max(axis=0))


def nms_detections(dets, overlap=0.3):
    """Non-maximum suppression: greedily select high-scoring detections and skip those that are covered by one before."""
    y1, x1, y2, x2 = dets[:, :4].T
    ind = np.argsort(dets[:, 4])
    area = (x2 - x1) * (y2 - y1)
    pick = []
    while len(ind) > 0:
        i = ind[-1]
        pick.append(i)
        ind = ind[:-1]
        w = np.maximum(0., np.minimum(x2[i], x2[ind]) - np.maximum(x1[i], x1[ind]))
        h = np.maximum(0., np.minimum(y2[i], y2[ind]) - np.maximum(y1[i], y1[ind]))
        o = w * h / (area[i] + area[ind] - w * h)
        ind = ind[np.nonzero(o <= overlap)[0]]
    return dets[pick, :]


for label, middle in ((0, (20, 25)), (1, (45, 62))):
    dets = nms_detections(np.hstack((boxes, predictions[:, label:label + 1])))
    best = dets[0]
    print('class', label, 'window', best[:4], 'score', best[4])
    assert abs((best[0] + best[2]) / 2 - middle[0]) <= 5 and abs((best[1] + best[3]) / 2 - middle[1]) <= 5
    assert len(dets) < len(boxes)
