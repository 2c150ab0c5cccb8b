"""``minicaffe upgrade``: old files in today's form (Caffe upgrade_net_proto_text, _binary and upgrade_solver_proto_text)."""

import functools
import logging
import sys

import click

from minicaffe.cli import options
from minicaffe.errors import DataError, FileError
from minicaffe.proto import caffe_pb2, kinds
from minicaffe.proto.atomic import write_bytes
from minicaffe.proto.binary import split_net
from minicaffe.proto.files import read_bytes
from minicaffe.proto.text import read_text, write_text
from minicaffe.proto.upgrade import upgrade_net, upgrade_solver
from minicaffe.proto.wire import parse_message

logger = logging.getLogger("minicaffe.cli")


@click.command(cls=options.CaffeCommand)
@click.argument("kind", type=click.Choice(["net_text", "net_binary", "solver_text"]))
@click.argument("source", metavar="IN")
@click.argument("out", metavar="OUT")
@options.force
@options.skip_unknown_fields
@options.messages
def upgrade(kind, source, out, force):
    """Write the file IN in today's form to OUT: the prototxt of a net, its weights, or the prototxt of a solver."""
    options.check_outputs(out, force=force)
    read = functools.partial(read_text, keep_layer_fields=True,
                             skip_unknown_fields=options.net_options()["skip_unknown_fields"])
    if kind == "solver_text":
        old, positions = read(source, caffe_pb2.SolverParameter)
        new = upgrade_solver(old, positions)
        current, losses, notes = new == old, False, []
    else:
        old, positions = read(source, caffe_pb2.NetParameter) if kind == "net_text" else (parse_binary(source), None)
        new, notes = upgrade_net(old, positions)
        current, losses = new is old, any(level == logging.ERROR for level, _ in notes)
    if current:
        logger.error("%s is in today's form already; it is written again", source)
    write_bytes(out, new.SerializeToString() if kind == "net_binary" else write_text(new).encode())
    click.echo(f"wrote {out}")
    if sys.stderr.isatty():     # the log, which has them, shows warnings only
        for note in (text for level, text in notes if level < logging.WARNING):
            options.notify(note)
    if losses:
        logger.warning("a part of the old net has no counterpart, see above; OUT lacks it")
    return int(losses)


def parse_binary(path):
    """Return the NetParameter of a binary file with all its weights, which `upgrade_net` converts, too."""
    data = read_bytes(path)
    try:
        split_net(data)     # raises DataError for more layers or bytes than any net has
        return parse_message(caffe_pb2.NetParameter, data)
    except DataError:
        error = FileError("is no binary NetParameter, or is damaged; a prototxt is upgraded by net_text", file=path)
        raise kinds.with_kind(error, data, "a binary NetParameter (a .caffemodel)", ("caffemodel", "prototxt")) from None
