"""MultiBoxLoss."""

import gc
import random

import numpy as np
import pytest
from gradient import check_gradient, forward_again, layer_net, run_backward, run_forward
from helpers import layer_text, one_of
from ssd_boxes import CODES, decode, encode, overlap, some_priors, suppress

from minicaffe import memory
from minicaffe.blob import Dtype
from minicaffe.device.threads import set_num_threads
from minicaffe.errors import ConfigError, DataError, ShapeError

IMAGES, PRIORS, CLASSES = 3, 24, 4


def layer(param, more=""):
    return layer_text("MultiBoxLoss", "l", "b0 b1 b2 b3", "y", f"{more} multibox_loss_param {{ {param} }}")


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
        if options["ignore_cross_boundary_bbox"] and (min(box) < 0 or max(box) > 1):
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
    if options["match_type"] == "PER_PREDICTION":
        for p in range(len(boxes)):
            pairs = [(o, -t) for (q, t), o in table.items() if q == p and o >= options["overlap_threshold"]]
            if matches[p] == -1 and pairs:
                matches[p] = -max(pairs)[1]
    return matches, best


DEFAULTS = {"code_type": "CORNER", "loc_loss_type": "SMOOTH_L1", "conf_loss_type": "SOFTMAX", "loc_weight": 1.0, "background_label_id": 0,
            "share_location": True, "overlap_threshold": 0.5, "match_type": "PER_PREDICTION", "use_prior_for_matching": True,
            "use_difficult_gt": True, "mining_type": "MAX_NEGATIVE", "neg_pos_ratio": 3.0, "neg_overlap": 0.5, "encode_variance_in_target": False,
            "map_object_to_agnostic": False, "ignore_cross_boundary_bbox": False, "bp_inside": False, "sample_size": 64, "nms_threshold": None,
            "top_k": None, "eta": 1.0, "use_prior_for_nms": False, "normalization": "VALID", "terms": (True, True), "num_classes": CLASSES}


def layer_of(options, loss_weight=""):
    """The layer with fields that `slow` takes as options."""
    def fields(named):
        return " ".join(f"{name}: {str(value).lower() if isinstance(value, bool) else value}" for name, value in named.items())
    nms = {name: value for name, value in options.items() if name in ("nms_threshold", "top_k", "eta")}
    own = {name: value for name, value in options.items() if name not in (*nms, "normalization", "terms")}
    more = f"loss_param {{ normalization: {options['normalization']} }}" if "normalization" in options else ""
    for learns in (*options["terms"], False, False) if "terms" in options else ():
        more += f" propagate_down: {str(learns).lower()}"
    own = fields({"num_classes": CLASSES, **own}) + (f" nms_param {{ {fields(nms)} }}" if nms else "")
    return layer(own, f"{more} {loss_weight}")


def slow(loc, conf, priors, rows, **changes):
    """The loss by its definition, box by box; the options have the names of the fields."""
    o = {**DEFAULTS, **changes}
    boxes, variances = priors.reshape(2, -1, 4)
    loc = loc.reshape(IMAGES, PRIORS, -1, 4)
    conf = conf.reshape(IMAGES, PRIORS, -1)
    code, background, mining, shared = CODES[o["code_type"]], o["background_label_id"], o["mining_type"], o["share_location"]

    def variance(p):
        return np.ones(4) if o["encode_variance_in_target"] else variances[p]

    def label_of(row):
        return (1 if background == 0 else 0) if o["map_object_to_agnostic"] else int(row[1])

    def conf_term(x, label):
        if o["conf_loss_type"] == "LOGISTIC":
            target = np.arange(len(x)) == label
            return (np.maximum(x, 0) - x * target + np.log1p(np.exp(-abs(x)))).sum()
        return -np.log(max((np.exp(x - x.max()) / np.exp(x - x.max()).sum())[label], np.float32(1.17549435e-38)))

    def loc_term(n, p, c, row):
        target = encode(code, boxes[p], variance(p), row[3:7])
        pred = loc[n, p, c].copy()
        if o["bp_inside"]:
            box = boxes[p] if o["use_prior_for_matching"] else decode(code, boxes[p], variance(p), loc[n, p, c])
            pred = np.where((box < 0) | (box > 1), target, pred)
        d = (pred - target) / (variances[p] if o["encode_variance_in_target"] else 1)
        return (d * d / 2 if o["loc_loss_type"] == "L2" else np.where(abs(d) < 1, d * d / 2, abs(d) - 0.5)).sum()

    loc_loss = conf_loss = matches_seen = 0
    for n in range(IMAGES):
        objects = [row for row in rows.reshape(-1, 8) if row[0] == n and (o["use_difficult_gt"] or not row[7])]
        if not objects and mining != "NONE":
            continue
        found = {}  # location -> matches
        for c in range(1 if shared else o["num_classes"]):
            if o["use_prior_for_matching"]:
                every, best = match(boxes, objects, o)
                found[c] = every if shared else [t if t >= 0 and label_of(objects[t]) == c else -1 for t in every]
            elif shared or c != background:
                mine = [t for t, row in enumerate(objects) if shared or int(row[1]) == c]
                decoded = [decode(code, boxes[p], variance(p), loc[n, p, c]) for p in range(PRIORS)]
                part, best = match(decoded, [objects[t] for t in mine], o)
                found[c] = [mine[t] if t >= 0 else t for t in part]
        examples = {p: background for p in range(PRIORS)}   # prior -> label
        if mining != "NONE":
            m = found[0]
            positives = [p for p in range(PRIORS) if m[p] >= 0]
            losses = {p: conf_term(conf[n, p], label_of(objects[m[p]]) if m[p] >= 0 else background)
                      + (loc_term(n, p, 0, objects[m[p]]) if m[p] >= 0 else 0) for p in range(PRIORS) if m[p] != -2}
            if mining == "MAX_NEGATIVE":
                losses = {p: v for p, v in losses.items() if m[p] == -1 and best[p] < o["neg_overlap"]}
            order = sorted(losses, key=lambda p: (-losses[p], p))
            if o["nms_threshold"] is not None:
                order = order[:o["top_k"]]
                here = [boxes[p] if o["use_prior_for_nms"] else decode(code, boxes[p], variance(p), loc[n, p, 0]) for p in order]
                order = [order[k] for k in suppress(here, o["nms_threshold"], o["eta"])]
            chosen = set(order[:int(len(positives) * o["neg_pos_ratio"]) if mining == "MAX_NEGATIVE" else o["sample_size"]])
            if mining == "HARD_EXAMPLE":
                found = {0: [-1 if m[p] >= 0 and p not in chosen else m[p] for p in range(PRIORS)]}
                chosen -= {p for p in positives if p not in chosen}
            examples = {p: background for p in chosen if found[0][p] == -1}
        for c, m in found.items():
            for p in range(PRIORS):
                if m[p] >= 0:
                    matches_seen += 1
                    loc_loss += loc_term(n, p, c, objects[m[p]])
                    examples[p] = label_of(objects[m[p]])
        conf_loss += sum(conf_term(conf[n, p], label) for p, label in examples.items())
    divisor = max({"VALID": matches_seen, "FULL": IMAGES * PRIORS, "BATCH_SIZE": IMAGES, "NONE": 1}[o["normalization"]], 1)
    return (o["loc_weight"] * loc_loss * o["terms"][0] + conf_loss * o["terms"][1]) / divisor


HARD, UNSHARED, BY_CODES = {"mining_type": "HARD_EXAMPLE"}, {"share_location": False, "mining_type": "NONE"}, {"use_prior_for_matching": False}
CASES = [
    {}, {"code_type": "CENTER_SIZE", "overlap_threshold": 0.0625}, {"code_type": "CORNER_SIZE", "loc_weight": 2.5, "loc_loss_type": "L2"},
    {"match_type": "BIPARTITE", "mining_type": "NONE", "overlap_threshold": 0.0625}, {"mining_type": "NONE", "conf_loss_type": "LOGISTIC"},
    {"conf_loss_type": "LOGISTIC", "neg_pos_ratio": 1.5}, {"conf_loss_type": "LOGISTIC", "background_label_id": 9},
    {"background_label_id": 3, "neg_overlap": 0.25}, {"use_difficult_gt": False}, {**UNSHARED, "code_type": "CENTER_SIZE"},
    {**UNSHARED, **BY_CODES, "overlap_threshold": 0.25}, {**UNSHARED, **BY_CODES, "overlap_threshold": 0.25, "background_label_id": 3},
    {**BY_CODES, "overlap_threshold": 0.25}, {"encode_variance_in_target": True, "code_type": "CENTER_SIZE"},
    {"ignore_cross_boundary_bbox": True}, {"bp_inside": True, "overlap_threshold": np.float32(0.2)},
    {**BY_CODES, "bp_inside": True, "overlap_threshold": np.float32(0.2)}, {**HARD, "sample_size": 7}, HARD,
    {**HARD, "sample_size": 6, "nms_threshold": 0.25, "loc_loss_type": "L2"},
    {**HARD, "sample_size": 6, "nms_threshold": 0.125, "use_prior_for_nms": True, "ignore_cross_boundary_bbox": True},
    {"nms_threshold": 0.5, "use_prior_for_nms": True}, *({"normalization": mode} for mode in ("FULL", "BATCH_SIZE", "NONE")),
    {"terms": (True, False)}, {"terms": (False, True)}]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_against_the_definition(options):
    for seed in 1, 2, 3:
        arrays = inputs(options.get("share_location", True), seed, background=options.get("background_label_id", 0))
        losses = []
        for threads in (1, 2):
            set_num_threads(threads)
            losses.append(run_forward(layer_net(layer_of(options), arrays)))
        assert losses[0] == losses[1] == pytest.approx(slow(*arrays, **options), rel=1e-10) and losses[0] > 0, seed


@pytest.mark.parametrize("options", one_of(3, CASES), ids=str)
def test_gradient(options):
    arrays = inputs(options.get("share_location", True), background=options.get("background_label_id", 0), priors=8)
    # Matching and mining are steps, which a difference seldom meets; the kinks of smooth L1 are kinks of its second derivative.
    check_gradient(layer_of(options, "loss_weight: 2"), list(arrays), check=[i for i in (0, 1) if options.get("terms", (1, 1))[i]],
                   step=1e-5, tolerance=1e-4)


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
        options = {"share_location": shared, "mining_type": mining, **{name: dice.choice(values) for name, values in {
            "code_type": ["CORNER", "CORNER_SIZE"], "match_type": ["PER_PREDICTION", "BIPARTITE"], "use_prior_for_matching": [True, True, False],
            "overlap_threshold": [0.125, 0.25, 0.5], "neg_overlap": [0.125, 0.25, 0.5], "neg_pos_ratio": [0.5, 3], "sample_size": [1, 5, 64],
            "use_difficult_gt": [True, True, False], "bp_inside": [False, True], "ignore_cross_boundary_bbox": [False, True],
            "loc_loss_type": ["L2", "SMOOTH_L1"], "conf_loss_type": ["LOGISTIC", "SOFTMAX"], "encode_variance_in_target": [True, False, False],
            "background_label_id": [0, 3]}.items()}}
        if mining != "NONE" and dice.random() < 0.6:
            options |= {"nms_threshold": dice.choice([0.125, 0.5, 0.75]), "top_k": dice.choice([0, 3, 9, 400]), "eta": dice.choice([1, 0.5]),
                        "use_prior_for_nms": dice.random() < 0.5}
        arrays = on_a_grid(dice, shared, options["background_label_id"])
        loss = run_forward(layer_net(layer_of(options), arrays))
        assert loss == pytest.approx(slow(*arrays, **options), rel=1e-9), options
        seen += loss > 0
    assert seen >= 3


@pytest.mark.parametrize("seed", range(3))
def test_nan_is_the_hardest_example(seed):
    loc, conf, priors, rows = on_a_grid(random.Random(seed), True)
    objects = [row for row in rows[0, 0] if row[0] == 0]
    matches, _ = match(list(priors[0, 0].reshape(-1, 4)), objects, {**DEFAULTS, "overlap_threshold": 0.25})
    for kind in ("L2", "SMOOTH_L1"):
        text = layer_of({**HARD, "sample_size": 1, "overlap_threshold": 0.25, "loc_loss_type": kind})
        for prior in range(PRIORS):
            spoilt = loc.copy()
            spoilt[0, 4 * prior + 1] = np.nan
            assert np.isnan(run_forward(layer_net(text, [spoilt, conf, priors, rows]))) == (matches[prior] >= 0)


def test_agnostic_and_far_objects():
    for background in (0, 1):
        arrays = inputs(classes=2, background=background)
        options = {"background_label_id": background, "map_object_to_agnostic": True, "num_classes": 2}
        assert run_forward(layer_net(layer_of(options), arrays)) == pytest.approx(slow(*arrays, **options), rel=1e-10)
    loc, conf, priors, _ = inputs()
    rows = np.array([[0, 1, 0, 5, 5, 6, 6, 0], [2, 1, 0, 0.5, 0.5, 0.5, 0.5, 0]], float)[None, None]  # far off, and without size
    assert run_forward(layer_net(layer_of({}), [loc, conf, priors, rows])) == 0
    arrays, options = inputs(classes=1, background=1), {"num_classes": 1, "conf_loss_type": "LOGISTIC", "background_label_id": 1}
    assert run_forward(layer_net(layer_of(options), arrays)) == pytest.approx(slow(*arrays, **options), rel=1e-10)
    arrays = inputs()
    arrays[1][0, :8] = np.nan
    for mining in ("MAX_NEGATIVE", "HARD_EXAMPLE", "NONE"):
        assert np.isnan(run_forward(layer_net(layer_of({"mining_type": mining, "neg_overlap": 2, "neg_pos_ratio": 9}), arrays)))


def test_no_objects_and_no_boxes():
    loc, conf, priors, _ = inputs()
    rows = np.full((1, 1, 1, 8), -1.0)
    for mining in ("MAX_NEGATIVE", "HARD_EXAMPLE", "NONE"):
        net = layer_net(layer_of({"mining_type": mining}), [loc, conf, priors, rows])
        wanted = slow(loc, conf, priors, rows, mining_type=mining)
        assert run_forward(net) == pytest.approx(wanted, rel=1e-10) and (wanted == 0) == (mining != "NONE")
        for name in ("b0", "b1"):
            net.blob_by_name(name).diff[...] = 9
        run_backward(net, [0, 1])
        assert (net.blob_by_name("b0").diff == 0).all() and ((net.blob_by_name("b1").diff != 0) == (mining == "NONE")).all()
        for images, count in ((0, 5), (3, 0), (0, 0)):
            shapes = (images, count * 4), (images, count * 4), (1, 2, count * 4), (1, 1, 0, 8)
            net = layer_net(layer_of({"mining_type": mining}), [np.ones(shape) for shape in shapes])
            assert run_forward(net) == 0
            run_backward(net, [0, 1])


def test_batches_types_and_other_bottoms():
    for dtype, rel in ((Dtype.DOUBLE, 1e-10), (Dtype.FLOAT, 1e-5)):
        net = layer_net(layer_of({"code_type": "CENTER_SIZE"}), inputs(), dtype)
        for seed, objects in ((1, 5), (2, 1), (3, 9), (4, 5)):
            arrays = [np.float32(array).astype(float) for array in inputs(seed=seed, objects=objects)]
            loss = forward_again(net, **{f"b{i}": array for i, array in enumerate(arrays)})
            assert loss == pytest.approx(slow(*arrays, code_type="CENTER_SIZE"), rel=rel) and net.blob_by_name("y").shape == ()
            run_backward(net, [0, 1])
            assert np.isfinite(net.blob_by_name("b0").diff).all()
    with pytest.raises(ConfigError, match=r"bottom\[2\]: MultiBoxLoss has no gradient to it; .* propagate_down: true true false false"):
        run_backward(net, [0, 2])
    for normalize, mode in (("normalize: false", "BATCH_SIZE"), ("normalize: false normalization: FULL", "FULL")):
        net = layer_net(layer(f"num_classes: {CLASSES} do_neg_mining: true", f"loss_param {{ {normalize} }}"), inputs())
        assert run_forward(net) == pytest.approx(slow(*inputs(), normalization=mode), rel=1e-10)
    net = layer_net(layer(f"num_classes: {CLASSES} do_neg_mining: false mining_type: NONE"), inputs())
    assert run_forward(net) == pytest.approx(slow(*inputs(), mining_type="NONE"), rel=1e-10)


def test_wrong_prototxt():
    for param, message in (("", "num_classes: must be given and at least 1, got 0"), *((f"num_classes: 4 {param}", message) for param, message in (
            ("background_label_id: 4", "background_label_id: must be below num_classes, 4, with SOFTMAX, got 4"),
            ("loc_weight: -1", "loc_weight: must be at least 0, got -1"), ("neg_pos_ratio: 0", "neg_pos_ratio: must be above 0, got 0"),
            ("overlap_threshold: 1.5", "overlap_threshold: must be from 0 to 1, got 1.5"),
            ("neg_overlap: nan", "neg_overlap: must be at least 0, got nan"), ("sample_size: 0", "sample_size: must be at least 1, got 0"),
            ("nms_param { eta: 2 }", "nms_param.eta: must be above 0 and at most 1, got 2"),
            ("nms_param { nms_threshold: -1 }", "nms_param.nms_threshold: must be at least 0, got -1"),
            ("share_location: false", "mining_type: mining needs share_location: true; set mining_type: NONE"),
            ("do_neg_mining: false", "do_neg_mining: is false, but mining_type is MAX_NEGATIVE"),
            ("map_object_to_agnostic: true", "map_object_to_agnostic: needs 2 classes")))):
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


def test_wrong_priors():
    for box in 0, 2, PRIORS - 1:
        loc, conf, priors, rows = inputs()
        priors[0, 1, 4 * box + 1] = 0
        with pytest.raises(DataError, match=rf"bottom\[2\]: the variances of prior box {box} must be above 0"):
            run_forward(layer_net(layer_of({}), [loc, conf, priors, rows]))
        priors[0, 1, 4 * box + 1] = 1
        priors[0, 0, 4 * box + 2] = priors[0, 0, 4 * box] - 1
        with pytest.raises(DataError, match=rf"bottom\[2\]: prior box {box}, .* has no width or no height"):
            run_forward(layer_net(layer_of({"code_type": "CORNER_SIZE"}), [loc, conf, priors, rows]))


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
    net = layer_net(layer_of({"conf_loss_type": loss, "mining_type": "NONE"}), inputs(priors=4000))

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
    def shares(options, rows=None):
        net = layer_net(layer_of(options), inputs())
        if rows is not None:
            net.blob_by_name("b3").data[...] = rows
        return run_forward(net), net.nodes[-1].layer.counted_shares(net.nodes[-1].bottoms)

    (loss, share), (of_batch, none) = shares({}), shares({"normalization": "BATCH_SIZE"})
    assert none == {} and share[0] * IMAGES * PRIORS == pytest.approx(of_batch * IMAGES / loss, rel=1e-6)
    found = [shares({"mining_type": mining}, -1)[1] for mining in ("MAX_NEGATIVE", "NONE")]
    assert found == [{0: 0}, {0: pytest.approx(1 / (IMAGES * PRIORS))}]
