"""The kind of a file by its first bytes: one table for all readers, whose errors name the found kind and the expected one.

Most files that a reader refuses are valid files of another kind: a web page in place of a download, a Git LFS pointer, weights
in place of a prototxt. `check` refuses files that cannot be text before a list is read; `with_kind` changes the error of a reader
that failed. A file that its reader accepts is not checked here, so no rule of this table can refuse it.
"""

import contextlib
import os
import re
from collections import namedtuple

from minicaffe.errors import DataError

HEAD = 1024  # bytes of a file that the rules see: tar's signature is at byte 257
FETCH_AGAIN = "fetch the file again"
OTHER = "name another file"
CONVERT_REMEDY = "set the parameters of a net to its arrays in Python (net.params), and write them with net.save"
BOM = rb"(?:\xef\xbb\xbf)?"


# `name` is for readers, `what` and `remedy` are for errors.
Kind = namedtuple("Kind", "name what remedy rule")

# The first rule that matches the first bytes counts. A rule is a pattern of the module re, in which a dot is any byte. A repetition
# must match a text in one way only: otherwise a hostile file makes re try an exponential number of ways.
KINDS = (
    Kind("empty", "empty", FETCH_AGAIN, rb"\Z"),
    Kind("zeros", "filled with zeros", f"a copy or download of it was cut off; {FETCH_AGAIN}", rb"\0{16}(?=\0*\Z)"),
    Kind("lfs", "a Git LFS pointer", "run 'git lfs pull'", rb"version https://git-lfs"),
    Kind("utf-16", "text in UTF-16", "save it as UTF-8", rb"\xff\xfe|\xfe\xff|(?:[\t\n\r -~]\0){4}|(?:\0[\t\n\r -~]){4}"),
    Kind("html", "a web page (HTML)", f"the download went wrong; {FETCH_AGAIN}",
         b"(?i)" + BOM + rb"\s*(?:<!--(?:(?!-->).)*-->\s*)*<(?:!doctype html|html|head|body|meta|title|script)\b"),
    Kind("xml", "an XML file", OTHER, BOM + rb"\s*(?:<\?xml\b|<!DOCTYPE\b|<[A-Za-z_][\w.:-]*(?:\s[^<>]*)?>)"),
    Kind("npz", "a NumPy archive (.npz)", "name a .npy file", rb"PK\x03\x04.{26}[^\0]{0,200}?\.npy"),
    Kind("pytorch", "a PyTorch checkpoint", CONVERT_REMEDY,
         rb"PK\x03\x04.{26}[^\0/]{1,200}/(?:data\.pkl|version|byteorder|\.format_version)|\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"),
    Kind("archive", "an archive (zip, gzip, bzip2, xz or tar)", "unpack it",
         rb"PK[\x03\x05][\x04\x06]|\x1f\x8b|BZh[1-9]1AY|\xfd7zXZ\0|.{257}ustar[\0 ][\0 0]"),
    Kind("npy", "a NumPy array (.npy)", OTHER, rb"\x93NUMPY"),
    Kind("hdf5", "an HDF5 file", OTHER, rb"\x89HDF\r\n\x1a\n"),
    Kind("pickle", "a Python pickle", "read it in Python, if you trust it", rb"\x80[\x02-\x05]"),
    Kind("onnx", "an ONNX model", CONVERT_REMEDY,
         rb"\x08[\x01-\x1f](?:\x12[\x01-\x40](?!/|[^\0-\x1f]{0,63}\.(?:caffemodel|h5))[ -~]{2,64}[\x1a\x22(:B]|:|B)"),
    Kind("picture", "a picture", OTHER, rb"\x89PNG|\xff\xd8\xff|GIF8[79]a|BM.{4}\0\0\0\0|RIFF.{4}WEBP|II\*\0|MM\0\*"),
    Kind("lmdb", "a file of an LMDB database", "name the folder that it is in", rb"(?:.{16})?\xde\xc0\xef\xbe"),
    Kind("json", "a JSON file", OTHER, BOM + rb'\s*[\[{]\s*(?:["\]}{\[]|-?\d)'),
    Kind("prototxt", "a prototxt", "it defines a net, a solver or a label map, and holds no weights",
         BOM + rb"(?:\s|#[^\r\n]*[\r\n])*(?:name|layers?|input(?:_dim|_shape)?|force_backward|debug_info|state|item|"
         rb"(?:train_|test_)?net(?:_param)?|test_iter|test_interval|base_lr|lr_policy|max_iter|display|snapshot\w*|solver_\w+|"
         rb"random_seed|type)\s*[:{]"),
    Kind("text", "text", OTHER, rb"(?:[\t\n\f\r -~]|[\xc2-\xf4][\x80-\xbf]{1,3})+(?:[\xc2-\xf4][\x80-\xbf]{0,2})?\Z"),
    # Caffe's own binary files; one that is cut off begins in the same way
    Kind("workspace", "a file of Workspace.save", "Workspace.load reads it", rb"\x08\x01\x12[\x80-\xff]{0,9}[\0-\x7f]\x0a"),
    Kind("solverstate", "a solver state", "weights are in the .caffemodel beside it",
         rb"\x08[\x80-\xff]{0,4}[\0-\x7f][\x12\x1a\x20]"),
    Kind("mean", "a mean file or another single blob (binaryproto)", "it is no net; a net's weights are in a .caffemodel",
         rb"\x08[\x80-\xff]{0,4}[\0-\x7f]\x10[\x80-\xff]{0,4}[\0-\x7f][\x18\x20\x2a\x3a]"),
    Kind("caffemodel", "a .caffemodel, the weights of a net", "give it as --weights or weights=",
         rb"(?:\x0a[\0-\xff][ -~]*)?(?:\x12|\xa2\x06)[\x80-\xff]{0,4}[\0-\x7f]"),
)
TEXTS = ("empty", "json", "prototxt", "text")  # kinds whose first bytes could be those of a list of paths


def kind_of(head):
    """Return the first `Kind` of `KINDS` whose rule the head of a file matches; None if there is none.

    `head` has the first `HEAD` bytes, or all of a shorter file; a str is a text that was read with surrogateescape.
    """
    if isinstance(head, str):
        try:
            head = head[:HEAD].encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:  # surrogates that are not from bytes
            head = head[:HEAD].encode("utf-8", "replace")
    head = bytes(head[:HEAD])
    return next((kind for kind in KINDS if re.match(kind.rule, head, re.DOTALL)), None)


def describe(kind, wanted):
    """Return the message for a file of a `Kind` where a reader expects another, whose name is `wanted`."""
    return f"is {kind.what}, where {wanted} is expected; {kind.remedy}"


def check(head, wanted, path):
    """Raise `DataError` if a file whose first bytes are `head` cannot be a text of lines, such as a list of paths."""
    kind = kind_of(head)
    if kind is not None and kind.name not in TEXTS:
        raise DataError(describe(kind, wanted), file=str(path))


def with_kind(error, head, wanted, own=()):
    """Return a reader's error. If the file is of another kind, change its message in place to the kind found and the kind expected.

    Of its place only the file stays: the line and the field come from reading the file as what it is not.

    `head` is as for `kind_of`, None if the file cannot be read; `wanted` is the expected kind: ``"a prototxt"``; `own` are names of
    kinds (`KINDS`) for which the error is not changed, among them the expected one.
    """
    kind = kind_of(head) if head is not None else None
    if kind is None or kind.name in own:
        return error
    error.message = describe(kind, wanted)
    error.line = error.column = error.field = error.layer = error.layer_type = error.record = None
    return error


def head_of(path):
    """Return the first bytes of a file for `kind_of`; None if it cannot be read, or is a pipe, whose opening may block."""
    with contextlib.suppress(OSError, ValueError):
        if os.path.isfile(path):
            with open(path, "rb") as file:
                return file.read(HEAD)
    return None
