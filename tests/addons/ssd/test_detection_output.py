"""DetectionOutput."""

import json

import numpy as np
import pytest
from gradient import forward_again, forward_net, layer_net, run_backward, run_forward
from helpers import layer_text
from ssd_boxes import CODES, decode, some_priors, suppress

from minicaffe.addons.ssd.detection_files import DetectionFiles, draw_boxes
from minicaffe.blob import Dtype
from minicaffe.common import TEST, caffe
from minicaffe.device.threads import set_num_threads
from minicaffe.errors import ConfigError, DataError, FileError, ShapeError
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text

IMAGES, PRIORS, CLASSES = 3, 40, 4


def layer(param, bottoms=3):
    return layer_text("DetectionOutput", "l", " ".join(f"b{i}" for i in range(bottoms)), "y", f"detection_output_param {{ {param} }}")


def inputs(shared=True, seed=1, priors=PRIORS):
    random = np.random.default_rng(seed)
    loc = random.standard_normal((IMAGES, priors * (1 if shared else CLASSES) * 4))
    conf = random.uniform(0, 1, (IMAGES, priors, CLASSES))
    return loc, (conf / conf.sum(2, keepdims=True)).reshape(IMAGES, -1), some_priors(random, priors)


def slow(loc, conf, priors, code="CORNER", background=0, shared=True, in_target=False, confidence=None, threshold=0.3, top_k=-1,
         eta=1.0, keep=-1):
    """The definition: rows (image, label, score, box)."""
    boxes, variances = priors.reshape(2, -1, 4)
    loc = loc.reshape(len(loc), len(boxes), -1, 4)
    conf = conf.reshape(len(conf), len(boxes), CLASSES)
    rows = []
    for n in range(len(loc)):
        found = []
        for c in range(CLASSES):
            if c == background:
                continue
            order = sorted((p for p in range(len(boxes)) if confidence is None or conf[n, p, c] > confidence),
                           key=lambda p: -conf[n, p, c])
            order = order if top_k < 0 else order[:top_k]
            decoded = [decode(CODES[code], boxes[p], 1 if in_target else variances[p], loc[n, p, 0 if shared else c]) for p in order]
            found += [(n, c, conf[n, order[k], c], *decoded[k]) for k in suppress(decoded, threshold, eta)]
        if keep >= 0:
            best = sorted(range(len(found)), key=lambda i: -found[i][2])[:keep]
            found = [found[i] for i in sorted(best)]
        rows += found
    return np.array(rows).reshape(-1, 7)


CASES = [
    ("", {}), ("code_type: CENTER_SIZE", {"code": "CENTER_SIZE"}), ("code_type: CORNER_SIZE", {"code": "CORNER_SIZE"}),
    ("share_location: false code_type: CENTER_SIZE", {"shared": False, "code": "CENTER_SIZE"}),
    ("background_label_id: 2 confidence_threshold: 0.25", {"background": 2, "confidence": 0.25}),
    ("background_label_id: -1 confidence_threshold: 0.5", {"background": -1, "confidence": 0.5}),
    ("variance_encoded_in_target: true code_type: CENTER_SIZE", {"in_target": True, "code": "CENTER_SIZE"}),
    ("nms_param { nms_threshold: 0.45 top_k: 7 } keep_top_k: 9", {"threshold": 0.45, "top_k": 7, "keep": 9}),
    ("nms_param { nms_threshold: 0.9 eta: 0.75 }", {"threshold": 0.9, "eta": 0.75}),
    ("nms_param { nms_threshold: 0.5 eta: 0.5 }", {"threshold": 0.5, "eta": 0.5}),      # falls above 1/2 only
    ("nms_param { nms_threshold: 1 eta: 0.5 }", {"threshold": 1.0, "eta": 0.5}),
    ("nms_param { nms_threshold: 0 }", {"threshold": 0.0}), ("nms_param { nms_threshold: 2 }", {"threshold": 2.0}),
    ("keep_top_k: 1", {"keep": 1}), ("nms_param { top_k: 1 }", {"top_k": 1}),
]


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("param, options", CASES)
def test_against_the_definition(param, options, dtype):
    arrays, results = [np.float32(array) for array in inputs(options.get("shared", True))], []
    wanted = slow(*(array.astype(float) for array in arrays), **options)
    for threads in (1, 2):
        set_num_threads(threads)
        net = layer_net(layer(f"num_classes: {CLASSES} {param}"), arrays, dtype, TEST)
        assert net.blob_by_name("y").shape == (1, 1, 1, 7)
        run_forward(net)
        results.append(net.blob_by_name("y").data.copy())
    assert results[0].shape == (1, 1, len(wanted), 7) and len(wanted) > 0
    np.testing.assert_allclose(results[0][0, 0], wanted, rtol=2e-5, atol=2e-5)  # exp and products in float32
    np.testing.assert_array_equal(*results)


def test_equal_scores_and_new_batches():
    priors = np.array([[0, 0, 1, 1], [0, 0, 0.1, 0.1], [2, 2, 3, 3], [4, 4, 5, 5]], float)
    priors = np.stack([priors.ravel(), np.ones(16)])[None]
    conf = np.tile([0.5, 0.5], (1, 4))
    net = forward_net(layer("num_classes: 2 keep_top_k: 3"), [np.zeros((1, 16)), conf, priors])
    assert net.blob_by_name("y").data[0, 0, :, 3].tolist() == [0, 0, 2]
    priors = np.stack([np.array([0.0, 0, 1, 1, 2, 2, 3, 3]), np.ones(8)])[None]
    net = forward_net(layer("num_classes: 2 confidence_threshold: 0.5"), [np.zeros((1, 8)), np.array([[0.5, 0.5, 0.25, 0.75]]), priors])
    assert net.blob_by_name("y").data[0, 0, :, 2].tolist() == [0.75]
    loc, conf, priors = inputs()
    net = layer_net(layer(f"num_classes: {CLASSES}"), [loc, conf, priors])
    forward_again(net, b0=loc[:1], b1=conf[:1])
    np.testing.assert_allclose(net.blob_by_name("y").data[0, 0], slow(loc[:1], conf[:1], priors), rtol=1e-9)
    loc[0, :4] = np.nan
    conf[0, :CLASSES] = 1
    net = forward_net(layer(f"num_classes: {CLASSES}"), [loc, conf, priors])
    rows = net.blob_by_name("y").data[0, 0]
    first = rows[(rows[:, 0] == 0) & (rows[:, 1] == 1)]
    assert np.isnan(first[0, 3:]).all() and len(first) > 1


def test_nothing_found():
    loc, conf, priors = inputs()
    for what, param, arrays in (
            ("threshold", "confidence_threshold: 2", inputs()), ("keep 0", "keep_top_k: 0", inputs()), ("top 0", "nms_param { top_k: 0 }", inputs()),
            ("no priors", "", inputs(priors=0)), ("nan", "", [loc, np.full_like(conf, np.nan), priors]),
            ("all background", "confidence_threshold: 0.01", [loc, np.tile([1, 0, 0, 0], (IMAGES, PRIORS)), priors]),
            ("only background", "", [loc, conf[:, :PRIORS], priors])):
        net = forward_net(layer(f"num_classes: {1 if what == 'only background' else CLASSES} {param}"), arrays)
        assert net.blob_by_name("y").data.tolist() == [[[[i, -1, -1, -1, -1, -1, -1] for i in range(IMAGES)]]], what


LABELS = "".join(f'item {{ name: "{name}" label: {i} display_name: "a {name}" }}' for i, name in enumerate(("none", "17", "cat", "dog")))


@pytest.fixture
def lists(tmp_path):
    (tmp_path / "labels.prototxt").write_text(LABELS)
    (tmp_path / "sizes.txt").write_text("first 100 200\nsecond 50 50\n\n33 10 40\nfourth 7 7\n")
    return tmp_path


def save(folder, form, more=""):
    return (f'save_output_param {{ output_directory: "{folder}/out" output_name_prefix: "p_" output_format: "{form}" '
            f'label_map_file: "{folder}/labels.prototxt" name_size_file: "{folder}/sizes.txt" {more} }}')


def expected(rows, sizes, frame=(0, 0, 1, 1)):
    """(image, label, score, box in pixels) of each row."""
    result = []
    for n, label, score, *box in rows:
        height, width = sizes[int(n)]
        inner = (np.array(box) - np.tile(frame[:2], 2)) / np.tile(np.subtract(frame[2:], frame[:2]), 2)
        result.append((int(n), int(label), score, np.round(np.clip(inner, 0, 1) * [width, height, width, height], 2)))
    return result


@pytest.mark.parametrize("form", ["VOC", "ILSVRC", "COCO"])
def test_result_files(lists, form):
    net = layer_net(layer(f"num_classes: {CLASSES} keep_top_k: 4 {save(lists, form, 'num_test_image: 3')}"), inputs())
    assert sorted(path.name for path in (lists / "out").iterdir()) == []
    (lists / "out" / "mine.txt").write_text("kept")
    for _ in range(2):  # the second time over the test set replaces the files
        run_forward(net)
    wanted = expected(net.blob_by_name("y").data[0, 0], [(100, 200), (50, 50), (10, 40)])
    names = ["first", "second", "33"]
    files = {path.name: path.read_text() for path in (lists / "out").iterdir()}
    assert files.pop("mine.txt") == "kept"
    if form == "VOC":
        assert sorted(files) == ["p_17.txt", "p_cat.txt", "p_dog.txt"]
        for label, name in ((1, "17"), (2, "cat"), (3, "dog")):
            lines = [f"{names[n]} {score:g} {' '.join(str(int(edge)) for edge in box)}"
                     for n, of, score, box in wanted if of == label]
            assert files[f"p_{name}.txt"].splitlines() == lines
    elif form == "ILSVRC":
        assert files == {"p_.txt": "".join(f"{names[n]} {label} {score:g} {' '.join(f'{edge:g}' for edge in box)}\n"
                                           for n, label, score, box in wanted)}
    else:
        results = json.loads(files["p_.json"])
        assert len(results) == len(wanted) == 12
        for got, (n, label, score, box) in zip(results, wanted):
            assert got["image_id"] == ["first", "second", 33][n] and got["category_id"] == [None, 17, "cat", "dog"][label]
            np.testing.assert_allclose([*got["bbox"], got["score"]], [*box[:2], *(box[2:] - box[:2]), score], atol=1e-6)


def test_padding_is_undone(lists):
    resize = "num_test_image: 3 resize_param { resize_mode: FIT_LARGE_SIZE_AND_PAD height: 30 width: 30 }"
    net = forward_net(layer(f"num_classes: {CLASSES} keep_top_k: 4 {save(lists, 'ILSVRC', resize)}"), inputs())
    rows, lines = net.blob_by_name("y").data[0, 0], (lists / "out" / "p_.txt").read_text().splitlines()
    # 100 x 200 fills half of the height, 10 x 40 a quarter.
    for n, frame in enumerate(((0, 0.25, 1, 0.75), (0, 0, 1, 1), (0, 0.375, 1, 0.625))):
        wanted = expected(rows[rows[:, 0] == n], [(100, 200), (50, 50), (10, 40)], frame)
        got = [list(map(float, line.split()[3:])) for line in lines if line.startswith(("first", "second", "33")[n])]
        np.testing.assert_allclose(got, [box for *_, box in wanted], atol=0.011)


def test_files_of_a_whole_test(lists):
    def images():
        return {result["image_id"] for result in json.loads((lists / "out" / "p_.json").read_text())}

    net = forward_net(layer(f"num_classes: {CLASSES} {save(lists, 'COCO')}"), inputs())
    assert list((lists / "out").iterdir()) == []  # 3 of 4 images so far
    run_forward(net)
    assert images() == {"first", "second", 33, "fourth"}
    forward_net(layer(f"num_classes: {CLASSES} {save(lists, 'COCO', 'num_test_image: 1')}"), [array[:1] for array in inputs()])
    assert images() == {"first"}


def test_no_files_unless_wanted(lists, monkeypatch):
    monkeypatch.chdir(lists)
    before = sorted(lists.iterdir())
    param = save(lists, "COCO").replace(f'output_directory: "{lists}/out"', "")
    for _ in range(2):
        run_forward(layer_net(layer(f"num_classes: {CLASSES} {param}"), inputs()))
    assert sorted(lists.iterdir()) == before
    net = "".join(layer_text("Input", f"b{i}", more=f"input_param {{ shape {{ dim: {dims} }} }}")
                  for i, dims in enumerate(([1, 4], [1, 4], [1, 2, 4])))
    text, _ = parse_text(net + layer(f"num_classes: {CLASSES} {save('.', 'VOC')}"), caffe_pb2.NetParameter, "x.prototxt")
    with pytest.raises(ConfigError, match=r"layer 'l' \(DetectionOutput\): detection_output_param.save_output_param.output_directory: the net is not tr"):
        Net(text, trusted=False)
    assert not (lists / "out").exists()


def test_wrong_files(lists):
    for change, message in (
            (("VOC", "XML"), "output_format: must be one of VOC, COCO, ILSVRC, got 'XML'"),
            (("num_test_image: 3", "num_test_image: 5"), "num_test_image: must be from 1 to 4, the lines of name_size_file, got 5"),
            (("labels.prototxt", "nothing.prototxt"), "label_map_file: .*no such file"),
            (("sizes.txt", "labels.prototxt"), "name_size_file: .*labels.prototxt: is a prototxt, where a list of names, heights and widths"),
            (("num_test_image: 3", "num_test_image: 3 resize_param { height: 3 }"), "resize_param.width: must be given and at least 1")):
        param = save(lists, "VOC", "num_test_image: 3").replace(*change)
        with pytest.raises((ConfigError, DataError, RuntimeError), match=f"detection_output_param.save_output_param.{message}"):
            layer_net(layer(f"num_classes: {CLASSES} {param}"), inputs())


def test_results_that_cannot_be_written(lists):
    loc, conf, priors = inputs()
    conf[0, :CLASSES] = 1
    for value in np.nan, np.inf:        # the top has them, as in Caffe
        loc[0, :4] = value
        assert not np.isfinite(forward_net(layer("num_classes: 4"), [loc, conf, priors]).blob_by_name("y").data).all()
        net = layer_net(layer(f"num_classes: 4 {save(lists, 'VOC')}"), [loc, conf, priors])
        with pytest.raises(DataError, match=r"a box of picture 0 of the batch, label \d, is \(.*(nan|inf).*cannot be written"):
            run_forward(net)
    (lists / "labels.prototxt").write_text('item { name: "cat" label: 1 } item { name: "dog" label: 2 }')
    with pytest.raises(DataError, match="label_map_file: .*has no item for label 3"):
        layer_net(layer(f"num_classes: {CLASSES} {save(lists, 'VOC')}"), inputs())
    (lists / "labels.prototxt").write_text(LABELS)
    (lists / "out").rmdir()
    (lists / "out").write_text("a file")
    with pytest.raises(FileError, match=rf"^detection_output_param.save_output_param.output_directory: '{lists}/out' cannot be made: File exists"):
        DetectionFiles(of_files(lists))


def test_wrong_fields_and_bottoms():
    for param, message in (
            ("", "num_classes: must be given and at least 1, got 0"),
            *((f"num_classes: 4 {param}", message) for param, message in (
                ("background_label_id: 4", "background_label_id: must be from -1 to num_classes - 1 = 3, got 4"),
                ("background_label_id: -2", "background_label_id: must be from -1"), ("code_type: CENTRE", "code_type: .*CENTER_SIZE"),
                ("nms_param { nms_threshold: -1 }", "nms_param.nms_threshold: must be at least 0, got -1"),
                ("nms_param { eta: 0 }", "nms_param.eta: must be above 0 and at most 1, got 0"),
                ("nms_param { top_k: -2 }", "nms_param.top_k: must be at least -1, got -2"),
                ("keep_top_k: -5", "keep_top_k: must be at least -1, got -5")))):
        with pytest.raises(ConfigError, match=rf"test.prototxt.*layer 'l' \(DetectionOutput\): detection_output_param.{message}"):
            layer_net(layer(param), inputs())
    loc, conf, priors = inputs()
    for arrays, message in (
            ([loc[:, 4:], conf, priors], r"bottom\[0\]: needs 40 prior boxes x 1 locations x 4 = 160 codes for each image"),
            ([loc, conf[:, 4:], priors], r"bottom\[1\]: needs 40 prior boxes x 4 classes = 160 scores for each of 3 images"),
            ([loc, conf[:2], priors], r"bottom\[1\]: needs"),
            ([loc, conf, priors[:, :1]], r"bottom\[2\]: must be prior boxes and variances, \(1, 2, boxes x 4\), got \[1, 1, 160\]"),
            *(([loc, conf, wrong], r"bottom\[2\]: must be prior boxes")
              for wrong in (priors[0], np.repeat(priors, 2, 0), priors[..., :-2], priors.reshape(1, 2 * 4 * PRIORS))),
            ([np.array(1.0), conf, priors], r"bottom\[0\]: needs an axis for the images, got a scalar")):
        with pytest.raises(ShapeError, match=rf"layer 'l' \(DetectionOutput\): {message}"):
            layer_net(layer("num_classes: 4"), arrays)
    for box, edge in ((0, 2), (2, 3), (PRIORS - 1, 2)):
        flat = priors.copy()
        flat[0, 0, 4 * box + edge] = flat[0, 0, 4 * box + edge - 2]
        net = layer_net(layer("num_classes: 4 code_type: CENTER_SIZE"), [loc, conf, flat])
        with pytest.raises(DataError, match=rf"bottom\[2\]: prior box {box}, .* has no width or no height"):
            run_forward(net)
    run_forward(layer_net(layer("num_classes: 4"), [loc, conf, flat]))  # CORNER needs no sizes
    net = forward_net(layer("num_classes: 4"), inputs())
    with pytest.raises(ConfigError, match="DetectionOutput has no gradient"):
        run_backward(net, [0])


def of_files(folder, form="COCO", **more):
    return caffe_pb2.DetectionOutputParameter(num_classes=4, background_label_id=0, save_output_param={
        "output_directory": f"{folder}/out", "output_name_prefix": "p_", "output_format": form, "label_map_file": f"{folder}/labels.prototxt",
        "name_size_file": f"{folder}/sizes.txt", **more})


def test_missing_files_in_the_log(lists, caplog):
    for missing, words in ((("label_map_file",), "label_map_file"), (("name_size_file",), "name_size_file"),
                           (("label_map_file", "name_size_file"), "label_map_file and name_size_file"), ((), None)):
        caplog.clear()
        assert DetectionFiles.wanted(of_files(lists, **dict.fromkeys(missing, ""))) == (not missing)
        field = "detection_output_param.save_output_param"
        said = [f"{field}: nothing is written to '{lists}/out' without {words}"]
        assert [record.getMessage() for record in caplog.records] == said * bool(missing)
    assert not DetectionFiles.wanted(of_files(lists, output_directory="")) and len(caplog.records) == 0
    layer_net(layer(f'num_classes: 4 save_output_param {{ output_directory: "{lists}/out" output_format: "VOC" }}'), inputs())
    assert not (lists / "out").exists()


def test_passes_over_a_test_set(lists, monkeypatch):
    files, random = DetectionFiles(of_files(lists)), np.random.default_rng(1)
    for _ in range(2):      # the second pass has what is its own alone
        for _ in range(4):
            low, high = np.sort(random.random((2, 5, 2)), 0)
            files.add(1, np.column_stack([np.zeros(5), random.integers(1, 4, 5), random.random(5), low, high]))
        found = json.loads((lists / "out" / "p_.json").read_text())
        assert len(found) == 20 and [one["image_id"] for one in found[::5]] == ["first", "second", 33, "fourth"]
        assert all(edge == float(f"{edge:.2f}") for one in found for edge in one["bbox"])
    (lists / "out" / "p_.json").unlink()
    for rank in 1, 0:       # only the first process writes
        monkeypatch.setattr(caffe, "solver_rank", rank)
        files = DetectionFiles(of_files(lists))
        files.add(4, np.zeros((0, 7)))
        assert bool(list((lists / "out").iterdir())) == (rank == 0) and (files.seen < 4 or rank == 0)


def test_drawn_boxes_and_texts(caplog):
    cv2 = pytest.importorskip("cv2")
    arrays = [*inputs(), np.full((3, 1, 40, 50), 7.0)]      # the layer itself draws nothing
    nets = [forward_net(layer(f"num_classes: 4 {fields}", 4), arrays) for fields in ("visualize: true", "")]
    assert caplog.text.count("layer 'l': detection_output_param.visualize is ignored: minicaffe detect --out FILE draws") == 1
    np.testing.assert_array_equal(*(net.blob_by_name("y").data for net in nets))
    random = np.random.default_rng(4)
    for _ in range(20):
        height, width = (int(side) for side in random.integers(20, 90, 2))
        rows = np.column_stack([np.zeros(3), random.integers(0, 9, 3), random.random(3), random.uniform(-3, 4, (3, 4))])
        image, wanted = (np.zeros((height, width, 3), np.uint8) for _ in range(2))
        draw_boxes(image, rows, {1: "cat"})
        for _, label, score, *box in rows:
            left, top, right, bottom = (round(min(max(edge, -1), 2) * side) for edge, side in zip(box, (width, height) * 2))
            hue = (67 * int(label)) % 180
            colour = cv2.cvtColor(np.full((1, 1, 3), (hue, 255, 255), np.uint8), cv2.COLOR_HSV2BGR)[0, 0].tolist()
            cv2.rectangle(wanted, (left, top), (right, bottom), colour, 2)
            cv2.putText(wanted, f"{'cat' if label == 1 else int(label)}: {score:.2f}", (max(left, 0), max(top, 12)), cv2.FONT_HERSHEY_SIMPLEX, 0.4, colour)
        np.testing.assert_array_equal(image, wanted)
