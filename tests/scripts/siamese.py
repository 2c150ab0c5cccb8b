# A siamese net: two towers with shared weights, contrastive loss, and the embedding they learn.
import numpy as np

import caffe
from caffe import layers as L


def tower(n, bottom, suffix):
    shared = [dict(name='ip1_w', lr_mult=1), dict(name='ip1_b', lr_mult=2)]
    n['ip1' + suffix] = L.InnerProduct(bottom, num_output=24, param=shared, weight_filler=dict(type='xavier'))
    n['relu1' + suffix] = L.ReLU(n['ip1' + suffix], in_place=True)
    shared = [dict(name='feat_w', lr_mult=1), dict(name='feat_b', lr_mult=2)]
    n['feat' + suffix] = L.InnerProduct(n['relu1' + suffix], num_output=2, param=shared, weight_filler=dict(type='xavier'))
    return n['feat' + suffix]


n = caffe.NetSpec()
n.pair_data, n.sim = L.MemoryData(batch_size=50, channels=2, height=6, width=6, ntop=2)
n.data, n.data_p = L.Slice(n.pair_data, ntop=2, slice_dim=1, slice_point=1)
n.flat, n.flat_p = L.Flatten(n.data), L.Flatten(n.data_p)
n.loss = L.ContrastiveLoss(tower(n, n.flat, ''), tower(n, n.flat_p, '_p'), n.sim, margin=1)
with open('siamese_train.prototxt', 'w') as f:
    f.write(str(n.to_proto()))
with open('siamese_solver.prototxt', 'w') as f:
    f.write('net: "siamese_train.prototxt" base_lr: 0.05 lr_policy: "inv" gamma: 0.0001 power: 0.75 momentum: 0.9 '
            'max_iter: 50000 display: 500 snapshot_prefix: "siamese" random_seed: 5')

rng = np.random.RandomState(0)
shapes = rng.rand(3, 6, 6)


def pictures(labels):
    return (shapes[labels] + 0.05 * rng.randn(len(labels), 6, 6)).astype(np.float32)


first, second = rng.randint(3, size=400), rng.randint(3, size=400)
second[::2] = first[::2]
pairs = np.ascontiguousarray(np.stack([pictures(first), pictures(second)], axis=1))

solver = caffe.SGDSolver('siamese_solver.prototxt')
solver.net.set_input_arrays(pairs, (first == second).astype(np.float32))
losses = []
for _ in range(80):
    solver.step(1)
    losses.append(float(solver.net.blobs['loss'].data))
print('loss from', losses[0], 'to', losses[-1])
assert (solver.net.params['ip1'][0].data == solver.net.params['ip1_p'][0].data).all()
assert np.mean(losses[-8:]) < 0.3 * np.mean(losses[:8])
solver.net.save('siamese.caffemodel')

n = caffe.NetSpec()
n.data = L.Input(shape=dict(dim=[20, 36]))
tower(n, n.data, '')
with open('siamese.prototxt', 'w') as f:
    f.write(str(n.to_proto()))
net = caffe.Net('siamese.prototxt', 'siamese.caffemodel', caffe.TEST)
labels = rng.randint(3, size=50)
feat = net.forward_all(data=pictures(labels).reshape(50, 36))['feat']
assert feat.shape == (50, 2)
centres = np.array([feat[labels == c].mean(axis=0) for c in range(3)])
nearest = ((feat[:, np.newaxis] - centres) ** 2).sum(axis=2).argmin(axis=1)
print('accuracy of the nearest centre:', (nearest == labels).mean())
assert (nearest == labels).mean() > 0.95
