# Fine-tuning a trained net for another task, in the style of Caffe's notebook 02-fine-tuning.
import os
import tempfile

import h5py
import numpy as np

import caffe
from caffe import layers as L, params as P
from caffe.proto import caffe_pb2

weight_param = dict(lr_mult=1, decay_mult=1)
bias_param = dict(lr_mult=2, decay_mult=0)
learned_param = [weight_param, bias_param]
frozen_param = [dict(lr_mult=0)] * 2


def fc_relu(bottom, nout, param=learned_param, weight_filler=dict(type='gaussian', std=0.3)):
    fc = L.InnerProduct(bottom, num_output=nout, param=param, weight_filler=weight_filler,
                        bias_filler=dict(type='constant', value=0.1))
    return fc, L.ReLU(fc, in_place=True)


def stylenet(source, train=True, learn_all=False, num_classes=3, classifier_name='fc8_style'):
    n = caffe.NetSpec()
    n.data, n.label = L.HDF5Data(source=source, batch_size=20, ntop=2)
    param = learned_param if (train and learn_all) else frozen_param
    n.fc6, n.relu6 = fc_relu(n.data, 32, param=param)
    if train:
        n.drop6 = fc7input = L.Dropout(n.relu6, in_place=True, dropout_ratio=0.1)
    else:
        fc7input = n.relu6
    n.fc7, n.relu7 = fc_relu(fc7input, 16, param=param)
    fc8 = L.InnerProduct(n.relu7, num_output=num_classes, param=learned_param, weight_filler=dict(type='gaussian', std=0.1))
    n.__setattr__(classifier_name, fc8)
    if not train:
        n.probs = L.Softmax(fc8)
    n.loss = L.SoftmaxWithLoss(fc8, n.label)
    n.acc = L.Accuracy(fc8, n.label)
    with tempfile.NamedTemporaryFile(mode='w', delete=False, dir='.', suffix='.prototxt') as f:
        f.write(str(n.to_proto()))
        return f.name


def solver(train_net_path, base_lr=0.02):
    s = caffe_pb2.SolverParameter(train_net=train_net_path, iter_size=1, max_iter=100000, type='SGD', base_lr=base_lr,
                                  lr_policy='step', gamma=0.1, stepsize=20000, momentum=0.9, weight_decay=5e-4, random_seed=3)
    s.display = 1000
    s.snapshot, s.snapshot_prefix = 10000, 'finetune'
    s.solver_mode = caffe_pb2.SolverParameter.CPU
    with tempfile.NamedTemporaryFile(mode='w', delete=False, dir='.', suffix='.prototxt') as f:
        f.write(str(s))
        return f.name


rng = np.random.RandomState(0)
centres = rng.randn(5, 10)
for name, labels in (('first', rng.randint(5, size=400)), ('style', rng.randint(3, size=200))):
    with h5py.File(name + '.h5', 'w') as f:
        f['data'] = (centres[labels] + 0.3 * rng.randn(len(labels), 10)).astype(np.float32)
        f['label'] = labels.astype(np.float32)
    with open(name + '.txt', 'w') as f:
        f.write(name + '.h5\n')

# the model that is there already
pretraining = caffe.get_solver(solver(stylenet('first.txt', learn_all=True, num_classes=5, classifier_name='fc8')))
pretraining.step(60)
weights = 'pretrained.caffemodel'
pretraining.net.save(weights)
assert os.path.exists(weights)


def run_solvers(niter, solvers):
    """Run solvers for niter iterations, returning the loss and accuracy recorded each iteration."""
    blobs = ('loss', 'acc')
    loss, acc = ({name: np.zeros(niter) for name, _ in solvers} for _ in blobs)
    for it in range(niter):
        for name, s in solvers:
            s.step(1)  # run a single SGD step in Caffe
            loss[name][it], acc[name][it] = (s.net.blobs[b].data.copy() for b in blobs)
    weights = {}
    for name, s in solvers:
        filename = 'weights.%s.caffemodel' % name
        weights[name] = os.path.join('.', filename)
        s.net.save(weights[name])
    return loss, acc, weights


style_solver = caffe.get_solver(solver(stylenet('style.txt')))
style_solver.net.copy_from(weights)
frozen = style_solver.net.params['fc6'][0].data.copy()
scratch_style_solver = caffe.get_solver(solver(stylenet('style.txt')))
loss, acc, style_weights = run_solvers(40, [('pretrained', style_solver), ('scratch', scratch_style_solver)])
assert (style_solver.net.params['fc6'][0].data == frozen).all()
assert acc['pretrained'][-10:].mean() > 0.9

end_to_end = caffe.get_solver(solver(stylenet('style.txt', learn_all=True), base_lr=0.01))
end_to_end.net.copy_from(style_weights['pretrained'])
end_to_end.step(10)
assert (end_to_end.net.params['fc6'][0].data != frozen).any()


def eval_style_net(weights, test_iters=10):
    test_net = caffe.Net(stylenet('style.txt', train=False), weights, caffe.TEST)
    return test_net, sum(test_net.forward()['acc'] for it in range(test_iters)) / test_iters


test_net, accuracy = eval_style_net(style_weights['pretrained'])

assert accuracy > 0.95 and P.Pooling.MAX == 0
