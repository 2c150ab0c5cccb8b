"""``minicaffe detect``: boxes on pictures by a net of SSD, or scores of windows of pictures by a Detector (Caffe python/detect.py).

Different from Caffe: neither pandas nor PyTables is needed; an .h5 file holds plain arrays. The file of results is named by --out
alone. Nets that end in DetectionOutput find the windows themselves, so they take pictures.
"""

import csv
import os
import time

import click
import numpy as np

from minicaffe.cli import bars, options, ranks
from minicaffe.cli.classify import read_labels
from minicaffe.cli.inputs import SkippedInputs, check_ending, csv_bytes, ext_option, json_bytes, picture_paths, read_each
from minicaffe.cli.picture_nets import load_picture, open_net, picture_net_options, select_pretrained
from minicaffe.common import caffe
from minicaffe.data.datum import opencv
from minicaffe.addons.ssd.detection_files import PICTURES, draw_boxes
from minicaffe.data.image_list import decode_picture, read_content
from minicaffe.addons.ssd.label_map import read_label_map
from minicaffe.errors import ConfigError, DataError, FileError
from minicaffe.proto import caffe_pb2
from minicaffe.proto.atomic import hdf5_in_memory, replacing, write_bytes
from minicaffe.proto.files import read_lines
from minicaffe.pycaffe import Detector, io

COORDINATES = ("ymin", "xmin", "ymax", "xmax")
COLUMNS = ("filename", "label", "name", "score", "xmin", "ymin", "xmax", "ymax")    # of a table of boxes
WINDOW_LIST_ENDINGS = (".csv", ".txt")      # endings of lists of windows


@click.command(cls=options.CaffeCommand)
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@click.option("--out", metavar="FILE", help="Of windows, which need it: write scores, .csv or .h5. Of boxes: write a table, "
              f".csv or .json; draw them on the picture, {', '.join(PICTURES)}; or on each picture, in the folder FILE.")
@options.force
@picture_net_options
@click.option("--labels", metavar="FILE", help="Names of the classes: a label map (.prototxt), or a name a line from label 0 on; "
              "by default the label map that the net names.")
@click.option("--threshold", type=options.Real(0, 1), default=0.5, show_default=True, help="Of boxes: the lowest score shown.")
@ext_option("an INPUT that is a folder")
@click.option("--crop-mode", type=click.Choice(["list", "selective_search"]), default="selective_search",
              show_default=True, help="Windows of INPUT, or those that selective search proposes (needs MATLAB).")
@click.option("--context-pad", type=click.IntRange(min=0), default=16, show_default=True,
              help="Pixels of context around a window, in the net's input.")
@options.run_options
def detect(inputs, out, force, labels, threshold, ext, crop_mode, context_pad, **given):
    """Find objects on pictures with a net of SSD: print their boxes, and with --out write or draw them.

    Each INPUT is a picture, a folder of pictures or a pattern such as 'photos/*.jpg'.

    With any other net, score windows of pictures: INPUT is a .csv with the header filename,xmin,ymin,xmax,ymax (with --crop-mode
    list), or a .txt with a picture a line. Processes that mpiexec started divide the pictures, but not those of a .txt.
    """
    windows = None
    if any(path.lower().endswith(WINDOW_LIST_ENDINGS) for path in inputs):
        if len(inputs) > 1:
            raise click.UsageError(f"give one .csv or .txt of windows, and --out FILE for the scores; got {' '.join(inputs)}")
        if out is None:
            raise click.UsageError("give --out FILE, .csv or .h5, for the scores of the windows")
        check_ending(out, (".csv", ".h5"))
        if ranks.first():
            options.check_outputs(out, force=force)
        windows = read_windows(inputs[0], crop_mode)
    else:
        pictures = picture_paths(inputs, ext)
        targets = drawing_paths(pictures, out, force) if ranks.first() else {}
    packaged = select_pretrained(given)
    labels = labels or packaged and packaged.labels
    net, training = open_net(Detector, given, windows=True)
    detection_output = next((node for node in net.nodes if node.type == "DetectionOutput"), None)
    if windows is not None and detection_output is not None:
        raise ConfigError(f"finds boxes on whole pictures, and {inputs[0]} is a list of windows; give pictures: minicaffe detect "
                          "picture.jpg", file=net.file, layer=detection_output.name, layer_type=detection_output.type)
    if windows is None and detection_output is None:
        raise ConfigError(f"has no DetectionOutput layer, so it scores windows of pictures; {inputs[0]} must be a .csv of windows "
                          "or a .txt of pictures, or give the deploy net of an SSD", file=net.file)
    if detection_output is not None:
        names = label_names(labels, detection_output, training)
        mode = training.layer.transform_param.resize_param.resize_mode if training else caffe_pb2.ResizeParameter.WARP
        if mode != caffe_pb2.ResizeParameter.WARP:
            word = caffe_pb2.ResizeParameter.Resize_mode.Name(mode)
            options.notify(f"{training.file} resizes pictures by {word}; here they are resized to the input's height and "
                         "width, as by WARP")
        return find_boxes(net, pictures, names, threshold, out, targets)
    classes = read_labels(labels, None, None, int(np.prod(net.blobs[net.outputs[0]].shape[1:]))) if labels else None
    score_windows(net, windows, crop_mode, context_pad, out, classes)


def score_windows(net, windows, crop_mode, context_pad, out, classes):
    """Write the scores of windows, of `read_windows`, to the file `out`."""
    net.configure_crop(context_pad)
    begin, skipped = time.perf_counter(), SkippedInputs(len(sum(windows.values(), []) if crop_mode == "list" else windows))
    if crop_mode == "selective_search":
        found = []
        if ranks.first():
            numbers, _, errors = read_each(enumerate(windows), lambda path: io.load_image(path).size)
            skipped.report(errors)
            found = net.detect_selective_search([windows[i] for i in numbers])
    else:
        items, found = list(windows.items()), []

        def score(i):
            _, scored, errors = read_each([(i, [items[i]])], net.detect_windows)
            if errors:      # of the picture, or of some of its windows
                _, scored, errors = read_each(((i, [(items[i][0], [window])]) for window in items[i][1]), net.detect_windows)
            return sum(scored, []), errors

        with bars.progress() as report:
            for number, (scored, errors) in enumerate(ranks.map_over_ranks(len(items), score), 1):
                skipped.report(errors)
                found += scored
                report("pictures", number, len(windows))
    if not ranks.first():
        return
    click.echo(f"Processed {len(found)} windows in {time.perf_counter() - begin:.3f} s.")
    if out.lower().endswith(".csv"):
        write_csv(out, found, classes)
    else:
        with replacing(out) as file:
            write_hdf5(file, found)
    click.echo(f"Saved to {out}")


def drawing_paths(pictures, out, force):
    """Return a dict from pictures to the paths of their drawn copies, or {}. Checks that nothing is overwritten.

    Raises ConfigError or FileError.
    """
    end = os.path.splitext(out or "")[1].lower()
    targets = {}
    if out is not None and end in PICTURES:
        targets = {pictures[0]: out}
        if len(pictures) > 1:
            raise ConfigError(f"{out} holds one picture, and there are {len(pictures)}; name a folder, or a .csv or .json for a "
                              "table", field="--out")
    elif out is not None and not end:
        targets = {path: os.path.join(out, os.path.basename(path)) for path in dict.fromkeys(pictures)}
        if len(set(targets.values())) < len(targets):
            raise ConfigError(f"pictures of different folders have one name, so {out} cannot hold all; draw them apart",
                              field="--out")
        try:
            os.makedirs(out, exist_ok=True)
        except OSError as error:
            raise FileError(f"no folder can be made there: {error.strerror}", file=out) from None
    elif out is not None:
        check_ending(out, (".csv", ".json", *PICTURES))
    options.check_outputs(*(targets.values() if targets else [out]), force=force)
    return targets


def label_names(path, detection_output, training):
    """Return the names of labels, a dict, from the file `path` or the label map that the nets name; empty if there is none."""
    if path is not None:
        if path.lower().endswith((".prototxt", ".pbtxt")):
            return {label: names[1] for label, names in read_label_map(path).items()}
        count = detection_output.param.detection_output_param.num_classes
        return dict(enumerate(read_labels(path, None, None, count)))
    named = [detection_output.param.detection_output_param.save_output_param.label_map_file]
    named += [training.layer.annotated_data_param.label_map_file] if training else []
    for file in filter(None, named):
        with caffe.trusting(options.net_options()["trusted"]):
            caffe.check_path(file, "label_map_file")
        if os.path.exists(file):
            options.notify(f"names of the classes: {file}")
            return {label: names[1] for label, names in read_label_map(file).items()}
        options.notify(f"{file}, which the net names, is not there, so classes have numbers; --labels FILE names them")
    return {}


def find_boxes(net, pictures, names, threshold, out, targets):
    """Print the boxes on pictures, and write or draw them."""
    name = net.inputs[0]
    net.blobs[name].reshape(1, *net.blobs[name].shape[1:])
    net.reshape()

    def find(number):
        _, found, errors = read_each([(number, pictures[number])], lambda path: load_picture(path, net))
        if not found:
            return None, errors
        net.blobs[name].data[0] = net.transformer.preprocess(name, found[0])
        net.forward()
        return net.blobs[net.outputs[0]].data.reshape(-1, 7).copy(), errors

    table, left_out, skipped = [], 0, SkippedInputs(len(pictures))
    for path, (rows, errors) in zip(pictures, ranks.map_over_ranks(len(pictures), find)):   # ranks but the first get none
        skipped.report(errors)
        if rows is None:
            continue
        image = decode_picture(read_content(path), path, color=True)
        height, width = image.shape[:2]
        kept = rows[(rows[:, 1] >= 0) & (rows[:, 2] >= threshold)]
        kept = kept[np.argsort(-kept[:, 2], kind="stable")]
        left_out += int((rows[:, 1] >= 0).sum()) - len(kept)
        click.echo(f"{path}: {len(kept)} box{'es' * (len(kept) != 1)}")
        for _, label, score, *corners in kept.tolist():
            box = [round(edge, 1) for edge in np.clip(corners, 0, 1) * [width, height, width, height]]
            word = names.get(int(label), f"class {int(label)}")
            click.echo(f"{score:12.4f}  {word}  " + " ".join(f"{edge:g}" for edge in box))
            table.append(dict(zip(COLUMNS, (path, int(label), word, float(f"{score:.8g}"), *map(float, box)), strict=True)))
        if path in targets:
            draw_boxes(image, kept, names)
            end = os.path.splitext(targets[path])[1]
            try:
                done, content = opencv().imencode(end, image)
            except opencv().error:
                done = False
            if not done:
                raise ConfigError(f"OpenCV writes no pictures of the format of {targets[path]}", field="--out")
            write_bytes(targets[path], content.tobytes())
    if not ranks.first():
        return
    if left_out:
        options.notify(f"{left_out} box{'es' * (left_out != 1)} of scores below {threshold:g} left out; --threshold shows more")
    if out is not None and not targets:
        write_bytes(out, csv_bytes(COLUMNS, (row.values() for row in table)) if out.lower().endswith(".csv") else json_bytes(table))
    if out is not None:
        click.echo(f"wrote {out}")


def read_windows(path, crop_mode):
    """Return the pictures of a .txt as a list, or the windows of each picture of a .csv as a dict."""
    lines = read_lines(path, "a list of windows")
    if path.lower().endswith(".txt") and crop_mode == "selective_search":
        return [line.strip() for line in lines if line.strip()]
    if not path.lower().endswith(".csv"):
        raise ConfigError(f"{path}: must be a .csv of windows with --crop-mode list, or a .txt of pictures with --crop-mode "
                          "selective_search", field="INPUT")
    try:
        rows = list(csv.DictReader(lines))
    except csv.Error as error:
        raise DataError(f"is no table of windows: {error}", file=path) from None
    windows = {}
    for number, row in enumerate(rows, 2):
        try:
            windows.setdefault(row["filename"], []).append(tuple(float(row[name]) for name in COORDINATES))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError("must have filename,xmin,ymin,xmax,ymax with numbers, under a header of these names", file=path,
                            line=number) from error
    if not windows:
        raise DataError("holds no windows", file=path)
    return windows if crop_mode == "list" else list(windows)


def write_csv(path, found, names=None):
    """Write a line for each window: filename, the coordinates, and a column for each class."""
    classes = len(found[0]["prediction"]) if found else 0
    header = ["filename", *COORDINATES, *(names or [f"class{i}" for i in range(classes)])]
    write_bytes(path, csv_bytes(header, ([entry["filename"], *(f"{v:g}" for v in entry["window"]),
                                          *(f"{v:.8g}" for v in entry["prediction"])] for entry in found)))


def write_hdf5(target, found):
    """Write the arrays filename (N,), prediction (N, classes), ymin, xmin, ymax, xmax (N,)."""
    with hdf5_in_memory(target) as file:
        file["filename"] = [entry["filename"] for entry in found]
        file["prediction"] = np.array([entry["prediction"] for entry in found], np.float32)
        for i, name in enumerate(COORDINATES):
            file[name] = np.array([entry["window"][i] for entry in found], np.float64)
