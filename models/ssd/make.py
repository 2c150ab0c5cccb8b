"""Write an SSD300 on VGG16 (Liu et al., "SSD: Single Shot MultiBox Detector", 2016): train, test, deploy and solver prototxt.

    python models/ssd/make.py [FOLDER] [--train DB] [--test DB] [--classes 21] [--label-map FILE] [--batch 32]

Layer names and shapes are those of the public models, so that their weights fit.
"""

import argparse
import sys
from pathlib import Path

from minicaffe import layers as L
from minicaffe import params as P
from minicaffe.errors import Error
from minicaffe.net_spec import NetSpec
from minicaffe.proto import caffe_pb2

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import making  # noqa: E402

SIDE = 300
MEAN = [104, 117, 123]
STEPS_OF_LR = (80000, 100000, 120000)
# Of each feature map: name, least and largest side of its boxes in pixels, ratios, pixels from one place to the next.
MAPS = (
    ("conv4_3_norm", 30, 60, [2], 8),
    ("fc7", 60, 111, [2, 3], 16),
    ("conv6_2", 111, 162, [2, 3], 32),
    ("conv7_2", 162, 213, [2, 3], 64),
    ("conv8_2", 213, 264, [2], 100),
    ("conv9_2", 264, 315, [2], 300),
)
LEARN = [{"lr_mult": 1, "decay_mult": 1}, {"lr_mult": 2, "decay_mult": 0}]


def convolution(n, name, below, outputs, kernel=3, pad=1, relu=None, **more):
    """Add a convolution, and a ReLU in place if a name for it is given; return the last top."""
    n[name] = top = L.Convolution(below, num_output=outputs, kernel_size=kernel, pad=pad, param=LEARN,
                                  weight_filler={"type": "xavier"}, bias_filler={"type": "constant", "value": 0}, **more)
    if relu:
        n[relu] = top = L.ReLU(top, in_place=True)
    return top


def vgg(n):
    """Add VGG16 with fc6 and fc7 as convolutions, the former with holes, and the layers that SSD adds; return the maps' tops."""
    tops, below = {}, n.data
    for block, (convolutions, outputs) in enumerate(((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)), 1):
        for i in range(1, convolutions + 1):
            below = tops[f"conv{block}_{i}"] = convolution(n, f"conv{block}_{i}", below, outputs, relu=f"relu{block}_{i}")
        last = block == 5  # the fifth pooling keeps the size
        n[f"pool{block}"] = below = L.Pooling(below, pool=P.Pooling.MAX, kernel_size=3 if last else 2, stride=1 if last else 2,
                                              pad=1 if last else 0)
    below = convolution(n, "fc6", below, 1024, pad=6, dilation=6, relu="relu6")
    below = tops["fc7"] = convolution(n, "fc7", below, 1024, kernel=1, pad=0, relu="relu7")
    for block, narrow, wide, stride, pad in ((6, 256, 512, 2, 1), (7, 128, 256, 2, 1), (8, 128, 256, 1, 0), (9, 128, 256, 1, 0)):
        below = convolution(n, f"conv{block}_1", below, narrow, kernel=1, pad=0, relu=f"conv{block}_1_relu")
        below = tops[f"conv{block}_2"] = convolution(n, f"conv{block}_2", below, wide, stride=stride, pad=pad,
                                                     relu=f"conv{block}_2_relu")
    n.conv4_3_norm = tops["conv4_3_norm"] = L.Normalize(tops["conv4_3"], norm_param={
        "across_spatial": False, "channel_shared": False, "scale_filler": {"type": "constant", "value": 20}})
    return tops


def heads(n, tops, classes):
    """Add the predictions and prior boxes of all maps, and join them as mbox_loc, mbox_conf and mbox_priorbox."""
    parts = {"loc": [], "conf": [], "priorbox": []}
    for name, least, most, ratios, step in MAPS:
        boxes = 2 + 2 * len(ratios)
        for kind, outputs in (("loc", 4), ("conf", classes)):
            head = convolution(n, f"{name}_mbox_{kind}", tops[name], boxes * outputs)
            n[f"{name}_mbox_{kind}_perm"] = turned = L.Permute(head, order=[0, 2, 3, 1])
            n[f"{name}_mbox_{kind}_flat"] = flat = L.Flatten(turned, axis=1)
            parts[kind].append(flat)
        n[f"{name}_mbox_priorbox"] = prior = L.PriorBox(tops[name], n.data, prior_box_param={
            "min_size": [least], "max_size": [most], "aspect_ratio": ratios, "flip": True, "clip": False,
            "variance": [0.1, 0.1, 0.2, 0.2], "step": step, "offset": 0.5})
        parts["priorbox"].append(prior)
    for kind, tops_of_kind in parts.items():
        n[f"mbox_{kind}"] = L.Concat(*tops_of_kind, axis=2 if kind == "priorbox" else 1)


def samplers():
    """Return the ways to cut parts out: the whole picture, and parts that overlap an object by so much at least."""
    part = {"min_scale": 0.3, "max_scale": 1.0, "min_aspect_ratio": 0.5, "max_aspect_ratio": 2.0}
    limits = [{"min_jaccard_overlap": least} for least in (0.1, 0.3, 0.5, 0.7, 0.9)] + [{"max_jaccard_overlap": 1.0}]
    return [{"max_sample": 1, "max_trials": 1}] + [
        {"sampler": part, "sample_constraint": limit, "max_sample": 1, "max_trials": 50} for limit in limits]


def data(n, source, batch, label_map, train):
    """Add the database."""
    transform = {"mean_value": MEAN, "resize_param": {"prob": 1, "resize_mode": P.Resize.WARP, "height": SIDE, "width": SIDE,
                                                      "interp_mode": [P.Resize.LINEAR]}}
    annotated = {"label_map_file": label_map} if label_map else {}
    if train:
        transform["mirror"] = True
        transform["resize_param"]["interp_mode"] = [P.Resize.LINEAR, P.Resize.AREA, P.Resize.NEAREST, P.Resize.CUBIC,
                                                    P.Resize.LANCZOS4]
        transform["emit_constraint"] = {"emit_type": caffe_pb2.EmitConstraint.CENTER}
        transform["distort_param"] = {
            "brightness_prob": 0.5, "brightness_delta": 32, "contrast_prob": 0.5, "contrast_lower": 0.5, "contrast_upper": 1.5,
            "hue_prob": 0.5, "hue_delta": 18, "saturation_prob": 0.5, "saturation_lower": 0.5, "saturation_upper": 1.5,
            "random_order_prob": 0.0}
        transform["expand_param"] = {"prob": 0.5, "max_expand_ratio": 4.0}
        annotated["batch_sampler"] = samplers()
    n.data, n.label = L.AnnotatedData(ntop=2, transform_param=transform, annotated_data_param=annotated,
                                      data_param={"source": source, "batch_size": batch, "backend": P.Data.LMDB})


def detection(n, classes):
    """Add softmax and DetectionOutput."""
    n.mbox_conf_reshape = L.Reshape(n.mbox_conf, shape={"dim": [0, -1, classes]})
    n.mbox_conf_softmax = L.Softmax(n.mbox_conf_reshape, axis=2)
    n.mbox_conf_flatten = L.Flatten(n.mbox_conf_softmax, axis=1)
    n.detection_out = L.DetectionOutput(n.mbox_loc, n.mbox_conf_flatten, n.mbox_priorbox, include={"phase": caffe_pb2.TEST},
                                        detection_output_param={
                                            "num_classes": classes, "share_location": True, "background_label_id": 0,
                                            "nms_param": {"nms_threshold": 0.45, "top_k": 400},
                                            "code_type": P.PriorBox.CENTER_SIZE, "keep_top_k": 200, "confidence_threshold": 0.01})


def ssd300(kind, classes=21, source="", batch=32, label_map=""):
    """Return the NetParameter of SSD300.

    Parameters
    ----------
    kind : {"train", "test", "deploy"}
    classes : int
        With background, which is 0.
    source, label_map : str
        Database and label map of train and test.
    batch : int
    """
    n = NetSpec()
    if kind == "deploy":
        n.data = L.Input(shape={"dim": [1, 3, SIDE, SIDE]})
    else:
        data(n, source, batch, label_map, kind == "train")
    heads(n, vgg(n), classes)
    if kind == "train":
        n.mbox_loss = L.MultiBoxLoss(
            n.mbox_loc, n.mbox_conf, n.mbox_priorbox, n.label, include={"phase": caffe_pb2.TRAIN},
            propagate_down=[True, True, False, False], loss_param={"normalization": P.Loss.VALID}, multibox_loss_param={
                "loc_loss_type": P.MultiBoxLoss.SMOOTH_L1, "conf_loss_type": P.MultiBoxLoss.SOFTMAX, "loc_weight": 1.0,
                "num_classes": classes, "share_location": True, "match_type": P.MultiBoxLoss.PER_PREDICTION,
                "overlap_threshold": 0.5, "use_prior_for_matching": True, "background_label_id": 0, "use_difficult_gt": True,
                "neg_pos_ratio": 3.0, "neg_overlap": 0.5, "code_type": P.PriorBox.CENTER_SIZE,
                "ignore_cross_boundary_bbox": False, "mining_type": P.MultiBoxLoss.MAX_NEGATIVE})
    else:
        detection(n, classes)
        if kind == "test":
            n.detection_eval = L.DetectionEvaluate(n.detection_out, n.label, include={"phase": caffe_pb2.TEST},
                                                   detection_evaluate_param={"num_classes": classes, "background_label_id": 0,
                                                                             "overlap_threshold": 0.5,
                                                                             "evaluate_difficult_gt": False})
    net = n.to_proto()
    net.name = f"VGG_SSD_300x300_{kind}"
    return net


def solver(folder, test_pictures, batch):
    """Return the SolverParameter of the paper's schedule for batches of 32."""
    return caffe_pb2.SolverParameter(
        train_net=str(folder / "train.prototxt"), test_net=[str(folder / "test.prototxt")], base_lr=0.001, lr_policy="multistep",
        gamma=0.1, stepvalue=STEPS_OF_LR, max_iter=STEPS_OF_LR[-1], momentum=0.9, weight_decay=0.0005, display=10,
        snapshot=20000, snapshot_prefix=str(folder / "ssd300"), test_iter=[-(-test_pictures // batch)], test_interval=10000,
        test_initialization=False, eval_type="detection", ap_version="11point")


def options(args=()):
    """Return the options of the command line `args`."""
    parser = argparse.ArgumentParser(description="Write an SSD300 on VGG16.")
    parser.add_argument("folder", nargs="?", default="models/ssd", type=Path)
    parser.add_argument("--train", default="data/voc_trainval_lmdb", help="LMDB of AnnotatedDatum")
    parser.add_argument("--test", default="data/voc_test_lmdb")
    parser.add_argument("--classes", type=int, default=21, help="with background")
    parser.add_argument("--label-map", default="", help="a LabelMap in text format")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--test-batch", type=int, default=8)
    parser.add_argument("--test-pictures", type=int, default=4952, help="in the test database")
    return parser.parse_args(args)


def nets(o=None):
    """Return the messages by file name; those in models/ssd are of the default options."""
    o = options() if o is None else o
    return {
        "train.prototxt": ssd300("train", o.classes, o.train, o.batch, o.label_map),
        "test.prototxt": ssd300("test", o.classes, o.test, o.test_batch, o.label_map),
        "deploy.prototxt": ssd300("deploy", o.classes),
        "solver.prototxt": solver(o.folder, o.test_pictures, o.test_batch),
    }


def main():
    o = options(sys.argv[1:])
    o.folder.mkdir(parents=True, exist_ok=True)
    for name, content in making.contents(__file__, nets(o)).items():
        (o.folder / name).write_text(content)
        print(o.folder / name)


if __name__ == "__main__":
    try:
        main()
    except (Error, OSError) as error:
        raise SystemExit(str(error)) from None
