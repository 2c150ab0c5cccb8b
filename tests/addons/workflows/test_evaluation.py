"""The test of a classifier: each record once, wrong pictures, confusion, scores of classes."""

import csv
import json
import math
import random
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe.addons.workflows import test_options
from minicaffe.addons.workflows.confusion import Confusion, Prediction
from minicaffe.addons.workflows.test_options import _safe
from minicaffe.data.db import open_db
from minicaffe.errors import FileError
from minicaffe.proto import caffe_pb2

COUNT, CLASSES = 36, 3
NET = """layer { name: "in" type: "Data" top: "data" top: "label" %s data_param { source: "db" batch_size: %d backend: LMDB } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 0.02 } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
layer { name: "right" type: "Accuracy" bottom: "ip" bottom: "label" top: "right" }
%s
"""
TEST = ("test", "net.prototxt", "--weights=w.caffemodel")


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A database of 36 pictures and a function that writes net.prototxt; pixels, labels and the scores of weights w.caffemodel."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    random = np.random.default_rng(2)
    pixels, labels = random.integers(0, 255, (COUNT, 3, 5, 4)).astype(np.uint8), random.integers(0, CLASSES, COUNT)
    with open_db("db", "LMDB", "w") as db:
        for i in range(COUNT):
            datum = caffe_pb2.Datum(channels=3, height=5, width=4, data=pixels[i].tobytes(), label=int(labels[i]))
            db.put(b"%03d" % i, datum.SerializeToString())
    write(tmp_path, COUNT)
    caffe.set_random_seed(1)
    net = caffe.Net("net.prototxt", caffe.TEST)
    net.params["ip"][0].data[...] -= net.params["ip"][0].data.mean(axis=1, keepdims=True)   # so that each class is answered
    net.save("w.caffemodel")
    net.forward()
    return pixels, labels, net.blobs["ip"].data.copy()


def write(folder, size, more="", transform="", before=None, after=""):
    text = NET % (transform, size, more)
    (folder / "net.prototxt").write_text(text.replace(before, after) if before else text)


def write_hdf5(pictures, labels):
    with pytest.importorskip("h5py").File("a.h5", "w") as file:
        file["data"], file["label"] = pictures.astype(np.float32), labels.astype(np.float32)
    Path("list.txt").write_text("a.h5\n")


def files(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def rows_of(folder):
    """The rows of the list of wrong pictures."""
    with open(f"{folder}/wrong.csv", newline="") as file:
        return list(csv.DictReader(file))


def matrix(labels, scores):
    found = np.zeros((CLASSES, CLASSES), int)
    np.add.at(found, (labels, scores.argmax(axis=1)), 1)
    return found


def stretched(picture):
    return (picture - picture.min()) * 255 / (picture.max() - picture.min())


@pytest.mark.parametrize("size", [8, 36, 7, 40])
def test_each_record_counts_once(minicaffe, data, tmp_path, size):
    write(tmp_path, size)
    names = "cat", "dog", "newt"
    (tmp_path / "labels.txt").write_text("\n".join(names))
    out = minicaffe(*TEST, "--confusion", "--per-class", "--json=o.json")
    want, result = matrix(*data[1:]), json.loads((tmp_path / "o.json").read_text())
    assert result["evaluation"]["confusion"] == want.tolist() and result["records"] == COUNT
    accuracy = want.trace() / COUNT
    assert float(re.search("^right = (.*)", out, re.M)[1]) == pytest.approx(accuracy, abs=1e-4)
    assert f"{want.trace()} of 36 records right: accuracy {accuracy:.4f}" in out
    for i, name in enumerate(names):
        figures = f"{want[i, i] / want[:, i].sum():.4f}", f"{want[i, i] / want[i].sum():.4f}", str(want[i].sum())
        assert re.search(rf"^{i} {name} +(\S+) +(\S+) +(\d+)$", out, re.M).groups() == figures
    assert "names of the classes: labels.txt" in minicaffe.messages and "test: 36 records, each once" in minicaffe.messages
    assert re.search(rf"^0 cat +{want[0, 0]} +{want[0, 1]} +{want[0, 2]}$", out, re.M) and all(len(line) <= 80 for line in out.splitlines())


def test_records_of_fixed_batches(minicaffe, data, tmp_path):
    fixed = 'layer { name: "flat" type: "Reshape" bottom: "data" top: "flat" reshape_param { shape { dim: 8 dim: 60 } } }\n' \
            'layer { name: "none" type: "Silence" bottom: "flat" }'
    write(tmp_path, 8, fixed)
    minicaffe(*TEST, "--per-class", "--json=o.json")
    assert "4 of them twice" in minicaffe.messages     # the means of the outputs
    assert json.loads((tmp_path / "o.json").read_text())["evaluation"]["confusion"] == matrix(*data[1:]).tolist()
    minicaffe(*TEST, "--per-class", "--json=o.json", "--iterations=2", "--force")
    assert json.loads((tmp_path / "o.json").read_text())["evaluation"]["counted"] == 16


def test_ties_are_wrong_as_in_accuracy(minicaffe, data, tmp_path):
    net = caffe.Net("net.prototxt", caffe.TEST, weights="w.caffemodel")
    for blob in net.params["ip"]:
        blob.data[...] = 0
    net.save("w.caffemodel")
    out = minicaffe(*TEST, "--per-class")
    assert "right = 0\n" in out and "0 of 36 records right" in out and "36 ties count as wrong" in out
    net.params["ip"][0].data[...] = np.nan
    net.save("w.caffemodel")
    assert "0 of 36 records right" in minicaffe(*TEST, "--per-class", "--wrong=d", "--json=o.json")
    assert [int(row["number"]) for row in rows_of("d")] == list(range(COUNT))      # of equal scores in their order
    result = json.loads((tmp_path / "o.json").read_text())
    assert (result["evaluation"]["accuracy"], result["wrong"]["found"], len(result["wrong"]["pictures"])) == (0, 36, 36)
    net.params["ip"][0].data[...] = 0
    net.params["ip"][0].data[0, 0] = 3.4e38 / 128   # the score of class 0 overflows where the first value is greater
    net.save("w.caffemodel")
    write(tmp_path, 8)
    minicaffe(*TEST, "--wrong=d", "--force")
    numbers, overflows = [int(row["number"]) for row in rows_of("d")], data[0][:, 0, 0, 0] > 128
    assert numbers == sorted(numbers, key=lambda i: (overflows[i], i)) and 0 < overflows[numbers].sum() < len(numbers)    # NaN is the lowest score


@pytest.mark.parametrize("transform, crop, mean", [("", slice(None), 0), ("scale: 0.01 mean_value: 90", slice(None), 90),
                                                   ("scale: 0.5 crop_size: 3 mean_value: 1 mean_value: 2 mean_value: 3", slice(3), [[[1]], [[2]], [[3]]])])
def test_wrong_pictures(minicaffe, data, tmp_path, transform, crop, mean):
    cv2 = pytest.importorskip("cv2")
    pixels, labels, scores = data
    if transform:
        transform = f"transform_param {{ {transform} }}"
        write(tmp_path, COUNT, transform=transform)
        net = caffe.Net("net.prototxt", caffe.TEST)
        net.save("w.caffemodel")
        net.forward()
        scores = net.blobs["ip"].data.copy()
    write(tmp_path, 8, transform=transform)
    seen = (pixels[:, :, 1:4, crop] if crop != slice(None) else pixels).astype(float) - mean
    softmax = np.exp(scores - scores.max(axis=1, keepdims=True)).astype(float)
    softmax /= softmax.sum(axis=1, keepdims=True)
    answers = scores.argmax(axis=1)
    wrong = sorted(np.flatnonzero(answers != labels), key=lambda i: (-softmax[i].max(), i))
    names = ["a/b", "cat_2", "ünder"]
    (tmp_path / "labels.txt").write_text("\n".join(names))
    out = minicaffe(*TEST, "--wrong=bad", "--wrong-limit=7")
    assert f"wrote bad: 7 of {len(wrong)} wrong pictures and wrong.csv, those with the highest scores; --wrong-limit" in out
    rows = rows_of("bad")
    assert [int(row["number"]) for row in rows] == wrong[:7] and files("bad") == sorted(["wrong.csv", *(row["file"] for row in rows)])
    for row in rows:
        i = int(row["number"])
        assert (row["truth"], row["answer"]) == (names[labels[i]], names[answers[i]]) and float(row["score"]) == pytest.approx(softmax[i].max(), rel=1e-4)
        safe = [name.replace("/", "-").replace("_", "-") for name in (row["truth"], row["answer"])]
        assert re.fullmatch(rf"{safe[0]}_{safe[1]}_[01]\.\d{{4}}_{i}\.png", row["file"])
        image = cv2.imdecode(np.fromfile(f"bad/{row['file']}", np.uint8), cv2.IMREAD_COLOR)
        np.testing.assert_allclose(image.transpose(2, 0, 1), stretched(seen[i]), atol=1.01)
    assert "bad: exists already; --force replaces it" in minicaffe(*TEST, "--wrong=bad", status=1)
    out = minicaffe(*TEST, "--wrong=bad", "--force")
    assert f"wrote bad: {len(wrong)} wrong pictures and wrong.csv" in out and len(files("bad")) == len(wrong) + 1
    (tmp_path / "bad" / "thesis.txt").write_text("years of work")
    assert "holds more than the wrong pictures of a test (thesis.txt), so --force does not replace it" in minicaffe(*TEST, "--wrong=bad", "--force", status=1)


@pytest.mark.parametrize("kind, more", [("float", ""), ("in place", 'layer { name: "half" type: "Power" bottom: "data" top: "data" power_param { scale: 0.5 } }')])
def test_pictures_of_other_values(minicaffe, data, tmp_path, kind, more):
    cv2 = pytest.importorskip("cv2")
    pixels = data[0]
    if kind == "float":
        shutil.rmtree("db")
        with open_db("db", "LMDB", "w") as db:
            for i in range(COUNT):
                db.put(b"%03d" % i, caffe_pb2.Datum(channels=3, height=5, width=4, float_data=(pixels[i] * 3.0 - 100).ravel(), label=0).SerializeToString())
    write(tmp_path, COUNT, before='layer { name: "ip"', after=more + 'layer { name: "ip"')
    minicaffe(*TEST, "--wrong=bad")
    rows = rows_of("bad")
    assert rows
    for row in rows:
        image = cv2.imread(f"bad/{row['file']}").transpose(2, 0, 1)
        np.testing.assert_allclose(image, stretched(pixels[int(row["number"])].astype(float)), atol=1.01)


def test_failures_leave_the_earlier_folder(minicaffe, data, tmp_path, monkeypatch):
    minicaffe(*TEST, "--wrong=bad", "--wrong-limit=1")
    before, rename = (files(tmp_path), files("bad")), Path.rename

    def stop(*_):
        raise KeyboardInterrupt

    def fail(path, target):
        if path.name == "bad" and path.parent != tmp_path:
            raise OSError(5, "Input/output error")
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(test_options, "write_png", stop)
        for folder in ("bad", "new"):
            minicaffe(*TEST, f"--wrong={folder}", "--force", status=130)
    assert (files(tmp_path), files("bad")) == before
    monkeypatch.setattr(Path, "rename", fail)
    assert "Input/output error" in minicaffe(*TEST, "--wrong=bad", "--force", status=1)
    assert files("bad") == before[1]


@pytest.mark.parametrize("arguments, status, message", [
    (["--json=m.csv"], 1, "m.csv: exists already; --force replaces it"),
    (["--per-class", "--labels=none.txt"], 1, "none.txt: no such file"),
    (["--per-class", "--labels=two.txt"], 1, "two.txt: holds 2 names, the net gives 3 scores"),
    (["--labels=two.txt"], 2, "--labels is for --confusion, --per-class, --wrong; give one of them"),
    (["--wrong-limit=3", "--per-class"], 2, "--wrong-limit limits the pictures of --wrong, which is not given"),
    (["--per-class", "--prediction=lost"], 2, "--prediction: no layer 'lost' compares scores of classes with a label; did you mean"),
    (["--per-class", "--prediction=ip"], 2, "such layers here are loss, right"),
    (["--wrong=none/deep"], 1, "none/deep: cannot be written: the folder")])
def test_what_is_wrong(minicaffe, data, tmp_path, arguments, status, message):
    (tmp_path / "two.txt").write_text("cat\ndog\n")
    (tmp_path / "m.csv").write_text("years of work")
    assert message in minicaffe(*TEST, *arguments, status=status)
    assert (tmp_path / "m.csv").read_text() == "years of work"


def test_nets_that_classify_nothing(minicaffe, data, tmp_path):
    write(tmp_path, 8, before="SoftmaxWithLoss", after="EuclideanLoss")
    text = (tmp_path / "net.prototxt").read_text().replace("num_output: 3", "num_output: 1").replace("Accuracy", "EuclideanLoss")
    (tmp_path / "net.prototxt").write_text(text)
    caffe.Net("net.prototxt", caffe.TEST).save("one.caffemodel")
    out = minicaffe("test", "net.prototxt", "--weights=one.caffemodel", "--confusion", status=2)
    assert "net.prototxt: no layer compares scores of classes with a label, so there are no right and wrong answers to count; add one of SoftmaxWithLoss," in out


def test_data_without_pictures(minicaffe, data, tmp_path):
    write_hdf5(data[0].reshape(COUNT, -1), data[1])
    write(tmp_path, COUNT, before=f'type: "Data" top: "data" top: "label"  data_param {{ source: "db" batch_size: {COUNT} backend: LMDB }}',
          after='type: "HDF5Data" top: "data" top: "label" hdf5_data_param { source: "list.txt" batch_size: 7 }')
    minicaffe(*TEST, "--confusion", "--json=o.json")
    assert json.loads((tmp_path / "o.json").read_text())["evaluation"]["confusion"] == matrix(*data[1:]).tolist()
    assert "--wrong has none to write" in minicaffe(*TEST, "--wrong=d", status=2)


def test_which_scores_are_the_answers(minicaffe, data, tmp_path):
    pixels, labels, _ = data
    more = 'layer { name: "ip2" type: "InnerProduct" bottom: "data" top: "ip2" inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 0.02 } } }\n' \
           'layer { name: "loss2" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss2" }'
    write(tmp_path, COUNT, more)
    caffe.set_random_seed(5)
    net = caffe.Net("net.prototxt", caffe.TEST)
    net.save("w.caffemodel")
    net.forward()
    for option, blob, layer, other in ((), "ip2", "loss2", "loss, right"), (("--prediction=loss",), "ip", "loss", "loss2"), (("--prediction=right",), "ip", "right", "loss2"):
        minicaffe(*TEST, "--per-class", "--json=o.json", "--force", *option)
        assert f"answers: the scores that layer '{layer}'" in minicaffe.messages and f"--prediction takes another of {other}\n" in minicaffe.messages
        assert json.loads((tmp_path / "o.json").read_text())["evaluation"]["confusion"] == matrix(labels, net.blobs[blob].data).tolist()


def test_pixel_and_ignored_labels(minicaffe, data, tmp_path):
    random = np.random.default_rng(3)
    x, y = random.normal(size=(10, 2, 1, 4)).astype(np.float32), random.integers(0, 3, (10, 1, 1, 4))
    write_hdf5(x, y)
    (tmp_path / "net.prototxt").write_text("""layer { name: "in" type: "HDF5Data" top: "data" top: "label" hdf5_data_param { source: "list.txt" batch_size: 4 } }
        layer { name: "ip" type: "Convolution" bottom: "data" top: "ip" convolution_param { num_output: 3 kernel_size: 1 weight_filler { type: "gaussian" std: 1 } } }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" loss_param { ignore_label: 1 } }""")
    net = caffe.Net("net.prototxt", caffe.TEST)
    net.save("w.caffemodel")
    weights, bias = (blob.data for blob in net.params["ip"])
    scores = np.einsum("ncij,kc->nijk", x, weights.reshape(3, 2)).reshape(-1, 3) + bias
    counted = y.ravel() != 1
    out = minicaffe(*TEST, "--per-class", "--json=o.json")
    found = json.loads((tmp_path / "o.json").read_text())["evaluation"]
    assert found["confusion"] == matrix(y.ravel()[counted], scores[counted]).tolist() and found["ignored"] == (~counted).sum()
    assert found["recall"][1] is None and f"{(~counted).sum()} labels 1 are ignored" in out and "labels right" in out
    assert re.search(r"^1 +\S+ +- +0$", out, re.M)
    assert "--wrong needs one label for each picture, and a picture has 4" in minicaffe(*TEST, "--wrong=d", status=2)


@pytest.mark.parametrize("kind, place, field", [("SoftmaxWithLoss", "loss", "loss_param"), ("Accuracy", "right", "accuracy_param")])
def test_ignored_labels(minicaffe, data, tmp_path, kind, place, field):
    _, labels, scores = data
    write(tmp_path, 8, before=f'type: "{kind}"', after=f'type: "{kind}" {field} {{ ignore_label: 1 }}')
    counted, answers = labels != 1, scores.argmax(axis=1)
    command = *TEST, "--per-class", "--json=o.json", "--force", f"--prediction={place}"
    assert "ties" not in minicaffe(*command, "--wrong=bad")
    assert sorted(int(row["number"]) for row in rows_of("bad")) == np.flatnonzero(counted & (answers != labels)).tolist()
    net = caffe.Net("net.prototxt", caffe.TEST, weights="w.caffemodel")
    net.params["ip"][0].data[...] = 0
    net.params["ip"][1].data[...] = [7, 7, 5]   # the best two of three classes tie
    net.save("w.caffemodel")
    ties = (labels == 0).sum()
    out, found = minicaffe(*command), json.loads((tmp_path / "o.json").read_text())["evaluation"]
    assert f"{ties} ties count as wrong; {(~counted).sum()} labels 1 are ignored" in out
    assert (found["ties"], found["ignored"], found["counted"]) == (ties, (~counted).sum(), counted.sum())


def test_a_matrix_that_does_not_fit(minicaffe, data, tmp_path):
    write(tmp_path, COUNT, before="num_output: 3", after="num_output: 40")
    caffe.Net("net.prototxt", caffe.TEST).save("w.caffemodel")
    out = minicaffe(*TEST, "--confusion")
    assert "the matrix of 40 x 40 classes does not fit 80 columns; --json FILE writes it" in out and "a row for each true class" not in out
    assert len(re.findall(r"^ +\d+  class \d+ taken for class \d+ ", out, re.M)) == 10 and re.search(r"most confused pairs, \d+ more are left out:", out)


def test_names_and_outputs(minicaffe, data, tmp_path):
    (tmp_path / "labels.txt").write_text("a species of bird with a long name\nanother species, with a longer name\ncat\n")
    out = minicaffe(*TEST, "--confusion", "--per-class")
    assert re.search(r"^0 a species of bi\.\.\. ", out, re.M) and max(map(len, out.splitlines())) <= 80
    out = minicaffe(*TEST, "--json=o.json")
    result = json.loads((tmp_path / "o.json").read_text())
    assert "evaluation" not in result and {o["name"]: o["value"] for o in result["outputs"]}["right"] == pytest.approx(matrix(*data[1:]).trace() / COUNT)
    assert f"Loss: {result['loss']:g}" in out


def test_folder_made_during_the_test(tmp_path):
    kept, folder = object.__new__(test_options.WrongPictures), tmp_path / "wrong"
    kept.confusion, kept.found, kept.kept = SimpleNamespace(name=str), 0, []
    folder.mkdir()
    (folder / "notes").write_text("mine")
    for force in False, True:
        with pytest.raises(FileError):
            kept.write(folder, force)
    assert files(folder) == ["notes"] and kept.line("d") == "wrote d: 0 wrong pictures and wrong.csv, the highest scores first"
    (folder / "notes").unlink()
    kept.write(folder, True)
    kept.found, kept.kept = 1, [None]
    assert files(folder) == ["wrong.csv"] and kept.line("d") == "wrote d: 1 wrong picture and wrong.csv, the highest scores first"


def prediction(dice, axis_of_loss=1):
    """A made-up Prediction, and the shape of its scores."""
    kind = dice.choice(["SoftmaxWithLoss", "Accuracy", "HingeLoss", "InfogainLoss"])
    classes, batch = dice.randint(2, 14), dice.randint(1, 9)
    places = [] if kind == "HingeLoss" else [dice.randint(1, 3) for _ in range(dice.choice([0, 0, 1, 2]))]
    shape = [batch, *places]
    axis = dice.randint(1, len(shape)) if kind != "HingeLoss" else 1
    shape.insert(axis, classes)
    labels = SimpleNamespace(count=batch * math.prod(places), shape=(batch, *places))
    ignored = dice.choice([None, None, 0, 255])
    return Prediction(SimpleNamespace(type=kind, name="judge"), SimpleNamespace(shape=tuple(shape)), labels, axis,
                      kind in ("SoftmaxWithLoss", "InfogainLoss"), ignored), classes


def answer_of(scores, truth):
    """The answer for a list of scores: the class that scores highest; the true one only if it scores more than each other."""
    best = None
    for i, score in enumerate(scores):
        if i != truth and not math.isnan(score) and (best is None or score > scores[best]):
            best = i
    if best is None:        # no other class has a score
        return (truth if scores[truth] == scores[truth] else int(not truth)), False
    return (truth, False) if scores[truth] > scores[best] else (best, scores[truth] == scores[best])


@pytest.mark.parametrize("seed", range(40))
def test_answers_of_a_classifier(seed, monkeypatch):
    dice = random.Random(seed)
    monkeypatch.setenv("COLUMNS", "80")
    random_numbers = np.random.default_rng(seed)
    judge, classes = prediction(dice)
    names = [f"class of {'long ' * (i % 3)}name {i}" for i in range(classes)] if dice.random() < 0.5 else None
    found = Confusion(judge, names)
    counts, ties, ignored = [[0] * classes for _ in range(classes)], 0, 0
    for _ in range(dice.randint(1, 3)):
        scores = random_numbers.integers(-2, 3, judge.scores.shape).astype(np.float32)
        scores[random_numbers.random(scores.shape) < dice.choice([0.05, 0.7])] = np.nan
        labels = random_numbers.integers(0, classes, judge.labels.shape).astype(np.float32)
        if judge.ignored is not None:
            labels[random_numbers.random(labels.shape) < 0.3] = judge.ignored
        truths, answers, given, counted = found.add(scores, labels)
        rows = np.moveaxis(scores, judge.axis, -1).reshape(-1, classes).tolist()
        for i, (row, truth) in enumerate(zip(rows, labels.ravel().tolist(), strict=True)):
            assert counted[i] == (truth != judge.ignored)
            if not counted[i]:
                ignored += 1
                continue
            answer, tie = answer_of(row, int(truth))
            ties += tie
            counts[int(truth)][answer] += 1
            share = math.exp(row[answer]) / sum(map(math.exp, row)) if judge.softmax else row[answer]
            assert (truths[i], answers[i]) == (truth, answer) and given[i] == pytest.approx(share, nan_ok=True)
    assert found.counts.tolist() == counts and (found.ties, found.ignored) == (ties, ignored)
    total, right = sum(map(sum, counts)), sum(counts[i][i] for i in range(classes))
    recall = [row[i] / sum(row) if sum(row) else None for i, row in enumerate(counts)]
    columns = [sum(row[i] for row in counts) for i in range(classes)]
    precision = [counts[i][i] / columns[i] if columns[i] else None for i in range(classes)]
    known = [one for one in recall if one is not None]
    text = f"{right} of {total} {'records' if math.prod(judge.labels.shape[1:]) == 1 else 'labels'} right: accuracy {right / total if total else math.nan:.4f}"
    text += f"; mean recall of {len(known)} classes {sum(known) / len(known):.4f}" if known else ""
    assert found.summary() == text + f"; {ties} ties count as wrong" * bool(ties) + f"; {ignored} labels {judge.ignored} are ignored" * bool(ignored)
    lines = list(found.class_lines())
    for line, *figures, row in zip(lines[1:], precision, recall, counts, strict=True):
        assert line.split()[-3:] == [*("-" if one is None else f"{one:.4f}" for one in figures), str(sum(row))]
    pairs = sorted([(-counts[i][j], i, j) for i in range(classes) for j in range(classes) if i != j and counts[i][j]])
    assert found.pairs() == [(i, j, -count) for count, i, j in pairs]
    lines = list(found.pair_lines())
    assert lines[0] == (f"most confused pairs{f', {len(pairs) - 10} more are left out' if len(pairs) > 10 else ''}:" if pairs else "no classes were confused")
    for line, (count, i, j) in zip(lines[1:], pairs[:10], strict=True):
        shorts = [name if len(name) <= 18 else name[:15] + "..." for name in (found.name(i), found.name(j))]
        assert line == f"{-count:>7}  {shorts[0]} taken for {shorts[1]} ({-count / sum(counts[i]):.1%} of the class)"
    lines = list(found.matrix_lines())
    if len(lines) == 1:
        assert f"{classes} x {classes} classes does not fit 80 columns" in lines[0]
    else:
        assert [line.split()[-classes:] for line in lines[1:]] == [list(map(str, range(classes))), *([str(n or ".") for n in row] for row in counts)]
        assert len({len(line) for line in lines[1:]}) == 1 and len(lines[1]) <= 80
    assert found.json() | {"accuracy": 0} == {
        "layer": "judge", "counted": total, "ignored": ignored, "ties": ties, "accuracy": 0, "names": names or [f"class {i}" for i in range(classes)],
        "precision": [pytest.approx(math.nan if one is None else one, nan_ok=True) for one in precision],
        "recall": [pytest.approx(math.nan if one is None else one, nan_ok=True) for one in recall], "count": [sum(row) for row in counts],
        "confusion": counts, "pairs": [{"truth": i, "answer": j, "count": -count} for count, i, j in pairs]}


def test_no_classes_were_confused():
    made = Confusion(SimpleNamespace(classes=2, node=SimpleNamespace(type="Accuracy")))
    made.counts[...] = [[3, 0], [0, 4]]
    assert list(made.pair_lines()) == ["no classes were confused"]


def test_class_names_in_file_names():
    for name, wanted in (
            ("cat", "cat"), ("great auk", "great-auk"), ("a_b", "a-b"), ("a/b\\c:d", "a-b-c-d"), ("../up", "-up"), (".hidden.", "hidden"), ("...", "-"), ("", "-"),
            ("/", "-"), ("a  ,;  b", "a-b"), ("é_9.5", "é-9.5"), ("x" * 50, "x" * 40), ("x" * 39 + ".y", "x" * 39)):
        assert _safe(name) == wanted
