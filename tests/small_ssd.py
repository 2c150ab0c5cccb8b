"""A small SSD and a database of coloured rectangles, for the tests that train one; written with NetSpec."""

import numpy as np
from annotated import annotated, write_annotated

from minicaffe import layers as L
from minicaffe import params as P
from minicaffe.net_spec import NetSpec

CLASSES = 3  # background, red, blue
SIDE = 64
COLOURS = {1: (40, 40, 220), 2: (220, 60, 40)}  # BGR
# Of each feature map: least and largest side of the boxes, in pixels.
MAPS = {"conv3": (14, 24), "conv4": (24, 40)}

# A deploy net of one prior box, for pictures of any size: its boxes are of no use.
DETECTOR = """layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: %d dim: %d } } }
layer { name: "loc" type: "InnerProduct" bottom: "data" top: "loc" inner_product_param { num_output: 4 } }
layer { name: "conf" type: "InnerProduct" bottom: "data" top: "conf" inner_product_param { num_output: 3 } }
layer { name: "prob" type: "Softmax" bottom: "conf" top: "prob" }
layer { name: "map" type: "Pooling" bottom: "data" top: "map" pooling_param { pool: AVE global_pooling: true } }
layer { name: "prior" type: "PriorBox" bottom: "map" bottom: "data" top: "prior" prior_box_param { min_size: 2 } }
layer { name: "boxes" type: "DetectionOutput" bottom: "loc" bottom: "prob" bottom: "prior" top: "boxes"
  detection_output_param { num_classes: 3 background_label_id: 0 confidence_threshold: 0.1 nms_param { nms_threshold: 0.5 } } }
"""


def picture(random):
    """Return a picture of 64 x 64 with one to three coloured rectangles on gray noise, and their boxes (label, corners)."""
    image = random.integers(90, 140, (SIDE, SIDE, 3)).astype(np.uint8)
    boxes, tries = [], 0
    wanted = random.integers(1, 4)
    while len(boxes) < wanted and tries < 50:
        tries += 1
        height, width = random.integers(12, 33, 2)
        top, left = random.integers(0, SIDE - height), random.integers(0, SIDE - width)
        box = np.array([left, top, left + width, top + height])
        if any((np.minimum(box[2:], b[3:]) > np.maximum(box[:2], b[1:3])).all() for b in boxes):
            continue
        label = int(random.integers(1, CLASSES))
        image[top:top + height, left:left + width] = COLOURS[label]
        boxes.append(np.array([label, *box]))
    return image, [(int(b[0]), *(b[1:] / SIDE)) for b in boxes]


def write_database(path, count, seed):
    """Write `count` pictures to a new LMDB; return its path."""
    random = np.random.default_rng(seed)
    return write_annotated(path, [annotated(*picture(random)) for _ in range(count)])


def net(source=None, batch=8, train=True, augment=True):
    """Return the NetParameter of the SSD; without a source the deploy net."""
    n = NetSpec()
    if source is None:
        n.data = L.Input(shape={"dim": [1, 3, SIDE, SIDE]})
    else:
        transform = {"scale": 1 / 128, "mean_value": [115, 115, 115]}
        more = {}
        if train and augment:
            transform.update(mirror=True, resize_param={"height": SIDE, "width": SIDE})
            more["batch_sampler"] = [
                {"max_sample": 1, "max_trials": 1},
                {"sampler": {"min_scale": 0.6, "min_aspect_ratio": 0.75, "max_aspect_ratio": 1.5},
                 "sample_constraint": {"min_object_coverage": 0.9}, "max_sample": 1, "max_trials": 20}]
        n.data, n.label = L.AnnotatedData(ntop=2, data_param={"source": source, "batch_size": batch, "backend": P.Data.LMDB},
                                          transform_param=transform, annotated_data_param=more)
    below = n.data
    for i, (name, outputs, stride) in enumerate((("conv1", 12, 2), ("conv2", 24, 2), ("conv3", 48, 1), ("conv4", 48, 2))):
        n[name] = L.Convolution(below, num_output=outputs, kernel_size=3, pad=1, stride=stride, weight_filler={"type": "msra"})
        n[f"relu{i + 1}"] = below = L.ReLU(n[name], in_place=True)
    heads = {"loc": [], "conf": [], "priorbox": []}
    for i, (name, (least, most)) in enumerate(MAPS.items()):
        source_map = n[f"relu{i + 3}"]
        if i == 0:
            n[f"{name}_norm"] = source_map = L.Normalize(source_map, norm_param={
                "across_spatial": False, "channel_shared": False, "scale_filler": {"value": 10}})
        for kind, outputs in (("loc", 4 * 4), ("conf", 4 * CLASSES)):
            head = L.Convolution(source_map, num_output=outputs, kernel_size=3, pad=1, weight_filler={"type": "xavier"})
            n[f"{name}_mbox_{kind}"] = head
            n[f"{name}_mbox_{kind}_perm"] = L.Permute(head, order=[0, 2, 3, 1])
            n[f"{name}_mbox_{kind}_flat"] = L.Flatten(n[f"{name}_mbox_{kind}_perm"])
            heads[kind].append(n[f"{name}_mbox_{kind}_flat"])
        n[f"{name}_mbox_priorbox"] = L.PriorBox(source_map, n.data, prior_box_param={
            "min_size": [least], "max_size": [most], "aspect_ratio": [2], "variance": [0.1, 0.1, 0.2, 0.2]})
        heads["priorbox"].append(n[f"{name}_mbox_priorbox"])
    n.mbox_loc = L.Concat(*heads["loc"], axis=1)
    n.mbox_conf = L.Concat(*heads["conf"], axis=1)
    n.mbox_priorbox = L.Concat(*heads["priorbox"], axis=2)
    if source is not None and train:
        n.mbox_loss = L.MultiBoxLoss(n.mbox_loc, n.mbox_conf, n.mbox_priorbox, n.label,
                                     propagate_down=[True, True, False, False], multibox_loss_param={
                                         "num_classes": CLASSES, "code_type": P.PriorBox.CENTER_SIZE})
        return n.to_proto()
    n.mbox_conf_reshape = L.Reshape(n.mbox_conf, shape={"dim": [0, -1, CLASSES]})
    n.mbox_conf_softmax = L.Softmax(n.mbox_conf_reshape, axis=2)
    n.mbox_conf_flatten = L.Flatten(n.mbox_conf_softmax)
    n.detection_out = L.DetectionOutput(n.mbox_loc, n.mbox_conf_flatten, n.mbox_priorbox, detection_output_param={
        "num_classes": CLASSES, "code_type": P.PriorBox.CENTER_SIZE, "nms_param": {"nms_threshold": 0.45, "top_k": 100},
        "keep_top_k": 50, "confidence_threshold": 0.01})
    if source is not None:
        n.detection_eval = L.DetectionEvaluate(n.detection_out, n.label, num_classes=CLASSES)
    return n.to_proto()
