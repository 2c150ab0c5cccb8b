"""MultiBoxLoss."""

import gc
import random

import numpy as np
import pytest
from gradient import check_gradient, forward_again, forward_net, layer_net, run_backward, run_forward
from ssd_boxes import CODES, decode, encode, overlap, some_priors, suppress

from minicaffe import memory
from minicaffe.blob import Dtype
from minicaffe.device.threads import set_num_threads
from minicaffe.errors import ConfigError, DataError, ShapeError

IMAGES, PRIORS, CLASSES = 3, 24, 4


def layer(param, more=""):
    names = " ".join(f'bottom: "b{i}"' for i in range(4))
    return f'layer {{ name: "l" type: "MultiBoxLoss" {names} top: "y" {more} multibox_loss_param {{ {param} }} }}'


def inputs(shared=True, seed=1, classes=CLASSES, objects=5, background=0, priors=PRIORS):
    """Codes, scores, prior boxes and objects of images 0 and 2; image 1 has none."""
    random = np.random.default_rng(seed)
    loc = random.standard_normal((IMAGES, priors * (1 if shared else classes) * 4))
    conf = random.standard_normal((IMAGES, priors * classes))
    corner, side = random.uniform(0, 0.6, (objects, 2)), random.uniform(0.15, 0.4, (objects, 2))
    labels = random.choice([c for c in range(classes) if c != background], objects)
    rows = np.column_stack([2 * (np.arange(objects) % 2), labels, np.arange(objects), corner, corner + side,
                            np.arange(objects) == objects - 1])
    rows = np.concatenate([[[-1] * 8], rows])[None, None]
    return loc, conf, some_priors(random, priors), rows


def match(boxes, objects, options):
    """The object of each box (-1 none, -2 left out), and its largest overlap."""
    matches, best, table = [-1] * len(boxes), [0.0] * len(boxes), {}
    for p, box in enumerate(boxes):
        if options["skip_crossing"] and (min(box) < 0 or max(box) > 1):
            matches[p] = -2
            continue
        for t, row in enumerate(objects):
            o = overlap(box, row[3:7])
            if o > 1e-6:
                table[p, t], best[p] = o, max(best[p], o)
    left = set(range(len(objects)))
    while True:
        pairs = [(o, -p, -t) for (p, t), o in table.items() if t in left and matches[p] == -1]
        if not pairs:
            break
        o, p, t = max(pairs)
        matches[-p], best[-p] = -t, o
        left.remove(-t)
    if options["per_prediction"]:
        for p in range(len(boxes)):
            pairs = [(o, -t) for (q, t), o in table.items() if q == p and o >= options["threshold"]]
            if matches[p] == -1 and pairs:
                matches[p] = -max(pairs)[1]
    return matches, best


DEFAULTS = {"code": "CORNER", "l2": False, "logistic": False, "loc_weight": 1.0, "background": 0, "shared": True, "threshold": 0.5,
            "per_prediction": True, "match_priors": True, "difficult": True, "mining": "MAX_NEGATIVE", "ratio": 3.0, "negative_overlap": 0.5,
            "in_target": False, "agnostic": False, "skip_crossing": False, "inside": False, "sample": 64, "nms": None, "top_k": None, "eta": 1.0,
            "nms_priors": False, "mode": "VALID", "terms": (True, True), "classes": CLASSES}


def slow(loc, conf, priors, rows, **changes):
    """The loss by its definition, box by box."""
    o = {**DEFAULTS, **changes}
    boxes, variances = priors.reshape(2, -1, 4)
    loc = loc.reshape(IMAGES, PRIORS, -1, 4)
    conf = conf.reshape(IMAGES, PRIORS, -1)

    def variance(p):
        return np.ones(4) if o["in_target"] else variances[p]

    def label_of(row):
        return (1 if o["background"] == 0 else 0) if o["agnostic"] else int(row[1])

    def conf_term(x, label):
        if o["logistic"]:
            target = np.arange(len(x)) == label
            return (np.maximum(x, 0) - x * target + np.log1p(np.exp(-abs(x)))).sum()
        return -np.log(max((np.exp(x - x.max()) / np.exp(x - x.max()).sum())[label], np.float32(1.17549435e-38)))

    def loc_term(n, p, c, row):
        target = encode(CODES[o["code"]], boxes[p], variance(p), row[3:7])
        pred = loc[n, p, c].copy()
        if o["inside"]:
            box = boxes[p] if o["match_priors"] else decode(CODES[o["code"]], boxes[p], variance(p), loc[n, p, c])
            pred = np.where((box < 0) | (box > 1), target, pred)
        d = (pred - target) / (variances[p] if o["in_target"] else 1)
        return (d * d / 2 if o["l2"] else np.where(abs(d) < 1, d * d / 2, abs(d) - 0.5)).sum()

    loc_loss = conf_loss = matches_seen = 0
    for n in range(IMAGES):
        objects = [row for row in rows.reshape(-1, 8) if row[0] == n and (o["difficult"] or not row[7])]
        if not objects and o["mining"] != "NONE":
            continue
        found = {}  # location -> matches
        if o["match_priors"]:
            every, best = match(boxes, objects, o)
            for c in range(1 if o["shared"] else o["classes"]):
                found[c] = every if o["shared"] else [t if t >= 0 and label_of(objects[t]) == c else -1 for t in every]
        else:
            for c in range(1 if o["shared"] else o["classes"]):
                if not o["shared"] and c == o["background"]:
                    continue
                decoded = [decode(CODES[o["code"]], boxes[p], variance(p), loc[n, p, c]) for p in range(PRIORS)]
                mine = [t for t, row in enumerate(objects) if o["shared"] or int(row[1]) == c]
                part, best = match(decoded, [objects[t] for t in mine], o)
                found[c] = [mine[t] if t >= 0 else t for t in part]
        examples = {}  # prior -> label
        if o["mining"] == "NONE":
            examples = {p: o["background"] for p in range(PRIORS)}
        else:
            m = found[0]
            positives = [p for p in range(PRIORS) if m[p] >= 0]
            losses = {p: conf_term(conf[n, p], label_of(objects[m[p]]) if m[p] >= 0 else o["background"])
                      + (loc_term(n, p, 0, objects[m[p]]) if m[p] >= 0 else 0) for p in range(PRIORS) if m[p] != -2}
            if o["mining"] == "MAX_NEGATIVE":
                losses = {p: v for p, v in losses.items() if m[p] == -1 and best[p] < o["negative_overlap"]}
                count = int(len(positives) * o["ratio"])
            else:
                count = o["sample"]
            order = sorted(losses, key=lambda p: (-losses[p], p))
            if o["nms"] is not None:
                order = order[:o["top_k"]]
                here = [boxes[p] if o["nms_priors"] else decode(CODES[o["code"]], boxes[p], variance(p), loc[n, p, 0]) for p in order]
                order = [order[k] for k in suppress(here, o["nms"], o["eta"])]
            chosen = set(order[:count])
            if o["mining"] == "HARD_EXAMPLE":
                dropped = {p for p in positives if p not in chosen}
                found = {0: [-1 if p in dropped else m[p] for p in range(PRIORS)]}
                chosen -= dropped
            examples = {p: o["background"] for p in chosen if found[0][p] == -1}
        for c, m in found.items():
            for p in range(PRIORS):
                if m[p] >= 0:
                    matches_seen += 1
                    loc_loss += loc_term(n, p, c, objects[m[p]])
                    examples[p] = label_of(objects[m[p]])
        conf_loss += sum(conf_term(conf[n, p], label) for p, label in examples.items())
    divisor = max({"VALID": matches_seen, "FULL": IMAGES * PRIORS, "BATCH_SIZE": IMAGES, "NONE": 1}[o["mode"]], 1)
    return (o["loc_weight"] * loc_loss * o["terms"][0] + conf_loss * o["terms"][1]) / divisor


CASES = [
    ("", "", {}),
    ("code_type: CENTER_SIZE overlap_threshold: 0.0625", "", {"code": "CENTER_SIZE", "threshold": 0.0625}),
    ("code_type: CORNER_SIZE loc_weight: 2.5 loc_loss_type: L2", "", {"code": "CORNER_SIZE", "loc_weight": 2.5, "l2": True}),
    ("match_type: BIPARTITE mining_type: NONE overlap_threshold: 0.0625", "",
     {"per_prediction": False, "mining": "NONE", "threshold": 0.0625}),
    ("mining_type: NONE conf_loss_type: LOGISTIC do_neg_mining: false", "", {"mining": "NONE", "logistic": True}),
    ("conf_loss_type: LOGISTIC neg_pos_ratio: 1.5 do_neg_mining: true", "", {"logistic": True, "ratio": 1.5}),
    ("conf_loss_type: LOGISTIC background_label_id: 9", "", {"logistic": True, "background": 9}),
    ("background_label_id: 3 neg_overlap: 0.25", "", {"background": 3, "negative_overlap": 0.25}),
    ("use_difficult_gt: false", "", {"difficult": False}),
    ("share_location: false mining_type: NONE code_type: CENTER_SIZE", "", {"shared": False, "mining": "NONE", "code": "CENTER_SIZE"}),
    ("share_location: false mining_type: NONE use_prior_for_matching: false overlap_threshold: 0.25", "",
     {"shared": False, "mining": "NONE", "match_priors": False, "threshold": 0.25}),
    ("share_location: false mining_type: NONE use_prior_for_matching: false overlap_threshold: 0.25 background_label_id: 3", "",
     {"shared": False, "mining": "NONE", "match_priors": False, "threshold": 0.25, "background": 3}),
    ("use_prior_for_matching: false overlap_threshold: 0.25", "", {"match_priors": False, "threshold": 0.25}),
    ("encode_variance_in_target: true code_type: CENTER_SIZE", "", {"in_target": True, "code": "CENTER_SIZE"}),
    ("ignore_cross_boundary_bbox: true", "", {"skip_crossing": True}),
    ("bp_inside: true overlap_threshold: 0.2", "", {"inside": True, "threshold": np.float32(0.2)}),
    ("bp_inside: true use_prior_for_matching: false overlap_threshold: 0.2", "",
     {"inside": True, "match_priors": False, "threshold": np.float32(0.2)}),
    ("mining_type: HARD_EXAMPLE sample_size: 7", "", {"mining": "HARD_EXAMPLE", "sample": 7}),
    ("mining_type: HARD_EXAMPLE", "", {"mining": "HARD_EXAMPLE"}),
    ("mining_type: HARD_EXAMPLE sample_size: 6 nms_param { nms_threshold: 0.25 } loc_loss_type: L2", "",
     {"mining": "HARD_EXAMPLE", "sample": 6, "nms": 0.25, "l2": True}),
    ("mining_type: HARD_EXAMPLE sample_size: 6 ignore_cross_boundary_bbox: true use_prior_for_nms: true nms_param { nms_threshold: 0.125 }",
     "", {"mining": "HARD_EXAMPLE", "sample": 6, "nms": 0.125, "nms_priors": True, "skip_crossing": True}),
    ("nms_param { nms_threshold: 0.5 } use_prior_for_nms: true", "", {"nms": 0.5, "nms_priors": True}),
    ("", "loss_param { normalization: FULL }", {"mode": "FULL"}),
    ("", "loss_param { normalization: BATCH_SIZE }", {"mode": "BATCH_SIZE"}),
    ("", "loss_param { normalization: NONE }", {"mode": "NONE"}),
    ("", "loss_param { normalize: false }", {"mode": "BATCH_SIZE"}),
    ("", "loss_param { normalize: false normalization: FULL }", {"mode": "FULL"}),
    ("", "propagate_down: true propagate_down: false propagate_down: false propagate_down: false", {"terms": (True, False)}),
    ("", "propagate_down: false propagate_down: true propagate_down: false propagate_down: false", {"terms": (False, True)}),
]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("param, more, options", CASES)
def test_against_the_definition(param, more, options, seed):
    arrays = inputs(options.get("shared", True), seed, background=options.get("background", 0))
    losses = []
    for threads in (1, 2):
        set_num_threads(threads)
        losses.append(run_forward(layer_net(layer(f"num_classes: {CLASSES} {param}", more), arrays)))
    assert losses[0] == losses[1] == pytest.approx(slow(*arrays, **options), rel=1e-10)
    assert losses[0] > 0


@pytest.mark.parametrize("param, more, options", CASES)
def test_gradient(param, more, options):
    arrays = inputs(options.get("shared", True), background=options.get("background", 0), priors=8)
    terms = options.get("terms", (True, True))
    # Matching and mining are steps, which a difference seldom meets; the kinks of smooth L1 are kinks of its second derivative.
    check_gradient(layer(f"num_classes: {CLASSES} {param}", more + " loss_weight: 2"), list(arrays),
                   check=[i for i in (0, 1) if terms[i]], step=1e-5, tolerance=1e-4)


def on_a_grid(dice, shared, background=0):
    """Boxes whose edges are eighths, so that many overlaps are equal to each other and to thresholds, and rows that are equal."""
    random = np.random.default_rng(dice.randrange(1 << 30))

    def boxes(count, low):
        corner = random.integers(low, 8, (count, 2))
        return np.concatenate([corner, np.minimum(corner + random.integers(1, 5, (count, 2)), 9)], 1) / 8
    priors = np.stack([boxes(PRIORS, -1).ravel(), np.full(PRIORS * 4, 0.125)])[None]
    loc = random.integers(-1, 2, (IMAGES, PRIORS * (1 if shared else CLASSES) * 4)).astype(float)
    conf = random.standard_normal((6, CLASSES))[random.integers(0, 6, IMAGES * PRIORS)].reshape(IMAGES, -1)
    classes = [c for c in range(CLASSES) if c != background]
    rows = [[n, random.choice(classes), 0, *box, random.random() < 0.3] for n in (0, 2) for box in boxes(4, 0)]
    return loc, conf, priors, np.array(rows, float)[None, None]


@pytest.mark.parametrize("seed", range(8))
def test_random_rules_on_a_grid(seed):
    dice, seen = random.Random(seed), 0
    for _ in range(8):
        shared = dice.random() < 0.7
        mining = dice.choice(["MAX_NEGATIVE", "HARD_EXAMPLE", "NONE"]) if shared else "NONE"
        options = {"code": dice.choice(["CORNER", "CORNER_SIZE"]), "shared": shared, "mining": mining,
                   "per_prediction": dice.random() < 0.7, "match_priors": dice.random() < 0.7, "threshold": dice.choice([0.125, 0.25, 0.5]),
                   "negative_overlap": dice.choice([0.125, 0.25, 0.5]), "ratio": dice.choice([0.5, 3]), "sample": dice.choice([1, 5, 64]),
                   "difficult": dice.random() < 0.7, "inside": dice.random() < 0.5, "skip_crossing": dice.random() < 0.5,
                   "l2": dice.random() < 0.5, "logistic": dice.random() < 0.5, "in_target": dice.random() < 0.3, "background": dice.choice([0, 3])}
        text = {name: str(value).lower() for name, value in options.items()}
        param = (f"code_type: {options['code']} share_location: {text['shared']} mining_type: {mining} "
                 f"match_type: {'PER_PREDICTION' if options['per_prediction'] else 'BIPARTITE'} use_prior_for_matching: {text['match_priors']} "
                 f"overlap_threshold: {options['threshold']} neg_overlap: {options['negative_overlap']} neg_pos_ratio: {options['ratio']} "
                 f"sample_size: {options['sample']} use_difficult_gt: {text['difficult']} bp_inside: {text['inside']} "
                 f"ignore_cross_boundary_bbox: {text['skip_crossing']} loc_loss_type: {'L2' if options['l2'] else 'SMOOTH_L1'} "
                 f"conf_loss_type: {'LOGISTIC' if options['logistic'] else 'SOFTMAX'} encode_variance_in_target: {text['in_target']} "
                 f"background_label_id: {options['background']} ")
        if mining != "NONE" and dice.random() < 0.6:
            options |= {"nms": dice.choice([0.125, 0.5, 0.75]), "top_k": dice.choice([0, 3, 9, 400]), "eta": dice.choice([1, 0.5]),
                        "nms_priors": dice.random() < 0.5}
            param += (f"nms_param {{ nms_threshold: {options['nms']} top_k: {options['top_k']} eta: {options['eta']} }} "
                      f"use_prior_for_nms: {str(options['nms_priors']).lower()}")
        arrays = on_a_grid(dice, shared, options["background"])
        loss = run_forward(layer_net(layer(f"num_classes: {CLASSES} {param}"), arrays))
        assert loss == pytest.approx(slow(*arrays, **options), rel=1e-9), param
        seen += loss > 0
    assert seen >= 3


@pytest.mark.parametrize("seed", range(3))
def test_nan_is_the_hardest_example(seed):
    dice = random.Random(seed)
    loc, conf, priors, rows = on_a_grid(dice, True)
    param = "num_classes: 4 mining_type: HARD_EXAMPLE sample_size: 1 overlap_threshold: 0.25 loc_loss_type: "
    for kind in ("L2", "SMOOTH_L1"):
        for prior in range(PRIORS):
            spoilt = loc.copy()
            spoilt[0, 4 * prior + 1] = np.nan
            positive = match([box for box in priors[0, 0].reshape(-1, 4)], [row for row in rows[0, 0] if row[0] == 0],
                             {**DEFAULTS, "threshold": 0.25})[0][prior] >= 0
            loss = run_forward(layer_net(layer(param + kind), [spoilt, conf, priors, rows]))
            assert np.isnan(loss) == positive


def test_agnostic_and_far_objects():
    for background in (0, 1):
        arrays = inputs(classes=2, background=background)
        net = layer_net(layer(f"num_classes: 2 background_label_id: {background} map_object_to_agnostic: true"), arrays)
        assert run_forward(net) == pytest.approx(slow(*arrays, background=background, agnostic=True, classes=2), rel=1e-10)
    loc, conf, priors, _ = inputs()
    rows = np.array([[0, 1, 0, 5, 5, 6, 6, 0], [2, 1, 0, 0.5, 0.5, 0.5, 0.5, 0]], float)[None, None]  # far off, and without size
    assert run_forward(layer_net(layer("num_classes: 4"), [loc, conf, priors, rows])) == 0
    arrays = inputs(classes=1, background=1)
    net = layer_net(layer("num_classes: 1 conf_loss_type: LOGISTIC background_label_id: 1"), arrays)
    assert run_forward(net) == pytest.approx(slow(*arrays, classes=1, logistic=True, background=1), rel=1e-10)
    arrays = inputs()
    arrays[1][0, :8] = np.nan
    for mining in ("MAX_NEGATIVE", "HARD_EXAMPLE", "NONE"):
        assert np.isnan(run_forward(layer_net(layer(f"num_classes: 4 mining_type: {mining} neg_overlap: 2 neg_pos_ratio: 9"), arrays)))


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
def test_types(dtype):
    arrays = [np.float32(a) for a in inputs()]
    net = layer_net(layer("num_classes: 4 code_type: CENTER_SIZE"), arrays, dtype)
    assert run_forward(net) == pytest.approx(slow(*(a.astype(float) for a in arrays), code="CENTER_SIZE"), rel=1e-5)
    assert net.blob_by_name("y").shape == ()


@pytest.mark.parametrize("mining, expected", [("MAX_NEGATIVE", 0), ("HARD_EXAMPLE", 0), ("NONE", None)])
def test_no_objects(mining, expected):
    loc, conf, priors, _ = inputs()
    rows = np.full((1, 1, 1, 8), -1.0)
    net = layer_net(layer(f"num_classes: 4 mining_type: {mining}"), [loc, conf, priors, rows])
    loss = run_forward(net)
    for name in ("b0", "b1"):
        net.blob_by_name(name).diff[...] = 9
    run_backward(net, [0, 1])
    assert (net.blob_by_name("b0").diff == 0).all()
    if expected is None:
        assert loss == pytest.approx(slow(loc, conf, priors, rows, mining="NONE"), rel=1e-10)
        assert (net.blob_by_name("b1").diff != 0).all()
    else:
        assert loss == expected and (net.blob_by_name("b1").diff == 0).all()


@pytest.mark.parametrize("images, priors", [(0, 5), (3, 0), (0, 0)])
def test_nothing_at_all(images, priors):
    arrays = [np.zeros((images, priors * 4)), np.zeros((images, priors * 4)), np.zeros((1, 2, priors * 4)), np.zeros((1, 1, 0, 8))]
    arrays[2][:, 1] = 1
    for mining in ("NONE", "MAX_NEGATIVE", "HARD_EXAMPLE"):
        net = layer_net(layer(f"num_classes: 4 mining_type: {mining}"), arrays)
        assert run_forward(net) == 0
        run_backward(net, [0, 1])


@pytest.mark.parametrize("param, options", [("", {}), ("match_type: BIPARTITE", {"per_prediction": False})])
def test_among_equals_the_first_is_taken(param, options):
    loc, conf, priors, _ = inputs()
    priors[0, 0].reshape(-1, 6, 4)[:] = priors[0, 0].reshape(-1, 6, 4)[:, :1]
    box = priors[0, 0, :4]
    rows = np.array([[n, label, 0, *box, 0] for n in (0, 2) for label in (3, 1, 2)])[None, None]
    for reverse in (slice(None), slice(None, None, -1)):
        arrays = [loc, conf, priors, rows[:, :, reverse]]
        assert run_forward(layer_net(layer(f"num_classes: 4 {param}"), arrays)) == pytest.approx(slow(*arrays, **options), rel=1e-10)


def test_batches_and_other_bottoms():
    net = layer_net(layer("num_classes: 4"), inputs())
    for seed, objects in ((1, 5), (2, 1), (3, 9), (4, 5)):
        arrays = inputs(seed=seed, objects=objects)
        assert forward_again(net, **{f"b{i}": array for i, array in enumerate(arrays)}) == pytest.approx(slow(*arrays), rel=1e-10)
        run_backward(net, [0, 1])
        assert np.isfinite(net.blob_by_name("b0").diff).all()
    net = forward_net(layer("num_classes: 4"), inputs())
    with pytest.raises(ConfigError, match=r"bottom\[2\]: MultiBoxLoss has no gradient to it; .* propagate_down: true true false false"):
        run_backward(net, [0, 2])


# ---- what is wrong

@pytest.mark.parametrize("param, message", [
    ("", "num_classes: must be given and at least 1, got 0"),
    ("num_classes: 4 background_label_id: 4", "background_label_id: must be below num_classes, 4, with SOFTMAX, got 4"),
    ("num_classes: 4 loc_weight: -1", "loc_weight: must be at least 0, got -1"),
    ("num_classes: 4 overlap_threshold: 1.5", "overlap_threshold: must be from 0 to 1, got 1.5"),
    ("num_classes: 4 neg_pos_ratio: 0", "neg_pos_ratio: must be above 0, got 0"),
    ("num_classes: 4 neg_overlap: nan", "neg_overlap: must be at least 0, got nan"),
    ("num_classes: 4 sample_size: 0", "sample_size: must be at least 1, got 0"),
    ("num_classes: 4 nms_param { eta: 2 }", "nms_param.eta: must be above 0 and at most 1, got 2"),
    ("num_classes: 4 nms_param { nms_threshold: -1 }", "nms_param.nms_threshold: must be at least 0, got -1"),
    ("num_classes: 4 share_location: false", "mining_type: mining needs share_location: true; set mining_type: NONE"),
    ("num_classes: 4 do_neg_mining: false", "do_neg_mining: is false, but mining_type is MAX_NEGATIVE"),
    ("num_classes: 4 map_object_to_agnostic: true", "map_object_to_agnostic: needs 2 classes")])
def test_wrong_prototxt(param, message):
    with pytest.raises(ConfigError, match=rf"test.prototxt.*layer 'l' \(MultiBoxLoss\): multibox_loss_param.{message}"):
        layer_net(layer(param), inputs())


@pytest.mark.parametrize("row", [0, 2])
@pytest.mark.parametrize("column, value, message", [
    (0, 3, "image 3 is not in the batch of 3"), (1, 4, "label 4 of image . is outside 0..3"),
    (1, -1, "label -1 of image . is outside"), (1, 0, "label 0 of image . is background, which is not an object"),
    (1, 1.5, r"image 0.0 and label 1.5 must be integers; round them in the data"), (0, 0.5, "image 0.5 and label"),
    (1, np.nan, "label nan of image . is outside"), (0, np.nan, "image nan is not in the batch")])
def test_wrong_objects(column, value, message, row):
    arrays = list(inputs())
    arrays[3] = arrays[3][:, :, 1:].copy()  # all of them objects
    arrays[3][0, 0, row, column] = value
    net = layer_net(layer("num_classes: 4"), arrays)
    with pytest.raises(DataError, match=rf"layer 'l' \(MultiBoxLoss\): bottom\[3\]: row {row}: {message}"):
        run_forward(net)


@pytest.mark.parametrize("box", [0, 2, PRIORS - 1])
def test_wrong_priors(box):
    loc, conf, priors, rows = inputs()
    priors[0, 1, 4 * box + 1] = 0
    with pytest.raises(DataError, match=rf"bottom\[2\]: the variances of prior box {box} must be above 0"):
        run_forward(layer_net(layer("num_classes: 4"), [loc, conf, priors, rows]))
    priors[0, 1, 4 * box + 1] = 1
    priors[0, 0, 4 * box + 2] = priors[0, 0, 4 * box] - 1
    with pytest.raises(DataError, match=rf"bottom\[2\]: prior box {box}, .* has no width or no height"):
        run_forward(layer_net(layer("num_classes: 4 code_type: CORNER_SIZE"), [loc, conf, priors, rows]))


def test_wrong_shapes():
    loc, conf, priors, rows = inputs()
    for arrays, message in (
            ([loc[:, 4:], conf, priors, rows], r"bottom\[0\]: needs 24 prior boxes x 1 locations x 4 = 96 codes"),
            ([loc, conf[:, 4:], priors, rows], r"bottom\[1\]: needs 24 prior boxes x 4 classes = 96 scores"),
            ([loc, conf[:2], priors, rows], r"bottom\[1\]: needs 24 prior boxes x 4 classes = 96 scores for each of 3 images"),
            ([loc, conf, priors[:, :, 4:], rows], r"bottom\[0\]: needs 23 prior boxes"),
            ([np.array(1.0), conf, priors, rows], r"bottom\[0\]: needs an axis for the images, got a scalar"),
            *(([loc, conf, wrong, rows], r"bottom\[2\]: must be prior boxes and variances")
              for wrong in (priors[0], np.repeat(priors, 2, 0), priors[..., :-2], priors[:, :1])),
            ([loc, np.array(1.0), priors, rows], r"bottom\[1\]: needs an axis for the images, got a scalar"),
            ([loc, conf, priors, np.array(1.0)], r"bottom\[3\]: must be rows of 8 numbers"),
            ([loc, conf, priors, rows[..., :7]], r"bottom\[3\]: must be rows of 8 numbers, \(1, 1, objects, 8\), got \[1, 1, 6, 7\]")):
        with pytest.raises(ShapeError, match=rf"layer 'l' \(MultiBoxLoss\): {message}"):
            layer_net(layer("num_classes: 4"), arrays)


@pytest.mark.parametrize("loss", ["SOFTMAX", "LOGISTIC"])
def test_release_and_again(loss):
    """As many examples as priors: their scores are copied, and a softmax of them is as large."""
    priors = 4000
    net = layer_net(layer(f"num_classes: {CLASSES} conf_loss_type: {loss} mining_type: NONE"), inputs(priors=priors))

    def step():
        run_forward(net)
        run_backward(net, [0, 1], [1])
        return [net.blob_by_name("y").data.copy(), *(net.blob_by_name(name).diff.copy() for name in ("b0", "b1"))]

    gc.collect()
    before = memory.used(memory.CPUPlace())
    wanted = step()
    net.release()
    gc.collect()
    assert memory.used(memory.CPUPlace()) < before + 10_000     # the scores have 384 kB
    for array, again in zip(wanted, step(), strict=True):
        np.testing.assert_array_equal(again, array)


def test_counted_shares():
    """In a test the loss is weighed by the matches, by which it is divided; without matches there is no share, or with background to learn that of one."""
    losses, shares = {}, {}
    for mode in ("VALID", "BATCH_SIZE"):
        net = layer_net(layer(f"num_classes: {CLASSES}", f"loss_param {{ normalization: {mode} }}"), inputs())
        losses[mode] = run_forward(net)
        node = next(node for node in net.nodes if node.name == "l")
        shares[mode] = node.layer.counted_shares(node.bottoms)
    assert shares["BATCH_SIZE"] == {}
    assert shares["VALID"][0] * IMAGES * PRIORS == pytest.approx(losses["BATCH_SIZE"] * IMAGES / losses["VALID"], rel=1e-6)
    shares = []
    for mining in ("MAX_NEGATIVE", "NONE"):
        net = layer_net(layer(f"num_classes: {CLASSES} mining_type: {mining}"), inputs())
        net.blob_by_name("b3").data[...] = -1
        run_forward(net)
        node = next(node for node in net.nodes if node.name == "l")
        shares.append(node.layer.counted_shares(node.bottoms))
    assert shares == [{0: 0}, {0: pytest.approx(1 / (IMAGES * PRIORS))}]
