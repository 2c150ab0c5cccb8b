# Features of an inner layer, written to LMDB and HDF5 and read back.
import h5py
import lmdb
import numpy as np

import caffe
from caffe.proto import caffe_pb2

with open('net.prototxt', 'w') as f:
    f.write('''layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 8 dim: 2 dim: 6 dim: 6 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 4 kernel_size: 3
  weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "fc7" type: "InnerProduct" bottom: "conv" top: "fc7" inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "fc7" top: "prob" }''')
caffe.set_random_seed(4)
net = caffe.Net('net.prototxt', caffe.TEST)
images = np.random.RandomState(0).rand(21, 2, 6, 6).astype(np.float32)

out = net.forward_all(blobs=['conv', 'fc7'], data=images)
assert out['fc7'].shape == (21, 5) and out['conv'].shape == (21, 4, 4, 4) and out['prob'].shape == (21, 5)

env = lmdb.open('features', map_size=1 << 22)
with env.begin(write=True) as txn:
    for i, feature in enumerate(out['fc7']):
        datum = caffe.io.array_to_datum(feature[:, np.newaxis, np.newaxis].astype(float))
        txn.put('{:0>10d}'.format(i).encode(), datum.SerializeToString())
with env.begin() as txn:
    for i, (key, value) in enumerate(txn.cursor()):
        datum = caffe_pb2.Datum()
        datum.ParseFromString(value)
        assert np.allclose(caffe.io.datum_to_array(datum).ravel(), out['fc7'][i])
assert i == 20

with h5py.File('features.h5', 'w') as f:
    f['fc7'] = out['fc7']

# up to a layer, and on from it
net.blobs['data'].data[...] = images[:8]
half = net.forward(end='fc7')
assert list(half) == ['fc7'] and np.allclose(half['fc7'], out['fc7'][:8], atol=1e-6)
assert np.allclose(net.forward(start='prob')['prob'], out['prob'][:8], atol=1e-6)

seen = []
net.after_forward(lambda index: seen.append(net._layer_names[index]))
net.forward()
assert seen == ['data', 'conv', 'relu', 'fc7', 'prob']

blob = caffe.io.array_to_blobproto(images.mean(axis=0)[np.newaxis])
with open('mean.binaryproto', 'wb') as f:
    f.write(blob.SerializeToString())
blob = caffe.proto.caffe_pb2.BlobProto()
with open('mean.binaryproto', 'rb') as f:
    blob.ParseFromString(f.read())
assert np.allclose(caffe.io.blobproto_to_array(blob)[0], images.mean(axis=0))

net.save_hdf5('weights.h5')
other = caffe.Net('net.prototxt', caffe.TEST)
other.load_hdf5('weights.h5')
assert np.allclose(other.forward_all(data=images)['prob'], out['prob'], atol=1e-6)
print('features of', len(images), 'pictures agree')
