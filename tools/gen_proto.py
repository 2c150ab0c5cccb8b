"""Write minicaffe/proto/caffe.descriptor and comments.tsv from proto/caffe.proto; ``--check`` only compares.

It needs grpcio-tools (tools/requirements.txt).

The descriptor is compiled by protoc; caffe_pb2.py builds the classes of it when imported. The comments are not in it:
`minicaffe layers` and `minicaffe train --help` show them.
"""

import argparse
import re
import sys
import tempfile
from pathlib import Path

from google.protobuf import descriptor_pb2

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "proto" / "caffe.proto"
TARGET = ROOT / "minicaffe" / "proto" / "caffe.descriptor"
COMMENTS = TARGET.with_name("comments.tsv")
COMMENTS_HEAD = "# Written by tools/gen_proto.py from proto/caffe.proto; do not edit. Message, field or value, and its comment.\n"
# protobuf's pool is one per process and keyed by file name: "caffe.proto" is what other Caffes call theirs.
NAME_IN_POOL = "minicaffe/proto/caffe.proto"

def compile_proto():
    """Run protoc on SOURCE; return the FileDescriptorProto, serialized and named NAME_IN_POOL, and the text of COMMENTS."""
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder) / "caffe.descriptor"
        status = protoc.main(["protoc", f"--proto_path={SOURCE.parent}", "--include_source_info",
                              f"--descriptor_set_out={compiled}", str(SOURCE)])
        if status != 0:
            sys.exit(f"protoc failed on {SOURCE}")
        files = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes())
    comments = COMMENTS_HEAD + "".join(f"{name}\t{comment}\n" for name, comment in comments_of(files.file[0]))
    files.file[0].ClearField("source_code_info")
    files.file[0].name = NAME_IN_POOL
    for message in files.file[0].message_type:
        for field in message.field:
            field.ClearField("json_name")  # follows from the name; some protoc versions leave it out
    return files.file[0].SerializeToString(deterministic=True), comments


def comments_of(file):
    """Yield the name of each message, enum, field and value of a FileDescriptorProto that has a comment, and the comment.

    A comment is one line of text; lines of a table, in which words are two spaces apart, stay lines, with ``\\n`` between them.
    """
    for location in file.source_code_info.location:
        comment = location.leading_comments or location.trailing_comments
        if not comment or len(location.path) < 2:
            continue
        part, names = file, []
        for field, index in zip(location.path[::2], location.path[1::2]):
            part = getattr(part, part.DESCRIPTOR.fields_by_number[field].name)[index]
            names.append(part.name)
        lines = [re.sub("^ ", "", line).rstrip() for line in comment.rstrip("\n").split("\n")]
        text = lines[0]
        for before, line in zip(lines, lines[1:]):
            text += ("\\n" if "  " in line or "  " in before else " ") + line.strip()
        yield ".".join(names), text


def main():
    """Write the files, or with ``--check`` exit with 1 if they differ from what would be written."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare only; exit with 1 on a difference")
    serialized, comments = compile_proto()
    if not parser.parse_args().check:
        TARGET.write_bytes(serialized)
        COMMENTS.write_text(comments)
        return
    if COMMENTS.read_text() != comments:
        sys.exit("minicaffe/proto/comments.tsv does not come from proto/caffe.proto: run tools/gen_proto.py")
    if TARGET.read_bytes() != serialized:
        sys.exit("minicaffe/proto/caffe.descriptor does not come from proto/caffe.proto: run tools/gen_proto.py")


if __name__ == "__main__":
    main()
