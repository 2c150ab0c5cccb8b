"""Layers of forks that give the bottom's values in another order: axes, channels, blocks of pixels."""

import math

import numpy as np

from minicaffe.addons.forks.base import ForkLayer
from minicaffe.addons.forks.messages import Field


class RearrangedLayer(ForkLayer):
    """Every value of the bottom is one value of the top.

    A type defines ``order(array)``, which returns a view of an array of the bottom's shape, with the values in the order of the
    top, and ``top_shape(shape)``.
    """

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1
    refuses_in_place = True
    backward_reads_bottoms = backward_reads_tops = False

    def reshape(self, bottom, top):
        top[0].reshape(*self.top_shape(bottom[0].shape))

    def forward(self, bottom, top):
        if bottom[0].count:     # the array of a blob without a shape does not fit `order`
            ordered = self.order(bottom[0].data)
            top[0].data.reshape(ordered.shape)[...] = ordered

    def backward(self, top, propagate_down, bottom):
        if propagate_down[0] and bottom[0].count:
            ordered = self.order(bottom[0].diff)
            ordered[...] = top[0].diff.reshape(ordered.shape)


class ReverseLayer(RearrangedLayer):
    """The bottom with the values along `reverse_param.axis` in reverse order.

    ReverseAxis of textspotter and Flip of caffe-windows are read as this type. Source: ctpn reverse_layer.cpp.
    """

    message = "reverse_param"
    fields_of_message = (Field("axis", [int], "one axis or several; 0 if it is not given", 0),)

    def top_shape(self, shape):
        for axis in self.axes():
            if axis >= len(shape):
                raise self.value_error("axis", f"must be an axis of the bottom, whose shape is {list(shape)}")
        return shape

    def axes(self):
        """Return the axes as a list."""
        return self.values["axis"] or [0]

    def order(self, array):
        return np.flip(array, self.axes())


class SqueezeLayer(RearrangedLayer):
    """The bottom without the axes `squeeze_param.axis`, whose sizes are 1; without all axes of size 1 if none is named.

    Source: synopsys squeeze_layer.cpp.
    """

    message = "squeeze_param"
    fields_of_message = (Field("axis", [int], "axes to remove; negative axes count from the end"),)

    def top_shape(self, shape):
        count = len(shape)
        for axis in self.values["axis"]:
            if not -count <= axis < count or shape[axis] != 1:
                raise self.value_error("axis", f"must be an axis of size 1 of the bottom, whose shape is {list(shape)}")
        gone = {axis % count for axis in self.values["axis"]} or {axis for axis in range(count) if shape[axis] == 1}
        return [size for axis, size in enumerate(shape) if axis not in gone]

    def order(self, array):
        return array


class BlocksLayer(RearrangedLayer):
    """Base: the axes of the bottom are cut into parts, which get another order.

    A type defines ``parts(shape)``, which returns the sizes of the parts, and their order as of `numpy.transpose`.
    """

    def order(self, array):
        sizes, order = self.parts(array.shape)
        return array.reshape(sizes).transpose(order)


class ShuffleChannelLayer(BlocksLayer):
    """Mixes the channels of groups: channel j g + i of the top is channel i C / g + j of the bottom, for g groups.

    Source: farmingyard shuffle_channel_layer.cpp (Zhang et al. 2018, ShuffleNet).
    """

    message = "shuffle_channel_param"
    fields_of_message = (Field("group", 1, "the number of groups; divides the channels", 1),)

    def top_shape(self, shape):
        if len(shape) < 2 or shape[1] % self.values["group"]:
            raise self.value_error("group", f"must divide the channels of the bottom, whose shape is {list(shape)}")
        return shape

    def parts(self, shape):
        (num, channels, *plane), groups = shape, self.values["group"]
        return [num, groups, channels // groups, *plane], [0, 2, 1, *range(3, 3 + len(plane))]


class ReorgLayer(BlocksLayer):
    """Moves blocks of `stride` x `stride` pixels to channels, in the order of Darknet; `reverse` moves channels to blocks.

    Forward gives (N, C s s, H / s, W / s). Darknet reads the bottom as if it had C / s^2 channels of H s x W s pixels, so this is
    not the usual space-to-depth order. `reverse` gives (N, C / s^2, H s, W s) in the usual depth-to-space order: pixel (h s + i,
    w s + j) of channel t of the top is pixel (h, w) of channel (i s + j) C / s^2 + t.

    Different from its forks: it follows changes of shape, and has a gradient.

    Source: mobilenet-yolo reorg_layer.cpp (Redmon and Farhadi 2017, YOLO9000).
    """

    message = "reorg_param"
    fields_of_message = (Field("stride", int, "the side of a block", 1), Field("reverse", False, "channels to blocks"))

    def top_shape(self, shape):
        stride = self.values["stride"]
        if len(shape) != 4 or shape[1] % stride ** 2 or not self.values["reverse"] and (shape[2] % stride or shape[3] % stride):
            what = "channels must be a multiple of its square" + ", height and width of itself" * (not self.values["reverse"])
            raise self.value_error("stride", f"does not fit the bottom (num, channels, height, width), {list(shape)}: {what}")
        num, channels, height, width = shape
        if self.values["reverse"]:
            return num, channels // stride ** 2, height * stride, width * stride
        return num, channels * stride ** 2, height // stride, width // stride

    def parts(self, shape):
        (num, channels, height, width), stride = shape, self.values["stride"]
        inner = channels // stride ** 2
        if self.values["reverse"]:
            return [num, stride, stride, inner, height, width], [0, 3, 4, 1, 5, 2]
        return [num, inner, height, stride, width, stride], [0, 3, 5, 1, 2, 4]


class RearrangeLayer(BlocksLayer):
    """Moves channels to blocks of pixels: with C = `depth` s^2 channels the top is (N, depth, H s, W s), as PixelShuffle.

    Pixel (h s + i, w s + j) of channel d of the top is pixel (h, w) of channel (d s + i) s + j of the bottom.

    Source: caffe-videoSR rearrange_layer.cpp (Shi et al. 2016, ESPCN).
    """

    message = "rearrange_param"
    fields_of_message = (Field("depth", 1, "the number of channels of the top", 1),)

    def top_shape(self, shape):
        depth = self.values["depth"]
        if len(shape) != 4 or shape[1] != depth * self.side(shape) ** 2:
            raise self.value_error("depth", "times a square must be the number of channels of the bottom (num, channels, height, "
                                   f"width), {list(shape)}")
        return shape[0], depth, shape[2] * self.side(shape), shape[3] * self.side(shape)

    def side(self, shape):
        """Return the side of a block."""
        return math.isqrt(shape[1] // self.values["depth"])

    def parts(self, shape):
        (num, _, height, width), side = shape, self.side(shape)
        return [num, self.values["depth"], side, side, height, width], [0, 1, 4, 2, 5, 3]
