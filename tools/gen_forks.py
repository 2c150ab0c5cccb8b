"""Write minicaffe/addons/forks/forks.tsv, what errors and `skip_unknown_fields` know of Caffe's forks; ``--check`` only compares.

The sources are the tables proto/fork_fields.tsv, fork_enums.tsv and fork_layers.tsv: every message field, enum value and layer
type of some sixty forks that BVLC Caffe and the SSD fork do not have. Their column `skip` says whether a net computes the same at
inference without the field: ``always`` (in training too, and it is left out without being asked for), ``yes`` (the same, on
request), ``test`` (training would change), ``default`` (where the value is the default, which switches it off); empty: it does
not, or this is unknown. Column `use` of the layers: ``infer`` (computes
outputs), ``identity`` (passes its bottom on, except in training), ``train`` (losses, targets and scores), ``data`` (a source), or
the type of BVLC Caffe that it is an alias of.

The package's table holds what a reader can meet: fields and values of messages that proto/caffe.proto has and that lack them.
So it shrinks when messages are added there, and this tool is to be run again.
"""

import argparse
import csv
import sys
import textwrap
from collections import defaultdict
from pathlib import Path

from gen_proto import TARGET as DESCRIPTOR
from google.protobuf import descriptor_pb2

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "minicaffe" / "addons" / "forks" / "forks.tsv"
HEAD = "# Written by tools/gen_forks.py from proto/fork_*.tsv; do not edit. Kind, of, names, skip or use, default, forks.\n"
WIDTH = 132  # columns of a line, beyond which the names that have the rest of a row in common continue in another row
SKIPS = ("", "always", "yes", "test", "default")
USES = ("infer", "identity", "train", "data")


def read(name):
    """Return the rows of a table of proto/ as dicts."""
    with open(ROOT / "proto" / name) as file:
        return list(csv.DictReader(file, delimiter="\t"))


def known():
    """Return what proto/caffe.proto has: field names by message, value names by enum."""
    file = descriptor_pb2.FileDescriptorProto.FromString(DESCRIPTOR.read_bytes())
    fields = {message.name: {field.name for field in message.field} for message in file.message_type}
    enums = {enum.name: {value.name for value in enum.value} for enum in file.enum_type}
    for message in file.message_type:
        enums |= {f"{message.name}.{enum.name}": {value.name for value in enum.value} for enum in message.enum_type}
    return fields, enums


def render():
    """Return the text of the package's table."""
    fields, enums = known()
    rows_of = defaultdict(list)  # names by the rest of their row
    for kind, table, owners, owner, name in (("field", "fork_fields.tsv", fields, "message", "field"),
                                             ("value", "fork_enums.tsv", enums, "enum", "value")):
        groups = defaultdict(list)
        for row in read(table):
            if row["skip"] not in SKIPS:
                sys.exit(f"{table}: {row[owner]}.{row[name]}: skip must be one of {SKIPS}, got '{row['skip']}'")
            if row[name] not in owners.get(row[owner], (row[name],)):
                groups[row[owner], row[name]].append(row)
        for (of, what), rows in sorted(groups.items()):
            skips = {(row["skip"], row.get("default", "") if row["skip"] == "default" else "") for row in rows}
            skip, default = skips.pop() if len(skips) == 1 else ("", "")  # forks that disagree: no
            forks = dict.fromkeys(fork for row in rows for fork in row["fork"].split(","))
            rows_of[kind, of, skip, default, ",".join(forks)].append(what)
    for row in sorted(read("fork_layers.tsv"), key=lambda row: row["type"]):
        if row["use"] not in USES and not row["use"][:1].isupper():
            sys.exit(f"fork_layers.tsv: {row['type']}: use must be one of {USES} or a layer type, got '{row['use']}'")
        rows_of["layer", row["field"], row["use"], "", row["fork"]].append(row["type"])
    lines = []
    for (kind, of, *rest), names in rows_of.items():
        room = WIDTH - len("\t".join((kind, of, "", *rest)))
        for some in textwrap.wrap(" ".join(names), max(room, 1), break_long_words=False, break_on_hyphens=False):
            lines.append("\t".join((kind, of, some.replace(" ", ","), *rest)))
    return HEAD + "\n".join(lines) + "\n"


def main():
    """Write the table, or with ``--check`` exit with 1 if it differs from what would be written."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare only; exit with 1 on a difference")
    text = render()
    if not parser.parse_args().check:
        TARGET.write_text(text)
    elif not TARGET.exists() or TARGET.read_text() != text:
        sys.exit("minicaffe/addons/forks/forks.tsv does not come from proto/fork_*.tsv: run tools/gen_forks.py")


if __name__ == "__main__":
    main()
