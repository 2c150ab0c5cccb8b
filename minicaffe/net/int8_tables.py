"""A `Calibration` as the tables that int8 toolchains read: ncnn's calibration table, TensorRT's calibration cache, JSON.

ncnn (its folder tools/quantize, as it is in 2026). ncnn2table writes a line ``LAYER_param_0 SCALE...`` for the weights of each
Convolution, ConvolutionDepthWise and InnerProduct, then a line ``LAYER SCALE`` for the input of each. A scale is 127 / range.
Weights have a scale for each output channel, those of ConvolutionDepthWise one for each group; caffe2ncnn makes that type of each
convolution with groups. A convolution of 3 x 3 with stride and dilation 1 and one group has 31 / range, as ncnn's Winograd
transform needs weights of 6 bits. ncnn2int8 splits lines at spaces, reads 255 characters of a name, takes each name with
``_param_`` as that of weights, and leaves a layer without a line in float32. It quantizes no Deconvolution.

TensorRT (its sampleINT8/README.md, "Calibration file"; onnxruntime reads the same format, `ReadDynamicRange` of
tensorrt_execution_provider_utils.h). The first line is ``TRT-VERSION-EntropyCalibration2``. Each other line is ``TENSOR: HEX``, the
eight hexadecimal digits, most significant first, of the float32 number range / 127. VERSION is 8601 of TensorRT 8.6.1 and 100300 of
10.3.0. TensorRT does not use a cache that it takes as incompatible (NVIDIA/TensorRT, issue 1378). The names of the tensors are
those of the model that `minicaffe.onnx.export` writes. TensorRT's importer of Caffe nets names the last value of a blob by the
blob, too, and what a layer overwrites in place ``(Unnamed Layer* N) [TYPE]_output``.
"""

import json
import math
import struct

from minicaffe.net.activation_range import METHODS, MOST

SIX_BITS = 31           # the greatest value of weights for ncnn's Winograd transform
LONGEST_NAME = 255      # characters that ncnn2int8 reads of a name
TENSORRT_VERSION = 8601


def ncnn_table(calibration, method="kl"):
    """Return ncnn's calibration table, and lines about the layers that are not in it.

    Parameters
    ----------
    calibration : Calibration
    method : str
        ``kl``, ``percentile`` or ``max``: the range of the inputs. Weights have the range of all their values.

    Returns
    -------
    text : str
    notes : list of str
    """
    weights, inputs, notes = [], [], []
    unknown = [layer.name for layer in calibration.layers if layer.type == "Deconvolution"]
    if unknown:
        notes.append(f"ncnn quantizes no Deconvolution, so its table has no lines for {', '.join(unknown)}")
    for layer in calibration.layers:
        unit = layer.input.scale_range(method)
        if layer.type == "Deconvolution" or unit is None:
            continue
        if " " in layer.name or "_param_" in layer.name or len(f"{layer.name}_param_0".encode()) > LONGEST_NAME:
            notes.append(f"ncnn cannot read the name '{layer.name}', as it has a space, '_param_' or more than "
                         f"{LONGEST_NAME - len('_param_0')} bytes: its table has no lines for that layer")
            continue
        ranges = layer.absmax if layer.groups == 1 else layer.absmax.reshape(layer.groups, -1).max(1)
        most = SIX_BITS if layer.small_window else MOST
        weights.append(f"{layer.name}_param_0 " + " ".join(f"{most / (float(one) or 1.0):.9g}" for one in ranges))
        inputs.append(f"{layer.name} {MOST / unit:.9g}")
    return "".join(f"{line}\n" for line in weights + inputs), notes


def tensorrt_cache(calibration, method="kl", version=TENSORRT_VERSION):
    """Return TensorRT's calibration cache, and lines about the values that are not in it; see `ncnn_table`.

    `version` is that of the TensorRT that reads it, as in its libraries: 8601 for 8.6.1, 100300 for 10.3.0.
    """
    lines, notes = [f"TRT-{version}-EntropyCalibration2"], []
    for value in calibration.values.values():
        unit = value.scale_range(method)
        if unit is None:
            continue
        if ":" in value.name:
            notes.append(f"TensorRT's cache cannot hold the name '{value.name}', as it has a colon: it has no line for it")
            continue
        lines.append(f"{value.name}: {struct.pack('>f', unit / MOST).hex()}")
    return "".join(f"{line}\n" for line in lines), notes


def as_dict(calibration):
    """Return all of a Calibration for JSON; what is not finite is None."""
    values = {}
    for name, value in calibration.values.items():
        methods = METHODS if value.thresholds else ()
        snrs = {method: value.snr(method) for method in methods} if value.absmax else dict.fromkeys(methods, math.inf)
        values[name] = {
            "layer": value.layer, "type": value.layer_type, "role": value.role, "count": value.count, "zeros": value.zeros,
            "nan": value.nan, "infinite": value.infinite, "min": value.min if value.count else None,
            "max": value.max if value.count else None, "thresholds": value.thresholds,
            "beyond": {method: value.beyond(method) for method in methods},
            "snr_db": {method: snr if math.isfinite(snr) else None for method, snr in snrs.items()},
            "histogram_end": value.absmax, "histogram": value.histogram.tolist() if methods else None}
    layers = {layer.name: {"type": layer.type, "input": layer.input.name, "groups": layer.groups, "weight_min": layer.low.tolist(),
                           "weight_max": layer.high.tolist()} for layer in calibration.layers}
    return {"batches": calibration.batches, "percentile": calibration.percentile, "values": values, "layers": layers,
            "notes": calibration.notes}


def to_json(calibration):
    """Return all of a Calibration as the bytes of a JSON file, a line for each value and layer."""
    made = as_dict(calibration)
    parts = []
    for key, part in made.items():
        if isinstance(part, dict):
            rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row, separators=(',', ':'))}" for name, row in part.items())
            parts.append(f" {json.dumps(key)}: {{\n{rows}\n }}")
        else:
            parts.append(f" {json.dumps(key)}: {json.dumps(part)}")
    return ("{\n" + ",\n".join(parts) + "\n}\n").encode()
