# Solving in Python with LeNet, in the style of Caffe's notebook 01-learning-lenet.
import lmdb
import numpy as np

import caffe
from caffe import layers as L, params as P


def write_digits(path, count, seed):
    """Digits that are bars at ten places, in noise."""
    rng = np.random.RandomState(seed)
    env = lmdb.open(path, map_size=1 << 24)
    with env.begin(write=True) as txn:
        for i in range(count):
            label = rng.randint(10)
            image = rng.randint(0, 60, (1, 12, 12)).astype(np.uint8)
            image[0, label:label + 3, 1:11] = 220
            txn.put('{:08d}'.format(i).encode('ascii'), caffe.io.array_to_datum(image, label).SerializeToString())
    env.close()


write_digits('mnist_train_lmdb', 300, 0)
write_digits('mnist_test_lmdb', 100, 1)


def lenet(lmdb, batch_size):
    # our version of LeNet: a series of linear and simple nonlinear transformations
    n = caffe.NetSpec()
    n.data, n.label = L.Data(batch_size=batch_size, backend=P.Data.LMDB, source=lmdb,
                             transform_param=dict(scale=1./255), ntop=2)
    n.conv1 = L.Convolution(n.data, kernel_size=3, num_output=8, weight_filler=dict(type='xavier'))
    n.pool1 = L.Pooling(n.conv1, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    n.conv2 = L.Convolution(n.pool1, kernel_size=3, num_output=12, weight_filler=dict(type='xavier'))
    n.fc1 = L.InnerProduct(n.conv2, num_output=40, weight_filler=dict(type='xavier'))
    n.relu1 = L.ReLU(n.fc1, in_place=True)
    n.score = L.InnerProduct(n.relu1, num_output=10, weight_filler=dict(type='xavier'))
    n.loss = L.SoftmaxWithLoss(n.score, n.label)
    return n.to_proto()


with open('lenet_auto_train.prototxt', 'w') as f:
    f.write(str(lenet('mnist_train_lmdb', 32)))
with open('lenet_auto_test.prototxt', 'w') as f:
    f.write(str(lenet('mnist_test_lmdb', 50)))
with open('lenet_auto_solver.prototxt', 'w') as f:
    f.write('''train_net: "lenet_auto_train.prototxt"
test_net: "lenet_auto_test.prototxt"
test_iter: 2
test_interval: 500
base_lr: 0.05
momentum: 0.9
weight_decay: 0.0005
lr_policy: "inv"
gamma: 0.0001
power: 0.75
display: 100
max_iter: 10000
snapshot: 5000
snapshot_prefix: "lenet"
random_seed: 831486
''')

solver = None  # ignore this workaround for lmdb data (can't instantiate two solvers on the same data)
solver = caffe.SGDSolver('lenet_auto_solver.prototxt')
print([(k, v.data.shape) for k, v in solver.net.blobs.items()])
print([(k, v[0].data.shape) for k, v in solver.net.params.items()])
solver.net.forward()  # train net
solver.test_nets[0].forward()  # test net (there can be more than one)
assert 1.5 < float(solver.net.blobs['loss'].data) < 4
print('train labels:', solver.net.blobs['label'].data[:8])
solver.step(1)
assert np.abs(solver.net.params['conv1'][0].diff[:, 0]).max() > 0

niter = 60
test_interval = 20
train_loss = np.zeros(niter)
test_acc = np.zeros(int(np.ceil(niter / test_interval)))
output = np.zeros((niter, 8, 10))
for it in range(niter):
    solver.step(1)  # SGD by Caffe
    train_loss[it] = solver.net.blobs['loss'].data
    # start the forward pass at conv1 to avoid loading new data
    solver.test_nets[0].forward(start='conv1')
    output[it] = solver.test_nets[0].blobs['score'].data[:8]
    if it % test_interval == 0:
        correct = 0
        for test_it in range(2):
            solver.test_nets[0].forward()
            correct += sum(solver.test_nets[0].blobs['score'].data.argmax(1) == solver.test_nets[0].blobs['label'].data)
        test_acc[it // test_interval] = correct / 100.
        print('Iteration', it, 'accuracy', test_acc[it // test_interval])
print('loss from', train_loss[0], 'to', train_loss[-1])
assert train_loss[-5:].mean() < 0.3 and test_acc[-1] > 0.9 > test_acc[0]
