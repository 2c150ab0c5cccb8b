"""Compare minicaffe with the Caffe importer of OpenCV 4 on files that minicaffe writes, and write docs/opencv_models.md.

    pip install "opencv-python-headless<5"
    python tools/opencv_table.py [--out docs/opencv_models.md] [--only lenet]

Each deploy net in models/, and small nets of single layer types, is filled by its fillers with a fixed seed, given biases and
running sums that are not zero, and saved as prototxt and caffemodel; `cv2.dnn.readNetFromCaffe` reads them and computes the
same outputs. The other way round, `cv2.dnn.shrinkCaffeModel` writes each caffemodel in half precision, and minicaffe reads that.
"""

import argparse
import dataclasses
import gc
import sys
import tempfile
from pathlib import Path

import numpy as np

import minicaffe as caffe
from minicaffe import layers as L
from minicaffe import params as P
from minicaffe.proto import caffe_pb2, text, upgrade

ROOT = Path(__file__).resolve().parents[1]
SIDES = {"fcn": 64}  # of the picture, where the net takes any
LARGEST = 1e-4       # relative difference that counts as equal

GAUSSIAN = dict(type="gaussian")


def convolution(x, kind=L.Convolution, num_output=6, filler=GAUSSIAN, **fields):
    """Return the Top of a Convolution or Deconvolution."""
    return kind(x, convolution_param=dict(num_output=num_output, weight_filler=filler, **fields))


def inner_product(x, **fields):
    """Return the Top of an InnerProduct."""
    return L.InnerProduct(x, num_output=5, weight_filler=GAUSSIAN, **fields)


def in_place(x):
    """Return the Top of a net whose ReLU works in place and is read twice."""
    relu = L.ReLU(convolution(x, kernel_size=1), in_place=True)
    return L.Eltwise(relu, L.TanH(relu))


# Nets of one layer, as functions of the input, 2 x 4 x 9 x 9 between -2 and 2.
LAYERS = {
    "AbsVal": L.AbsVal,
    "ArgMax, axis 1": lambda x: L.ArgMax(x, axis=1),
    "BNLL": L.BNLL,
    "BatchNorm": L.BatchNorm,
    "BatchNorm and Scale": lambda x: L.Scale(L.BatchNorm(x), bias_term=True, filler=GAUSSIAN),
    "Bias": lambda x: L.Bias(x, filler=GAUSSIAN),
    "Clip": lambda x: L.Clip(x, min=-1, max=1.5),
    "Concat, axis 2": lambda x: L.Concat(x, L.TanH(x), axis=2),
    "Convolution, stride and pad": lambda x: convolution(x, kernel_size=3, stride=2, pad=1),
    "Convolution, 3 x 1, no bias": lambda x: convolution(x, kernel_h=3, kernel_w=1, pad_h=1, pad_w=0, bias_term=False),
    "Convolution, groups": lambda x: convolution(x, kernel_size=3, group=2),
    "Convolution, depthwise": lambda x: convolution(x, num_output=4, kernel_size=3, group=4),
    "Convolution, dilation": lambda x: convolution(x, kernel_size=3, dilation=2),
    "Crop": lambda x: L.Crop(x, L.Pooling(x, kernel_size=3), axis=2, offset=1),
    "Deconvolution": lambda x: convolution(x, L.Deconvolution, kernel_size=4, stride=2, pad=1),
    "Deconvolution, groups": lambda x: convolution(x, L.Deconvolution, 4, dict(type="bilinear"), group=4, kernel_size=4, stride=2),
    "Dropout": L.Dropout,
    "ELU": lambda x: L.ELU(x, alpha=0.5),
    "Eltwise, MAX": lambda x: L.Eltwise(x, L.TanH(x), operation=P.Eltwise.MAX),
    "Eltwise, PROD": lambda x: L.Eltwise(x, L.TanH(x), operation=P.Eltwise.PROD),
    "Eltwise, SUM with coeff": lambda x: L.Eltwise(x, L.TanH(x), coeff=[2, -0.5]),
    "Exp": lambda x: L.Exp(x, base=2, scale=0.5, shift=0.25),
    "Flatten": L.Flatten,
    "InnerProduct": inner_product,
    "InnerProduct, axis 2": lambda x: inner_product(x, axis=2),
    "InnerProduct, transposed": lambda x: inner_product(x, transpose=True),
    "LRN": lambda x: L.LRN(x, local_size=3, alpha=0.5),
    "LRN within a channel": lambda x: L.LRN(x, local_size=3, alpha=0.5, norm_region=P.LRN.WITHIN_CHANNEL),
    "Log": lambda x: L.Log(L.AbsVal(x), shift=1),
    "MVN": L.MVN,
    "MVN, across channels": lambda x: L.MVN(x, across_channels=True),
    "MVN, mean only": lambda x: L.MVN(x, normalize_variance=False),
    "PReLU": lambda x: L.PReLU(x, filler=GAUSSIAN),
    "PReLU, shared": lambda x: L.PReLU(x, channel_shared=True),
    "Pooling, AVE with pad": lambda x: L.Pooling(x, pool=P.Pooling.AVE, kernel_size=3, stride=2, pad=1),
    "Pooling, MAX": lambda x: L.Pooling(x, kernel_size=2, stride=2),
    "Pooling, MAX with pad": lambda x: L.Pooling(x, kernel_size=3, stride=2, pad=1),
    "Pooling, rounded down": lambda x: L.Pooling(x, kernel_size=2, stride=2, round_mode=P.Pooling.FLOOR),
    "Pooling, global": lambda x: L.Pooling(x, pool=P.Pooling.AVE, global_pooling=True),
    "Power": lambda x: L.Power(L.AbsVal(x), power=1.5, scale=2, shift=1),
    "ReLU, in place and read twice": in_place,
    "ReLU, leaky": lambda x: L.ReLU(x, negative_slope=0.1),
    "Reduction, MEAN": lambda x: L.Reduction(x, operation=P.Reduction.MEAN, axis=1),
    "Reshape": lambda x: L.Reshape(x, shape=dict(dim=[0, 2, -1])),
    "SPP": lambda x: L.SPP(x, pyramid_height=2),
    "Scale": lambda x: L.Scale(x, filler=GAUSSIAN),
    "Scale of two bottoms": lambda x: L.Scale(x, L.Flatten(L.Pooling(x, pool=P.Pooling.AVE, global_pooling=True)), axis=0),
    "Sigmoid": L.Sigmoid,
    "Slice": lambda x: L.Eltwise(*L.Slice(x, axis=1, ntop=2)),
    "Softmax": L.Softmax,
    "Softmax, axis 2": lambda x: L.Softmax(x, axis=2),
    "Swish": L.Swish,
    "TanH": L.TanH,
    "Threshold": lambda x: L.Threshold(x, threshold=0.5),
    "Tile": lambda x: L.Tile(x, axis=1, tiles=2),
}


@dataclasses.dataclass
class Row:
    """What came out for a net: `difference` of OpenCV's outputs, `half` of minicaffe's own with the weights that OpenCV wrote.

    Both are the largest difference, divided by the largest value; None where there is none. `error` is OpenCV's.
    """

    name: str
    difference: float | None = None
    half: float | None = None
    error: str = ""


def deploy_nets():
    """Return the files of the deploy nets in models/ by name."""
    files = sorted([*ROOT.glob("models/*/deploy*.prototxt"), *ROOT.glob("models/*/published*.prototxt")])
    return {path.relative_to(ROOT / "models").with_suffix("").as_posix(): path for path in files}


def layer_net(name):
    """Return the NetParameter of an entry of LAYERS."""
    n = caffe.NetSpec()
    n.data = L.Input(shape=dict(dim=[2, 4, 9, 9]))
    n.y = LAYERS[name](n.data)
    return n.to_proto()


def model_net(name):
    """Return the NetParameter of a deploy net, with a small picture where the net takes any size."""
    param, _ = upgrade.read_net_file(str(deploy_nets()[name]))
    side = SIDES.get(name.partition("/")[0])
    if side:
        param.layer[0].input_param.shape[0].dim[2:] = [side, side]
    return param


def slim(param):
    """Return a copy of a NetParameter with an eighth of the width in convolutions of 3 x 3 and more, and 64 in fc6 and fc7."""
    net = caffe_pb2.NetParameter()
    net.CopyFrom(param)
    for layer in net.layer:
        if layer.name in ("fc6", "fc7"):
            (layer.inner_product_param if layer.type == "InnerProduct" else layer.convolution_param).num_output = 64
        elif layer.type == "Convolution" and layer.convolution_param.kernel_size[0] > 1:
            layer.convolution_param.num_output //= 8
    return net


def filled(param, seed=1):
    """Return a net whose weights and inputs are seeded, with sensible numbers where fillers give zeros, and that has run."""
    caffe.set_random_seed(seed)
    net = caffe.Net(param, caffe.TEST)
    random = np.random.default_rng(seed)
    for name in net.inputs:
        blob = net.blobs[name]
        # Other inputs are indices and what resets an LSTM, so that running twice gives the same.
        blob.data[...] = random.uniform(-2, 2, blob.shape) if blob.num_axes == 4 else 0
    first = 0
    for index, layer in enumerate(net.layers):
        if layer.type == "BatchNorm":
            net.forward_from_to(first, index - 1)
            first = index
            give_statistics(layer, net.bottoms[index][0].cpu_data)
            continue
        for blob in layer.blobs:
            if not blob.cpu_data.any():
                blob.data[...] = random.normal(scale=0.1, size=blob.shape)
    net.forward_from_to(first, len(net.layers) - 1)
    return net


def give_statistics(layer, x):
    """Set the running sums of a BatchNorm to those of its bottom, as two passes of training would leave them."""
    axes = (0, *range(2, x.ndim))
    mean, variance, weight = layer.blobs
    mean.data[...] = 2 * x.mean(axis=axes)
    variance.data[...] = 2 * (x.var(axis=axes) + 0.01)
    weight.data[...] = 2


def watched(net):
    """Return the names of the blobs to compare: the outputs, and what goes into a last Softmax, which hides differences."""
    names = list(net.outputs)
    last = net.nodes[-1]
    return names + [last.bottoms[0].name] if last.type == "Softmax" and len(net.nodes) > 2 else names


def relative(a, b):
    """Return the largest difference of two arrays by the largest absolute value of the second.

    Rows of detections are ordered by score, so that near ties change places: each is compared with the nearest of the others.
    """
    if np.ndim(b) == 4 and np.shape(b)[:2] == (1, 1) and np.shape(b)[3] == 7:
        apart = np.abs(np.asarray(a, np.float64)[0, 0, :, np.newaxis] - b[0, 0]).max(axis=2)
        return float(max(apart.min(axis=0).max(), apart.min(axis=1).max()) / np.abs(b).max())
    return float(np.abs(np.asarray(a, np.float64) - b).max() / max(np.abs(b).max(), 1e-30))


def compare(cv2, name, param, folder):
    """Compare OpenCV with minicaffe on a NetParameter, by files in `folder`; return a Row.

    Errors of OpenCV go into the row, those of minicaffe are raised.
    """
    files = [str(Path(folder) / f"net{suffix}") for suffix in (".prototxt", ".caffemodel", ".half.caffemodel")]
    Path(files[0]).write_text(text.write_text(param))
    net = filled(param)
    net.save(files[1])
    given = {name: net.blobs[name].cpu_data.copy() for name in net.inputs}
    ours = {name: net.blobs[name].cpu_data.copy() for name in watched(net)}
    row = Row(name)
    try:
        theirs = cv2.dnn.readNetFromCaffe(files[0], files[1])
        for blob, values in given.items():
            theirs.setInput(values, blob)
        makers = {top.name: node.name for node in net.nodes for top in node.tops}
        known = set(theirs.getLayerNames())
        names = list(ours)
        results = theirs.forward([blob if blob in known else makers[blob] for blob in names])
        shapes = [(result.shape, ours[blob].shape) for blob, result in zip(names, results) if result.size != ours[blob].size]
        if shapes:
            row.error = f"gives the shape {shapes[0][0]} in place of {shapes[0][1]}"
        else:
            row.difference = max(relative(result.reshape(ours[blob].shape), ours[blob]) for blob, result in zip(names, results))
    except cv2.error as error:
        row.error = said(error)
    cv2.dnn.shrinkCaffeModel(files[1], files[2])
    net.copy_from(files[2])
    for blob, values in given.items():
        net.blobs[blob].data[...] = values
    net.forward_from_to(0, len(net.layers) - 1)
    row.half = max(relative(net.blobs[blob].cpu_data, values) for blob, values in ours.items())
    for file in files:
        Path(file).unlink()
    return row


def said(error):
    """Return what an error of OpenCV says, on one line, without its source's path and the pipes that end a table's cell."""
    words = " ".join((getattr(error, "err", "") or str(error)).split()).replace("|", "\\|")
    return words if len(words) <= 160 else words[:157] + "..."


def page(version, models, layers):
    """Return the page of two lists of Row."""
    lines = [
        "# Which models does OpenCV 4 read?",
        "",
        f"Written by `tools/opencv_table.py` with OpenCV {version}; see [coming from OpenCV](opencv_migration.md).",
        "",
        "minicaffe filled each net with seeded numbers and wrote prototxt and caffemodel. OpenCV's `readNetFromCaffe` read them",
        "and computed the outputs for the same input.",
        "",
        "- *OpenCV reads it*: \"otherwise\" means that OpenCV reads the net but its results are not Caffe's. OpenCV ignores",
        "  `transpose` of InnerProduct, and `base`, `scale` and `shift` of Log.",
        "- *Difference* is the largest difference of all outputs (and of the input of a last Softmax), divided by the largest",
        "  value.",
        "- *Half precision*: OpenCV's `shrinkCaffeModel` wrote the weights of convolutions and inner products in 16 bits, and",
        "  minicaffe read that file. The figure is the change of minicaffe's outputs. A 16-bit number is exact to 0.0005. In nets",
        "  with many BatchNorms and random weights the change is larger, and so it is in SSD, which chooses boxes. OpenCV writes",
        "  no other file of Caffe's: `cv2.dnn.writeTextGraph` is for TensorFlow's.",
    ]
    for title, rows in (("Models", models), ("Single layers", layers)):
        equal = sum(row.difference is not None and row.difference <= LARGEST for row in rows)
        lines += ["", f"## {title}", "", f"{equal} of {len(rows)} are equal within {LARGEST:g}.", "",
                  "| net | OpenCV reads it | difference | half precision | OpenCV's error |", "|---|---|---|---|---|"]
        for row in rows:
            numbers = ["" if value is None else f"{value:.1e}" for value in (row.difference, row.half)]
            reads = "no" if row.difference is None else "yes" if row.difference <= LARGEST else "otherwise"
            lines.append(f"| {row.name} | {reads} | {numbers[0]} | {numbers[1]} | {row.error} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "opencv_models.md")
    parser.add_argument("--only", default="", help="compare only nets whose name holds this, and print the page")
    arguments = parser.parse_args()
    import cv2
    if not hasattr(cv2.dnn, "readNetFromCaffe"):
        sys.exit(f'OpenCV {cv2.__version__} has no Caffe importer any more: pip install "opencv-python-headless<5"')
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for names, net in ((deploy_nets(), model_net), (LAYERS, layer_net)):
            rows.append([])
            for name in names:
                if arguments.only in name:
                    rows[-1].append(compare(cv2, name, net(name), folder))
                    print(rows[-1][-1], file=sys.stderr)
                    gc.collect()  # a net is given back before the next one is made
    content = page(cv2.__version__, *rows)
    if arguments.only:
        print(content)
    else:
        arguments.out.write_text(content)


if __name__ == "__main__":
    main()
