"""``minicaffe detect``: boxes on pictures by a net of SSD.

Different from Caffe: its python/detect.py scores windows of pictures by a net of R-CNN; `minicaffe.Detector` does that in Python.
"""

import os

import click
import numpy as np

from minicaffe.addons.ssd.detection_files import PICTURES, draw_boxes
from minicaffe.addons.ssd.label_map import read_label_map
from minicaffe.cli import options, ranks
from minicaffe.cli.classify import read_labels
from minicaffe.cli.inputs import SkippedInputs, check_ending, csv_bytes, ext_option, json_bytes, picture_paths, read_each
from minicaffe.cli.picture_nets import load_picture, open_net, picture_net_options, select_pretrained
from minicaffe.common import caffe
from minicaffe.data.datum import opencv
from minicaffe.data.image_list import decode_picture, read_content
from minicaffe.errors import ConfigError, FileError
from minicaffe.proto import caffe_pb2
from minicaffe.proto.atomic import write_bytes

COLUMNS = ("filename", "label", "name", "score", "xmin", "ymin", "xmax", "ymax")    # of a table of boxes


@click.command(cls=options.CaffeCommand)
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@click.option("--out", metavar="FILE", help="Write a table of the boxes, .csv or .json; draw them on the picture, "
              f"{', '.join(PICTURES)}; or on each picture, in the folder FILE.")
@options.force
@picture_net_options
@click.option("--labels", metavar="FILE", help="Names of the classes: a label map (.prototxt), or a name a line from label 0 on; "
              "by default the label map that the net names.")
@click.option("--threshold", type=options.Real(0, 1), default=0.5, show_default=True, help="The lowest score shown.")
@ext_option("an INPUT that is a folder")
@options.run_options
def detect(inputs, out, force, labels, threshold, ext, **given):
    """Find objects on pictures with a net of SSD: print their boxes, and with --out write or draw them.

    Each INPUT is a picture, a folder of pictures or a pattern such as 'photos/*.jpg'. Processes that mpiexec started divide the
    pictures.
    """
    pictures = picture_paths(inputs, ext)
    targets = drawing_paths(pictures, out, force) if ranks.group.rank == 0 else {}
    select_pretrained(given)
    net, training = open_net(given)
    detection_output = next((node for node in net.nodes if node.type == "DetectionOutput"), None)
    if detection_output is None:
        raise ConfigError("has no DetectionOutput layer, so it finds no boxes; give the deploy net of an SSD, or score whole "
                          "pictures by minicaffe classify, and windows of pictures by minicaffe.Detector in Python", file=net.file)
    names = label_names(labels, detection_output, training)
    mode = training.layer.transform_param.resize_param.resize_mode if training else caffe_pb2.ResizeParameter.WARP
    if mode != caffe_pb2.ResizeParameter.WARP:
        word = caffe_pb2.ResizeParameter.Resize_mode.Name(mode)
        options.notify(f"{training.file} resizes pictures by {word}; here they are resized to the input's height and width, as by "
                       "WARP")
    find_boxes(net, pictures, names, threshold, out, targets)


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
    if ranks.group.rank != 0:
        return
    if left_out:
        options.notify(f"{left_out} box{'es' * (left_out != 1)} of scores below {threshold:g} left out; --threshold shows more")
    if out is not None and not targets:
        write_bytes(out, csv_bytes(COLUMNS, (row.values() for row in table)) if out.lower().endswith(".csv") else json_bytes(table))
    if out is not None:
        click.echo(f"wrote {out}")
