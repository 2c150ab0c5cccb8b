"""``minicaffe convert_annoset``: pictures with boxes to a database of AnnotatedDatum (SSD's convert_annoset.cpp).

Different from Caffe: an annotation that cannot be read, a box turned inside out and a name that the label map lacks are errors
that name the file. Suspicious annotations that are stored as in Caffe, such as boxes outside of their picture, are counted;
warnings at the end report their number and the first of each kind.
"""

import json
import logging
import math
import random
from xml.etree import ElementTree

import click

from minicaffe.addons.ssd.label_map import read_label_map
from minicaffe.cli import bars, options
from minicaffe.cli.data import from_list
from minicaffe.data.convert import check_picture, picture_datum, resize_size, write_records
from minicaffe.data.datum import opencv
from minicaffe.data.numbers import integer
from minicaffe.errors import ConfigError, DataError, located, shown
from minicaffe.proto import caffe_pb2, kinds
from minicaffe.proto.files import parse_lines, read_bytes, read_lines

log = logging.getLogger(__name__)


def convert_annotated(root, list_file, path, *, label_map=None, label_type="xml", backend="lmdb", gray=False, shuffle=False,
                      min_dim=0, max_dim=0, resize_width=0, resize_height=0, encoded=False, encode_type="", force=False,
                      progress=None):
    """Make a database from a list of pictures and their annotations.

    Parameters
    ----------
    root : str
        Put before each path of the list unchanged.
    list_file, path : str or Path
        Lines of the list are the path of a picture, a space and that of its annotation.
    label_map : str or Path, optional
        A LabelMap in text format: the numbers of the names in xml and json files.
    label_type : {"xml", "json", "txt"}
        VOC's files; objects as COCO has them (``{"image": {...}, "annotation": [{"category_id", "bbox", "iscrowd"}]}``); or
        lines of a label's number and four corners in pixels.
    min_dim, max_dim : int
        If above 0: scale the picture, keeping its ratio, so that its shorter side is `min_dim`, its longer one at most `max_dim`.
    resize_width, resize_height : int
        Resize to this; give both or neither (0).
    backend, gray, shuffle, encoded, encode_type, force, progress
        As for `convert_images`.

    Returns
    -------
    (int, int)
        Records written, pictures that could not be read.

    Raises
    ------
    DataError, FileError, ConfigError
        A list, label map or annotation is wrong; names the file.
    """
    cv2 = opencv()
    if label_type not in READERS:
        raise ConfigError(f"must be one of {', '.join(READERS)}, got '{label_type}'", field="label_type")
    if label_map is None and label_type != "txt":
        raise ConfigError(f"annotations in {label_type} name their labels; give a label map", field="label_map_file")
    labels = None if label_map is None else {name: number for number, (name, _) in read_label_map(label_map).items()}
    size = resize_size(resize_width, resize_height)
    for name, length in (("min_dim", min_dim), ("max_dim", max_dim)):
        if length < 0:
            raise ConfigError(f"must be at least 1, or 0 for none, got {length}", field=name)
    wanted = "a list of pictures and annotations"
    entries = parse_lines(list_file, read_lines(list_file, wanted), _pair, wanted)
    if not entries:
        raise DataError("the list is empty", file=str(list_file))
    if shuffle:
        random.shuffle(entries)
    oddities = {}

    def record_of(entry, file, image):
        annotation = root + entry[1]
        with located(file=annotation):
            objects, *size_given = READERS[label_type](annotation, labels)
            height, width = (integer(str(given or 0).strip(), "the picture's size", least=0) or side     # 0 counts as not given
                             for given, side in zip(size_given, image.shape))
        _count_oddities(oddities, annotation, objects, (width, height), image.shape[1::-1])
        resized = _resize(cv2, image, min_dim, max_dim, size)
        datum = picture_datum(resized, 0, file, encoded, encode_type, keep=resized is image and not gray)
        return _record(datum, objects, height, width)

    counts = write_records(root, entries, path, str(list_file), record_of, backend, gray, force, progress)
    for what, (count, first) in oddities.items():
        log.warning("%s: %d %s; the first: %s", path, count, what, first)
    return counts


@click.command(cls=options.CaffeCommand)
@click.argument("root")
@click.argument("list_file", metavar="LIST")
@click.argument("db")
@click.option("--label-map-file", "label_map", metavar="FILE", help="A LabelMap: numbers of the names.")
@click.option("--label-type", type=click.Choice(["xml", "json", "txt"]), default="xml", show_default=True)
@from_list
@click.option("--min-dim", type=click.IntRange(0, options.INT_MAX), default=0, help="Scale the shorter side to this; 0: do not.")
@click.option("--max-dim", type=click.IntRange(0, options.INT_MAX), default=0,
              help="The longer side gets no longer than this; 0: any length.")
@options.messages
def convert_annoset(root, list_file, db, **more):
    """Make DB of pictures and the boxes on them, for AnnotatedData.

    Each line of LIST is the path of a picture, a space and that of its annotation: VOC's xml, COCO's json, or lines of a label's
    number and four corners in pixels. ROOT is put before both unchanged.
    """
    with bars.progress() as progress:
        written, skipped = convert_annotated(root, list_file, db, progress=progress, **more)
    click.echo(f"{db}: {written} records" + (f", {skipped} pictures could not be read" if skipped else ""))


def _count_oddities(oddities, file, objects, size, picture):
    """Count suspicious parts of an annotation of the size (width, height) in `oddities`, by kind, with the first of each."""
    def count_oddity(what, where):
        count, first = oddities.get(what, (0, f"{file}: {where}"))
        oddities[what] = count + 1, first

    if tuple(size) != tuple(picture):
        count_oddity("annotations give another size than their picture has; boxes are divided by that size, as in Caffe",
            "{}x{} of a picture of {}x{}".format(*size, *picture))
    for label, box, _ in objects:
        where = f"{[round(edge, 2) for edge in box]} of label {label}"
        if min(box) < 0 or box[2] > size[0] or box[3] > size[1]:
            count_oddity("boxes reach beyond their picture and are stored so", f"{where}, in {size[0]}x{size[1]}")
        if box[2] == box[0] or box[3] == box[1]:
            count_oddity("boxes are empty and are stored so", where)
        if label == 0:
            count_oddity("objects have label 0, which SSD's layers use for background (background_label_id)", where)


def _pair(line):
    picture, _, annotation = line.strip().rpartition(" ")
    if not picture:
        raise DataError("a line must be the path of a picture, a space and that of its annotation")
    return picture, annotation


def _resize(cv2, image, min_dim, max_dim, size):
    """Return the resized picture, or `image` itself if no size is given. Raises ShapeError for too large a size."""
    rows, columns = image.shape[:2]
    if size:
        return cv2.resize(image, size)
    if min_dim <= 0 and max_dim <= 0:
        return image
    scale = min_dim / min(rows, columns) if min_dim > 0 else 1.0
    if max_dim > 0:
        scale = min(scale, max_dim / max(rows, columns))
    size = max(1, round(columns * scale)), max(1, round(rows * scale))
    check_picture(size, f"min_dim {min_dim}")
    return image if size == (columns, rows) else cv2.resize(image, size)


def _record(datum, objects, height, width):
    """Return the serialized AnnotatedDatum: boxes in units of the picture, instances counted for each label."""
    record = caffe_pb2.AnnotatedDatum(type=caffe_pb2.AnnotatedDatum.BBOX)
    record.datum.ParseFromString(datum)
    groups = {}
    for label, (xmin, ymin, xmax, ymax), difficult in objects:
        if label not in groups:
            groups[label] = record.annotation_group.add(group_label=label)
        one = groups[label].annotation.add(instance_id=len(groups[label].annotation))
        one.bbox.xmin, one.bbox.ymin, one.bbox.xmax, one.bbox.ymax = xmin / width, ymin / height, xmax / width, ymax / height
        one.bbox.difficult = difficult
    return record.SerializeToString()


# ---- the three forms of annotations: each reader returns the objects, and the height and width, if given, that their boxes refer
# to. An object is a label, the corners (xmin, ymin, xmax, ymax) in pixels, and whether it is marked difficult.

def _object(labels, name, corners, difficult=False):
    """Check an object; `name` is looked up, or the number itself without `labels`."""
    try:
        box = tuple(float(corner) for corner in corners)
        if not all(map(math.isfinite, box)):
            raise ValueError
    except (TypeError, ValueError):
        raise DataError(f"the box of {shown(str(name))} must be four numbers, got {shown(list(corners))}") from None
    if box[2] < box[0] or box[3] < box[1]:
        raise DataError(f"the box of {shown(str(name))} is turned inside out: {list(box)}")
    if labels is not None and name not in labels:
        raise DataError(f"names {shown(name)}, which the label map lacks")
    return labels[name] if labels is not None else name, box, difficult


def _read_xml(file, labels):
    content = read_bytes(file)
    try:
        tree = ElementTree.fromstring(content)
    except ElementTree.ParseError as error:
        raise kinds.with_kind(DataError(f"is not XML: {error}"), content, "an annotation in XML", ("xml", "text")) from None
    objects = []
    for item in tree.iter("object"):
        corners = [item.findtext(f"bndbox/{edge}") for edge in ("xmin", "ymin", "xmax", "ymax")]
        difficult = (item.findtext("difficult") or "0").strip() not in ("0", "")
        objects.append(_object(labels, (item.findtext("name") or "").strip(), corners, difficult))
    return objects, tree.findtext("size/height"), tree.findtext("size/width")


def _read_json(file, labels):
    given = read_bytes(file)
    try:
        content = json.loads(given)
        image = content.get("image", {})
        objects = []
        for item in content["annotation"]:
            x, y, w, h = map(float, item["bbox"])
            objects.append(_object(labels, str(item["category_id"]), (x, y, x + w, y + h), bool(item.get("iscrowd"))))
        return objects, image.get("height"), image.get("width")
    except DataError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        error = DataError(f"is not an annotation in JSON: {type(error).__name__}: {error}")
        raise kinds.with_kind(error, given, "an annotation in JSON", ("json", "text")) from None


def _read_txt(file, labels):
    def read(line):
        words = line.split()
        if len(words) != 5:
            raise DataError(f"a line must be a label's number and four corners, got {shown(line)}")
        label = integer(words[0], "label")
        if labels is not None and label not in labels.values():
            raise DataError(f"has label {label}, which the label map lacks")
        return _object(None, label, words[1:])

    wanted = "an annotation of lines"
    return parse_lines(file, read_lines(file, wanted), read, wanted), None, None


READERS = {"xml": _read_xml, "json": _read_json, "txt": _read_txt}
