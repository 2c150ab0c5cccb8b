# All solver types on one problem; snapshots, callbacks and the rate.
import os

import numpy as np
from google.protobuf import text_format

import caffe
from caffe import layers as L
from caffe.proto import caffe_pb2

n = caffe.NetSpec()
n.data, n.label = L.MemoryData(batch_size=40, channels=2, height=1, width=1, ntop=2)
n.ip1 = L.InnerProduct(n.data, num_output=16, weight_filler=dict(type='xavier'))
n.tanh = L.TanH(n.ip1, in_place=True)
n.ip2 = L.InnerProduct(n.tanh, num_output=2, weight_filler=dict(type='xavier'))
n.loss = L.SoftmaxWithLoss(n.ip2, n.label)
n.accuracy = L.Accuracy(n.ip2, n.label)
with open('net.prototxt', 'w') as f:
    f.write(str(n.to_proto()))

rng = np.random.RandomState(0)
data = rng.uniform(-1, 1, (200, 2, 1, 1)).astype(np.float32)
labels = (data[:, 0, 0, 0] * data[:, 1, 0, 0] > 0).astype(np.float32)

rates = {'SGD': 0.5, 'Nesterov': 0.3, 'AdaGrad': 0.2, 'RMSProp': 0.02, 'AdaDelta': 1.0, 'Adam': 0.05}
final = {}
for kind in rates:
    s = caffe_pb2.SolverParameter()
    text_format.Merge('net: "net.prototxt" lr_policy: "multistep" gamma: 0.5 stepvalue: 100 max_iter: 120 random_seed: 7', s)
    s.type = kind
    s.base_lr = rates[kind]
    if kind in ('SGD', 'Nesterov', 'AdaDelta', 'Adam'):
        s.momentum = 0.9 if kind != 'AdaDelta' else 0.95
    s.delta = 1e-6 if kind == 'AdaDelta' else 1e-8
    if kind == 'RMSProp':
        s.rms_decay = 0.98
    s.snapshot_prefix = kind
    with open(kind + '_solver.prototxt', 'w') as f:
        f.write(text_format.MessageToString(s))
    solver = caffe.get_solver(kind + '_solver.prototxt')
    assert type(solver).__name__ == kind + 'Solver' and isinstance(solver, getattr(caffe, kind + 'Solver'))
    solver.net.set_input_arrays(data, labels)
    calls = []
    solver.add_callback(lambda: calls.append('start'), lambda: calls.append('ready'))
    timer = caffe.Timer()
    timer.start()
    solver.step(100)
    solver.snapshot()
    solver.step(20)
    timer.stop()
    assert calls[:2] == ['start', 'ready'] and len(calls) == 240 and solver.iter == 120
    final[kind] = float(solver.net.blobs['loss'].data)
    print('%-9s loss %.4f, accuracy %.3f, rate %g, %.0f ms' % (kind, final[kind], solver.net.blobs['accuracy'].data, solver.lr, timer.ms))
    assert abs(solver.lr - rates[kind] / 2) < 1e-6 and solver.param.max_iter == 120

    state = kind + '_iter_100.solverstate'
    assert os.path.exists(state) and os.path.exists(kind + '_iter_100.caffemodel')
    again = caffe.get_solver(kind + '_solver.prototxt')
    again.net.set_input_arrays(data, labels)  # 200 samples are 5 batches, so iteration 100 begins with the first
    again.restore(state)
    assert again.iter == 100
    again.step(20)
    assert np.allclose(again.net.params['ip1'][0].data, solver.net.params['ip1'][0].data, atol=1e-5)
assert max(final[kind] for kind in ('SGD', 'Nesterov', 'AdaGrad', 'RMSProp', 'Adam')) < 0.3
assert final['AdaDelta'] < 0.68
