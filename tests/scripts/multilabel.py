# Multilabel classification with a Python data layer, in the style of Caffe's notebook pascal-multilabel-with-datalayer.
import os.path as osp

import numpy as np

import caffe
from caffe import layers as L, params as P


def net_spec(data_layer_params, datalayer):
    n = caffe.NetSpec()
    n.data, n.label = L.Python(module='multilabel_datalayers', layer=datalayer, ntop=2, param_str=str(data_layer_params))
    n.scaled = L.Python(n.data, module='multilabel_datalayers', layer='Scaled', param_str='{"start": 1.5}')
    n.conv1 = L.Convolution(n.scaled, kernel_size=3, num_output=8, pad=1, weight_filler=dict(type='xavier'))
    n.relu1 = L.ReLU(n.conv1, in_place=True)
    n.pool1 = L.Pooling(n.relu1, pool=P.Pooling.MAX, kernel_size=2, stride=2)
    n.score = L.InnerProduct(n.pool1, num_output=4, weight_filler=dict(type='xavier'))
    n.loss = L.SigmoidCrossEntropyLoss(n.score, n.label)
    return str(n.to_proto())


workdir = './'
for name, seed in (('trainnet', 0), ('valnet', 1)):
    with open(osp.join(workdir, name + '.prototxt'), 'w') as f:
        f.write(net_spec(dict(batch_size=32, im_shape=[8, 8], seed=seed), 'MultilabelDataLayerSync'))
with open(osp.join(workdir, 'solver.prototxt'), 'w') as f:
    f.write('train_net: "trainnet.prototxt" test_net: "valnet.prototxt" test_iter: 1 test_interval: 1000 base_lr: 0.02 '
            'lr_policy: "fixed" momentum: 0.9 max_iter: 1000 display: 0 average_loss: 25 snapshot_prefix: "snapshot" random_seed: 2')
solver = caffe.SGDSolver(osp.join(workdir, 'solver.prototxt'))
solver.test_nets[0].share_with(solver.net)
solver.step(1)


def check_accuracy(net, num_batches, batch_size=32):
    acc = 0.0
    for t in range(num_batches):
        net.forward()
        gts = net.blobs['label'].data
        ests = net.blobs['score'].data > 0
        acc += (gts == ests).mean(axis=1).sum()  # hamming distance of ground truth and estimated label vectors
    return acc / (num_batches * batch_size)


before = check_accuracy(solver.test_nets[0], 3)
solver.step(60)
after = check_accuracy(solver.test_nets[0], 3)

assert after > 0.95 and before < after
assert solver.net.params['scaled'][0].data[0] != np.float32(1.5)
