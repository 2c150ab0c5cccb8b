"""The comments of proto/caffe.proto, which tools/gen_proto.py copies to comments.tsv: for help and the reference of layer types."""

import functools
import re
from pathlib import Path


@functools.cache
def comments():
    """Return the comments of messages, ``Message.field`` and ``Message.Enum.VALUE`` by name; those that are tables have lines."""
    rows = Path(__file__).with_name("comments.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return {name: comment.replace("\\n", "\n") for name, comment in (row.split("\t") for row in rows)}


def one_line(comment):
    """Return a comment with its table, if it has one, as one line: ``fixed: base_lr; exp: base_lr * gamma^t``."""
    first, *rest = [re.sub(" {2,}", ": ", line) for line in comment.splitlines()] or [""]
    return f"{first}{' ' if first.endswith(('.', ':')) else '; '}{'; '.join(rest)}" if rest else first
