# The data layer of multilabel.py: pictures with several labels each.
import json

import numpy as np

import caffe


class MultilabelDataLayerSync(caffe.Layer):
    """Gives batches of random scenes: label i says whether the i-th quarter of the picture is bright."""

    def setup(self, bottom, top):
        self.top_names = ['data', 'label']
        params = eval(self.param_str)
        assert 'batch_size' in params, 'Params must include batch size.'
        self.batch_size = params['batch_size']
        self.rng = np.random.RandomState(params['seed'])
        top[0].reshape(self.batch_size, 1, params['im_shape'][0], params['im_shape'][1])
        top[1].reshape(self.batch_size, 4)

    def forward(self, bottom, top):
        for itt in range(self.batch_size):
            multilabel = self.rng.randint(2, size=4)
            im = 0.2 * self.rng.randn(*top[0].data.shape[2:])
            im += np.kron(multilabel.reshape(2, 2), np.ones((4, 4)))
            top[0].data[itt, ...] = im
            top[1].data[itt, ...] = multilabel

    def reshape(self, bottom, top):
        """There is no need to reshape the data, since the input is of fixed size."""

    def backward(self, top, propagate_down, bottom):
        """These layers do not back propagate."""


class Scaled(caffe.Layer):
    """A layer with one parameter: top = w * bottom."""

    def setup(self, bottom, top):
        self.blobs.add_blob(1)
        self.blobs[0].data[...] = json.loads(self.param_str)['start']

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].data.shape)

    def forward(self, bottom, top):
        top[0].data[...] = self.blobs[0].data[0] * bottom[0].data

    def backward(self, top, propagate_down, bottom):
        self.blobs[0].diff[0] += (top[0].diff * bottom[0].data).sum()
        if propagate_down[0]:
            bottom[0].diff[...] = self.blobs[0].data[0] * top[0].diff
