"""Label maps and lists of names and sizes, the text files beside a detection database (SSD's convert_annoset)."""

from minicaffe.common import caffe
from minicaffe.data.numbers import integer
from minicaffe.errors import DataError, in_field, located, shown
from minicaffe.proto import caffe_pb2
from minicaffe.proto.files import parse_lines, read_lines
from minicaffe.proto.text import read_text


def read_label_map(path):
    """Read a LabelMap in text format: for each label number (name, display name), the name twice where there is no display name.

    Raises FileError or ConfigError if the file cannot be read; DataError if an item has no label, or the label or name of another.
    """
    message, _ = read_text(path, caffe_pb2.LabelMap)
    names, labels = {}, {}
    for i, item in enumerate(message.item):
        with located(file=str(path), field=f"item[{i}]"):
            if not item.HasField("label"):
                raise DataError(f"'{item.name}' has no label; add one (0 is the background)")
            if item.label in names:
                raise DataError(f"label {item.label} was named '{names[item.label][0]}' before; each label needs one item")
            if item.name in labels:
                raise DataError(f"label {item.label} has the name '{item.name}', as label {labels[item.name]} has; "
                                "each needs its own")
        labels[item.name] = item.label
        names[item.label] = item.name, item.display_name or item.name
    return names


def read_given(read, path, field):
    """Read a file that `field` of a layer names by one of the functions here; raise ConfigError if the net may not read it."""
    caffe.check_path(path, field)
    with in_field(field):
        return read(path)


def read_name_sizes(path):
    """Read lines of ``name height width``, one for each picture in the order of the database, as tuples.

    Raises FileError or DataError, naming the line, if the file cannot be read or has a line of another form.
    """
    wanted = "a list of names, heights and widths"
    pictures = parse_lines(path, read_lines(path, wanted), _name_size, wanted)
    if not pictures:
        raise DataError("holds no line of a name, a height and a width", file=str(path))
    return pictures


def _name_size(line):
    words = line.split()
    if len(words) != 3:
        raise DataError(f"must be a name, a height and a width, got {shown(line)}")
    return words[0], *(integer(word, "a height or width", least=1) for word in words[1:])
