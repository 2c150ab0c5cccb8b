"""Parameter: a learned blob as a top (Caffe parameter_layer.cpp)."""

from minicaffe.errors import ConfigError, ShapeError
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2


class ParameterLayer(Layer):
    """One parameter of ``parameter_param.shape``, zero at first; the top shares its data.

    Different from Caffe: a top that a layer changes in place is a copy. The gradient is added to the parameter's diff, as in every
    other layer. There the top shares the diff too, so that each consumer overwrites it and ``iter_size`` > 1 loses all gradients
    but the last.
    """

    exact_num_bottom_blobs = 0
    exact_num_top_blobs = 1
    overwritten = ()    # [0] if a layer in place changes the top; set by net/build.py

    def layer_setup(self, bottom, top):
        if not self.param.parameter_param.HasField("shape"):
            raise ConfigError("must be given", field="parameter_param.shape")
        try:
            self.add_param(tuple(self.param.parameter_param.shape.dim), caffe_pb2.FillerParameter(), filler_field="")
        except ShapeError as error:
            raise error.at(field="parameter_param.shape") from None

    def reshape(self, bottom, top):
        top[0].reshape_like(self.blobs[0])
        if not self.overwritten:
            top[0].share_data(self.blobs[0])
            return
        if top[0].data_memory is self.blobs[0].data_memory:
            top[0].release()    # it shared the data before `overwritten` was set: give it memory of its own
        top[0].copy_from(self.blobs[0])

    def forward_cpu(self, bottom, top):
        # Weight sharing between layers gives the parameter other memory after this layer was set up.
        self.reshape(bottom, top)

    def backward_cpu(self, top, propagate_down, bottom):
        if self.param_propagate_down[0]:
            self.blobs[0].diff[...] += top[0].cpu_diff
