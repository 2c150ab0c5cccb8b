"""BN of forks: in one layer what BVLC Caffe's BatchNorm and Scale compute in two."""

import numpy as np

from minicaffe.addons.forks.base import ForkLayer, as_planes
from minicaffe.addons.forks.messages import Field
from minicaffe.common import TRAIN
from minicaffe.errors import ConfigError, ShapeError
from minicaffe.proto import caffe_pb2
from minicaffe.proto.fields import Fields
from minicaffe.proto.stored import equal_but_unit_axes

SEGNET_EPS = 1e-9
SEGNET_FIELDS = {"scale_filler", "shift_filler", "bn_mode"}
PSPNET_FIELDS = {"slope_filler", "bias_filler", "momentum", "eps", "frozen"}


class BNLayer(ForkLayer):
    """``top = scale z + shift`` with ``z = (bottom - mean) / sqrt(variance + eps)``, for each channel.

    Two forks have layers of this name. SegNet's is chosen by any of these: `scale_filler`, `shift_filler` or `bn_mode` is given,
    there are several tops, the file embeds two blobs, or `icnet` is false. Otherwise, and if `icnet` is true, it is PSPNet's. The
    choice is made before weights are loaded. Weights of the other fork have another number of blobs, which is an error.

    SegNet's has the blobs scale and shift. With `bn_mode` LEARN mean and variance are those of the batch, also in TEST, and eps
    is 1e-9. With INFERENCE z is the bottom: a script of SegNet has combined the trained weights with the statistics.

    PSPNet's has the blobs slope (scale), bias (shift), mean and variance. In TRAIN mean and variance are those of the batch. Each
    of the two blobs becomes `momentum` times its value plus (1 - momentum) times that of the batch. In TEST, and if `frozen`, the
    two blobs are used. Their learning rates and decays are always 0. With `frozen` those of all blobs are 0, and no parameter gets
    a gradient. The BN of ICNet (synopsys) and of TSN is the same.

    Fillers that are not given fill with 0, as in the forks; the variance starts with 0, or if `frozen` with 1. The variance is the
    biased one. Weights of shape (C), (1, C) and (1, C, 1, 1) are loaded.

    Different from its forks: gradients of SegNet's parameters are added, so that `iter_size` works, the batch may change its
    shape, and the layer works in place. The fourth blob is read as a variance. In caffe-windows' BN it is the inverse standard
    deviation; files of both look the same.

    Source: segnet bn_layer.cpp, pspnet and tsn bn_layer.cpp (Ioffe and Szegedy 2015).

    Parameters
    ----------
    bottom[0] : Blob, shape (N, C, ...)
    top[0] : Blob, of the same shape; in place is fine
    top[1], top[2] : Blob, shape (1, C, 1, 1), only of SegNet's with LEARN
        Mean and variance of the batch; give no gradient.
    blobs : Blob, shape (1, C, 1, 1) each
    """

    exact_num_bottom_blobs = 1
    min_top_blobs, max_top_blobs = 1, 3
    backward_reads_tops = False
    ignores_unit_axes = True

    message = "bn_param"
    fields_of_message = (
        Field("scale_filler", Fields(), "SegNet's: of the scale"), Field("shift_filler", Fields(), "SegNet's: of the shift"),
        Field("bn_mode", "LEARN", "SegNet's: LEARN or INFERENCE", choices=("LEARN", "INFERENCE")),
        Field("slope_filler", Fields(), "PSPNet's: of the slope"), Field("bias_filler", Fields(), "PSPNet's: of the bias"),
        Field("momentum", 0.9, "PSPNet's: of mean and variance", 0), Field("eps", 1e-5, "PSPNet's: is added to the variance", 0),
        Field("frozen", False, "PSPNet's: train nothing"), Field("icnet", False, "PSPNet's in synopsys"))
    ignored = ("engine",)

    def layer_setup(self, bottom, top):
        super().layer_setup(bottom, top)
        values, segnet, pspnet = self.values, self.given & SEGNET_FIELDS, self.given & PSPNET_FIELDS
        if values["icnet"]:
            pspnet.add("icnet")
        if segnet and pspnet:
            raise ConfigError(f"belongs to PSPNet's BN, {', '.join(sorted(segnet))} to SegNet's; give fields of one of them",
                              field=f"{self.message}.{min(pspnet)}")
        self.segnet = bool(segnet) or not pspnet and ("icnet" in self.given or len(top) > 1 or len(self.param.blobs) == 2)
        if values["momentum"] > 1:
            raise self.value_error("momentum", "must be at most 1")
        self.inference = values["bn_mode"] == "INFERENCE"
        if len(top) > 1 and (self.inference or not self.segnet):
            raise ConfigError(f"only SegNet's BN with bn_mode LEARN has mean and variance as further tops, got {len(top)} tops",
                              field="top")
        self.eps = SEGNET_EPS if self.segnet else values["eps"]
        self.frozen = values["frozen"]
        self.uses_batch_statistics = not self.inference if self.segnet else self.phase == TRAIN and not self.frozen
        self._make_params(self._channels(bottom[0]))
        self.statistics = self.new_blob(what="mean and inverse standard deviation")
        self.saved_z = self.new_blob(what="normalized bottom")

    def _channels(self, blob):
        if len(blob.shape) < 2 or not blob.shape[1]:
            raise ShapeError(f"needs at least 2 axes, channels are axis 1; the bottom has shape {list(blob.shape)}",
                             field="bottom[0]")
        return blob.shape[1]

    def _make_params(self, channels):
        shape = 1, channels, 1, 1
        for stored in self.param.blobs:
            if equal_but_unit_axes(stored.shape.dim, shape):
                stored.shape.dim[:] = shape
        for name in ("scale_filler", "shift_filler") if self.segnet else ("slope_filler", "bias_filler"):
            self.add_filled(shape, name)
        if self.segnet:
            return
        for value in 0, self.frozen:
            self.add_param(shape, caffe_pb2.FillerParameter(value=value), self.message)
        while len(self.param.param) < 4:
            self.param.param.add()
        for spec in self.param.param[0 if self.frozen else 2:]:
            spec.lr_mult = spec.decay_mult = 0

    def scratch_blobs(self):
        return [self.statistics, self.saved_z]

    def reshape(self, bottom, top):
        channels = self.blobs[0].count
        if self._channels(bottom[0]) != channels:
            raise ShapeError(f"needs {channels} channels, the bottom has shape {list(bottom[0].shape)}", field="bottom[0]")
        top[0].reshape(*bottom[0].shape)
        for blob in top[1:]:
            blob.reshape(1, channels, 1, 1)
        self.statistics.reshape(2, channels)
        self.saved_z.reshape(*bottom[0].shape if top[0] is bottom[0] and not self.frozen else (0,))

    def _mean_and_variance(self, x):
        """Return mean and variance of each channel, in float64."""
        if not self.uses_batch_statistics:
            return [blob.data.reshape(-1).astype(np.float64) for blob in self.blobs[2:]]
        if not x.size:
            return np.zeros((2, x.shape[1]))
        mean = x.mean(axis=(0, 2), dtype=np.float64)
        return mean, np.square(x - mean[:, None]).mean(axis=(0, 2))

    def _normalized(self, x):
        if self.inference:
            return x
        mean, inverse = self.statistics.data[..., None]
        return (x - mean) * inverse

    def forward(self, bottom, top):
        x = as_planes(bottom[0].data)
        if not self.inference:
            mean, variance = self._mean_and_variance(x)
            self.statistics.data[0] = mean
            self.statistics.data[1] = 1 / np.sqrt(variance + self.eps)
            for blob, value in zip(top[1:], (mean, variance)):
                blob.data[...] = value.reshape(blob.shape)
            if self.uses_batch_statistics and not self.segnet and x.size:
                momentum = self.values["momentum"]
                for blob, value in zip(self.blobs[2:], (mean, variance)):
                    blob.data[...] = momentum * blob.data + (1 - momentum) * value.reshape(blob.shape)
        z = self._normalized(x)
        if self.saved_z.count:
            self.saved_z.data[...] = z.reshape(bottom[0].shape)
        scale, shift = (blob.data.reshape(-1, 1) for blob in self.blobs[:2])
        y = as_planes(top[0].data)
        np.multiply(scale, z, out=y)
        y += shift

    def backward(self, top, propagate_down, bottom):
        dy = as_planes(top[0].diff)
        if not self.frozen:
            z = as_planes(self.saved_z.data) if top[0] is bottom[0] else self._normalized(as_planes(bottom[0].data))
            sums = (dy * z).sum(axis=(0, 2), dtype=np.float64), dy.sum(axis=(0, 2), dtype=np.float64)
            for i, blob in enumerate(self.blobs[:2]):
                if self.param_propagate_down[i:i + 1] != [False]:
                    blob.diff[...] += sums[i].reshape(blob.shape)
        if propagate_down[0]:
            if self.uses_batch_statistics and dy.size:
                mean_dy_z, mean_dy = ((part / (dy.size // len(part))).astype(dy.dtype)[:, None] for part in sums)
                dy = dy - mean_dy - z * mean_dy_z
            factor = self.blobs[0].data.reshape(-1, 1)
            as_planes(bottom[0].diff)[...] = dy * (factor if self.inference else factor * self.statistics.data[1][:, None])
