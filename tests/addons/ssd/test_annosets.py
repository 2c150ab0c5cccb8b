"""Pictures with boxes to a database: the three forms of annotations, and what is wrong with them."""

import json

import cv2
import numpy as np
import pytest

from minicaffe import cli
from minicaffe.addons.ssd.annosets import _count_oddities, _resize, convert_annotated
from minicaffe.addons.ssd.label_map import read_label_map
from minicaffe.data.datum import picture_of, read_datum
from minicaffe.data.db import open_db
from minicaffe.errors import ConfigError, DataError, Error, FileError, ShapeError
from minicaffe.proto import caffe_pb2

XML = """<annotation><size><width>{width}</width><height>{height}</height><depth>3</depth></size>
<object><name>cat</name><difficult>1</difficult><bndbox><xmin>4</xmin><ymin>2</ymin><xmax>20</xmax><ymax>10</ymax></bndbox></object>
<object><name>dog</name><bndbox><xmax>40</xmax><ymin>0.5</ymin><xmin>0</xmin><ymax>20</ymax></bndbox></object>
<object><name>cat</name><difficult>0</difficult><bndbox><xmin>0</xmin><ymin>0</ymin><xmax>4</xmax><ymax>4</ymax></bndbox></object>
</annotation>"""
JSON = {"image": {"height": 20, "width": 40}, "annotation": [
    {"category_id": "cat", "bbox": [4, 2, 16, 8], "iscrowd": 1}, {"category_id": "dog", "bbox": [0, 0.5, 40, 19.5]},
    {"category_id": "cat", "bbox": [0, 0, 4, 4], "iscrowd": 0}]}
TXT = "1 4 2 20 10\n\n2 0 0.5 40 20\n1 0 0 4 4\n"
# (label, instance, box, difficult), by groups
WANTED = [(1, 0, (0.1, 0.1, 0.5, 0.5), True), (1, 1, (0, 0, 0.1, 0.2), False), (2, 0, (0, 0.025, 1, 1), False)]


@pytest.fixture
def folder(tmp_path):
    """Two pictures of 20 x 40 and one that is none, their annotations in three forms, and a label map."""
    random = np.random.default_rng(3)
    for name in ("a b.png", "c.jpg"):
        cv2.imwrite(str(tmp_path / name), random.integers(0, 256, (20, 40, 3), np.uint8))
    (tmp_path / "none.png").write_bytes(b"nothing")
    (tmp_path / "one.xml").write_text(XML.format(width=40, height=20))
    (tmp_path / "one.json").write_text(json.dumps(JSON))
    (tmp_path / "one.txt").write_text(TXT)
    (tmp_path / "labels").write_text('item { name: "none" label: 0 } item { name: "cat" label: 1 } item { name: "dog" label: 2 }')
    for end in ("xml", "json", "txt"):
        (tmp_path / f"list_{end}").write_text(f"a b.png one.{end}\nnone.png one.{end}\n\nc.jpg one.{end}\n")
    return tmp_path


def convert(folder, kind="xml", **options):
    counts = convert_annotated(f"{folder}/", folder / f"list_{kind}", folder / "db", label_type=kind, force=True,
                               **{"label_map": folder / "labels", **options})
    with open_db(folder / "db", "lmdb") as db:
        return counts, {bytes(k).decode(): caffe_pb2.AnnotatedDatum.FromString(bytes(v)) for k, v in list(db.records())}


def objects(record):
    return [(group.group_label, one.instance_id, tuple(round(edge, 6) for edge in (one.bbox.xmin, one.bbox.ymin, one.bbox.xmax, one.bbox.ymax)),
             one.bbox.difficult) for group in record.annotation_group for one in group.annotation]


@pytest.mark.parametrize("kind", ["xml", "json", "txt"])
def test_three_forms(folder, kind, caplog):
    counts, records = convert(folder, kind)
    assert counts == (2, 1) and list(records) == ["00000000_a b.png", "00000002_c.jpg"]
    assert "none.png' is text, where a picture is expected; name another file; skipped" in caplog.text
    wanted = WANTED if kind != "txt" else [(*row[:3], False) for row in WANTED]
    for record in records.values():
        assert record.type == caffe_pb2.AnnotatedDatum.BBOX and record.HasField("type") and objects(record) == wanted
    pixels = picture_of(read_datum(records["00000000_a b.png"].datum.SerializeToString()))
    np.testing.assert_array_equal(pixels, cv2.imread(str(folder / "a b.png")).transpose(2, 0, 1))


def test_sizes_and_xml(folder):
    for options, shape in (({"min_dim": 10}, (10, 20)), ({"min_dim": 40, "max_dim": 60}, (30, 60)), ({"max_dim": 20}, (10, 20)),
                           ({"max_dim": 99}, (20, 40)), ({"resize_width": 7, "resize_height": 9, "min_dim": 3}, (9, 7))):
        _, records = convert(folder, **options)
        for record in records.values():
            assert (record.datum.height, record.datum.width) == shape and objects(record) == WANTED
    _, records = convert(folder, encode_type="png", gray=True)
    gray = cv2.imdecode(np.frombuffer(records["00000000_a b.png"].datum.data, np.uint8), cv2.IMREAD_UNCHANGED)
    np.testing.assert_array_equal(gray, cv2.imread(str(folder / "a b.png"), cv2.IMREAD_GRAYSCALE))
    for content, wanted in ((XML.format(width=80, height=20), [(*row[:2], (row[2][0] / 2, row[2][1], row[2][2] / 2, row[2][3]), row[3]) for row in WANTED]),
                            (XML.format(width=0, height=0), WANTED),    # as some files have it: that of the picture
                            ("<annotation/>", [])):
        (folder / "one.xml").write_text(content)
        assert objects(convert(folder)[1]["00000002_c.jpg"]) == wanted
    for box in (4, 2, 4, 10), (4, 10, 20, 10):      # without a side
        (folder / "one.txt").write_text(f"1 {' '.join(map(str, box))}\n")
        wanted = tuple(edge / side for edge, side in zip(box, (40, 20, 40, 20)))
        assert objects(convert(folder, "txt")[1]["00000002_c.jpg"]) == [(1, 0, wanted, False)]
    text = XML.format(width=40, height=20).replace("<name>dog</name>", "<name>\n dog </name><difficult> 0\n</difficult>")
    (folder / "one.xml").write_text(text.replace("<difficult>1</difficult>", "<difficult> 1 </difficult>"))
    assert objects(convert(folder)[1]["00000000_a b.png"]) == WANTED
    (folder / "one.xml").write_text(text.replace("<name>\n dog </name>", ""))
    with pytest.raises(DataError, match="one.xml: names '', which the label map lacks"):
        convert(folder)


def test_command_order_and_progress(folder, capsys, monkeypatch):
    arguments = [f"{folder}/", str(folder / "list_xml"), str(folder / "out"), "--label_map_file", str(folder / "labels"), "--encoded"]
    assert cli.main(["convert_annoset", *arguments]) == 0
    assert capsys.readouterr().out == f"{folder}/out: 2 records, 1 pictures could not be read\n"
    assert cli.main(["convert_annoset", *arguments]) == 1 and "exists already" in capsys.readouterr().err
    assert cli.main(["convert_annoset", *arguments, "--force", "--label-type", "yaml"]) == 2
    seen = []
    assert list(convert(folder, progress=lambda *report: seen.append(report))[1]) == ["00000000_a b.png", "00000002_c.jpg"]
    assert seen == [("pictures", 1, 3), ("pictures", 3, 3)]
    monkeypatch.setattr("random.shuffle", lambda entries: entries.reverse())
    assert list(convert(folder, shuffle=True)[1]) == ["00000000_c.jpg", "00000002_a b.png"]


def xml(old="", new="", width=40):
    return XML.format(width=width, height=20).replace(old, new)


@pytest.mark.parametrize("name, content, message", [
    ("one.xml", "<annotation", "one.xml: is not XML"), ("one.xml", xml(width=-3), "one.xml: the picture's size must be at least 0, got -3"),
    ("one.xml", xml(width=3.5), "one.xml: the picture's size '3.5' is not an integer"),
    ("one.xml", xml(">dog<", ">cow<"), "names 'cow', which the label map lacks"),
    ("one.xml", xml("<xmax>20", "<xmax>2"), r"the box of 'cat' is turned inside out: \[4.0, 2.0, 2.0"),
    ("one.xml", xml("<xmax>20</xmax>"), "the box of 'cat' must be four numbers"),
    ("one.xml", xml("<xmax>20<", "<xmax>inf<"), "one.xml: the box of 'cat' must be four numbers, got"),
    ("one.json", '{"annotation": [{"category_id": "cat", "bbox": [1, 2, NaN, 3]}]}', "one.json: the box of 'cat' must be four numbers, got"),
    ("one.json", "{}", "is not an annotation in JSON: KeyError: 'annotation'"),
    *(("one.json", text, "/one.json: is not an annotation in JSON: ") for text in (
        '{"annotation": [{"category_id": "cat", "bbox": null}]}', '{"annotation": 5}', "5", "[]", "{", '{"image": 5, "annotation": []}',
        '{"annotation": [{"category_id": "cat", "bbox": [1, 2, 3]}]}', '{"annotation": [{"bbox": [1, 2, 3, 4]}]}', '{"annotation": [5]}')),
    *(("one.txt", text, f"one.txt:1: {message}") for text, message in (
        ("1 5 1 4 9", r"the box of '1' is turned inside out: \["), ("1 1 9 5 8", r"the box of '1' is turned inside out: \["),
        ("2.5 1 2 3 4", "label '2.5' is not an integer"), ("--2 1 2 3 4", "label '--2' is not"), ("cat 1 2 3 4", "label 'cat' is not an integer"),
        ("1 2 3 4", "a line must be a label's number and four corners"), ("1 1 2 3 x", "the box of '1' must be four numbers"),
        ("1 1 2 nan 4", "the box of '1' must be four numbers, got"))), ("one.txt", "7 1 2 3 4", "has label 7, which the label map lacks")])
def test_wrong_annotations(folder, name, content, message):
    (folder / name).write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        convert(folder, name[4:])
    assert str(folder / name) in str(caught.value) and not (folder / "db").exists()


def test_wrong_arguments(folder):
    with pytest.raises(ConfigError, match="label_map_file: annotations in xml name their labels; give a label map"):
        convert(folder, label_map=None)
    assert convert(folder, "txt", label_map=None)[0] == (2, 1)
    with pytest.raises(ConfigError, match="label_type: must be one of xml, json, txt, got 'yaml'"):
        convert_annotated("", folder / "list_xml", folder / "db2", label_type="yaml")
    for content, error, message in (("alone\n", DataError, "list_xml:1: a line must be the path of a picture"),
                                    ("none.png one.xml\n", Error, "none of its 1 pictures can be read"),
                                    ("\n\n", DataError, f"^{folder}/list_xml: the list is empty$"), ("c.jpg two.xml\n", FileError, "two.xml.*no such file")):
        (folder / "list_xml").write_text(content)
        with pytest.raises(error, match=message):
            convert(folder)


def test_counts_of_odd_annotations(folder, caplog):
    (folder / "list_xml").write_text("a b.png one.xml\n")
    convert(folder)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    (folder / "one.xml").write_text(XML.format(width=80, height=20))
    wide = XML.format(width=40, height=20).replace("<xmax>40", "<xmax>41").replace("<xmin>4</xmin>", "<xmin>-1</xmin>")
    (folder / "two.xml").write_text(wide.replace("<xmin>0</xmin><ymin>0</ymin><xmax>4</xmax>", "<xmin>4</xmin><ymin>0</ymin><xmax>4</xmax>"))
    (folder / "list_xml").write_text("a b.png one.xml\nc.jpg two.xml\n")
    (folder / "labels").write_text('item { name: "cat" label: 2 } item { name: "dog" label: 0 }')
    _, records = convert(folder)
    assert [label for label, _, _, _ in objects(records["00000001_c.jpg"])] == [2, 2, 0]
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said == [
        f"{folder}/db: 1 annotations give another size than their picture has; boxes are divided by that size, as in Caffe; the first: "
        f"{folder}/one.xml: 80x20 of a picture of 40x20",
        f"{folder}/db: 2 objects have label 0, which SSD's layers use for background (background_label_id); the first: {folder}/one.xml: "
        "[0.0, 0.5, 40.0, 20.0] of label 0",
        f"{folder}/db: 2 boxes reach beyond their picture and are stored so; the first: {folder}/two.xml: [-1.0, 2.0, 20.0, 10.0] of label 2, "
        "in 40x20",
        f"{folder}/db: 1 boxes are empty and are stored so; the first: {folder}/two.xml: [4.0, 0.0, 4.0, 4.0] of label 2"]


def test_each_oddity_is_counted():
    random, counted, wanted = np.random.default_rng(0), {}, dict.fromkeys(("beyond", "empty", "background"), 0)
    for i in range(180):
        width, height = (int(side) for side in random.integers(5, 20, 2))
        box = [float(random.choice([-1, 0, 2, end, end + 1])) for end in (width, height, width, height)]
        label = int(random.integers(0, 3))
        _count_oddities(counted, f"file{i}", [(label, box, False)], (width, height), (width, height))
        wanted["beyond"] += min(box) < 0 or box[2] > width or box[3] > height
        wanted["empty"] += box[0] == box[2] or box[1] == box[3]
        wanted["background"] += label == 0
    counts = {what: count for what, (count, _) in counted.items()}
    assert {word: sum(count for what, count in counts.items() if word in what) for word in wanted} == wanted


@pytest.mark.parametrize(("text", "message"), [
    ('item { name: "a" label: 1 } item { name: "b" }', r"item\[1\]: 'b' has no label; add one .0 is the background."),
    ('item { name: "a" label: 1 } item { name: "b" label: 2 } item { name: "c" label: 1 }',
     r"item\[2\]: label 1 was named 'a' before; each label needs one item"),
    ('item { name: "a" label: 1 } item { name: "b" label: 2 } item { name: "b" label: 3 }',
     r"item\[2\]: label 3 has the name 'b', as label 2 has; each needs its own")])
def test_wrong_label_maps(tmp_path, text, message):
    (tmp_path / "map").write_text(text)
    with pytest.raises(DataError, match=f"^{tmp_path}/map: {message}"):
        read_label_map(tmp_path / "map")
    (tmp_path / "map").write_text('item { name: "a" label: 1 display_name: "A" } item { name: "b" label: 0 }')
    assert read_label_map(tmp_path / "map") == {1: ("a", "A"), 0: ("b", "b")}


def test_sizes_with_limits():
    """The shorter side becomes min_dim, unless the longer one would exceed max_dim; neither of them: the picture itself."""
    for rows, columns in ((20, 40), (40, 20), (7, 7), (1, 30)):
        image = np.zeros((rows, columns, 3), np.uint8)
        for least, most in ((0, 0), (10, 0), (0, 10), (60, 0), (0, 60), (10, 15), (60, 100), (60, 1000), (1, 1)):
            made = _resize(cv2, image, least, most, None)
            scale = least / min(rows, columns) if least else 1
            if most:
                scale = min(scale, most / max(rows, columns))
            assert made.shape[:2] == (max(1, round(rows * scale)), max(1, round(columns * scale)))
            assert (made is image) == (made.shape == image.shape)
        assert _resize(cv2, image, 10, 15, (3, 5)).shape == (5, 3, 3)
    for least, size in ((1 << 31, "4294967296 x 2147483648"), (1 << 30, "2147483648 x 1073741824"), (1 << 20, "2097152 x 1048576")):
        with pytest.raises(ShapeError, match=f"^min_dim {least}: a (picture of|side must be below 2.31, got) {size}"):
            _resize(cv2, np.zeros((20, 40, 3), np.uint8), least, 0, None)


@pytest.mark.parametrize("options, kept", [({}, True), ({"resize_width": 9, "resize_height": 7}, False), ({"gray": True}, False),
                                           ({"max_dim": 10}, False), ({"max_dim": 400}, True)])
def test_bytes_of_encoded_pictures(folder, options, kept):
    for name, record in convert(folder, encoded=True, **options)[1].items():
        assert record.datum.encoded and (record.datum.data == (folder / name.split("_", 1)[1]).read_bytes()) == kept
        if "resize_width" in options:
            assert picture_of(read_datum(record.datum.SerializeToString())).shape == (3, 7, 9)
