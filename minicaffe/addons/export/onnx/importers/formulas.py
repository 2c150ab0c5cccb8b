"""Element-wise functions of ONNX that are several layers of Caffe."""

import math

from minicaffe.addons.export.onnx.conversion import importer
from minicaffe.proto import caffe_pb2

ELTWISE = caffe_pb2.EltwiseParameter
# erf(x) = tanh(x P(x^2)), with a polynomial P that was fitted to atanh(erf(x)) / x: the relative error is at most 1e-7, or 2.5e-7
# in float32. P is positive, so that large values give -1 and 1.
ERF = (1.128379274326359, 0.10276905562383974, -0.00019183044777881596, -0.0006197849431838087, 8.763742719553043e-05,
       -5.66849090977705e-06, 1.418530496646105e-07)


def linear(made, blob, scale=1.0, shift=0.0, power=1.0, last=False):
    """Return the top of a Power layer: (shift + scale x)^power."""
    return made.layer("Power", [blob], "power_param", last=last, scale=scale, shift=shift, power=power)


def error_function(made, x, scale=1.0, last=False):
    """Return erf(scale x)."""
    *terms, leading, highest = (c * scale ** (2 * k + 1) for k, c in enumerate(ERF))
    square = linear(made, x, power=2.0)
    polynomial = linear(made, square, highest, leading)
    for term in reversed(terms):
        polynomial = linear(made, made.product(polynomial, square), shift=term)
    return made.layer("TanH", [made.product(x, polynomial)], last=last)


@importer("Sign")
def sign(made, node):
    above, below = made.layer("Threshold", [made.bottom()]), made.layer("Threshold", [linear(made, made.bottom(), -1.0)])
    made.layer("Eltwise", [above, below], "eltwise_param", last=True, operation=ELTWISE.SUM, coeff=[1.0, -1.0])


@importer("Erf")
def erf(made, node):
    error_function(made, made.bottom(), last=True)


@importer("Gelu")
def gelu(made, node):
    """x (1 + erf(x / sqrt 2)) / 2, or an approximation by a TanH."""
    x = made.bottom()
    if made.attribute("approximate", "none") == "tanh":
        inner = made.layer("Eltwise", [x, linear(made, x, power=3.0)], "eltwise_param", operation=ELTWISE.SUM,
                           coeff=[math.sqrt(2 / math.pi), 0.044715 * math.sqrt(2 / math.pi)])
        inner = made.layer("TanH", [inner])
    else:
        inner = error_function(made, x, math.sqrt(0.5))
    made.product(x, linear(made, inner, 0.5, 0.5), last=True)


@importer("Mish")
def mish(made, node):
    x = made.bottom()
    made.product(x, made.layer("TanH", [made.layer("BNLL", [x])]), last=True)


@importer("Softsign")
def softsign(made, node):
    x = made.bottom()
    made.product(x, linear(made, made.layer("AbsVal", [x]), shift=1.0, power=-1.0), last=True)


@importer("Selu")
def selu(made, node):
    top = made.layer("ELU", [made.bottom()], "elu_param", alpha=made.attribute("alpha", 1.67326319217681884765625))
    linear(made, top, made.attribute("gamma", 1.05070102214813232421875), last=True)


@importer("Celu")
def celu(made, node):
    """alpha ELU(x / alpha)"""
    alpha = made.attribute("alpha", 1.0)
    linear(made, made.layer("ELU", [linear(made, made.bottom(), 1 / alpha)]), alpha, last=True)


@importer("ThresholdedRelu")
def thresholded_relu(made, node):
    x = made.bottom()
    made.product(x, made.layer("Threshold", [x], "threshold_param", threshold=made.attribute("alpha", 1.0)), last=True)
