"""Answers to chapter 5."""

import numpy as np


def pooled_size(size, kernel, stride, pad):
    out = -(-(size + 2 * pad - kernel) // stride) + 1
    return out - 1 if pad and (out - 1) * stride >= size + pad else out


def im2col(picture, kernel, stride, pad):
    padded = np.pad(picture, pad)
    height, width = ((size - kernel) // stride + 1 for size in padded.shape)
    rows = [padded[u:u + (height - 1) * stride + 1:stride, v:v + (width - 1) * stride + 1:stride].ravel()
            for u in range(kernel) for v in range(kernel)]
    return np.array(rows)


def weight_gradient(x, dY, kernel, stride, pad, group):
    outputs = dY.shape[1] // group
    channels = x.shape[1] // group
    gradient = np.zeros((group * outputs, channels, kernel, kernel))
    for n, o, c in np.ndindex(len(x), group * outputs, channels):
        columns = im2col(x[n, o // outputs * channels + c], kernel, stride, pad)
        gradient[o, c] += (columns @ dY[n, o].ravel()).reshape(kernel, kernel)
    return gradient


def receptive_field(layers):
    pixels, step = 1, 1
    for kernel, stride, dilation in layers:
        pixels += (kernel - 1) * dilation * step
        step *= stride
    return pixels


def needs_columns(kernel, stride, pad, dilation):
    return (kernel, stride, pad) != (1, 1, 0)
