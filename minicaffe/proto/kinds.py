"""The kind of a file by its first bytes: one table for all readers, whose errors name the found kind and the expected one.

Most files that a reader refuses are valid files of another kind: a web page in place of a download, a Git LFS pointer, weights
in place of a prototxt. `check` refuses files that cannot be text before a list is read; `with_kind` changes the error of a reader
that failed. A file that its reader accepts is not checked here, so no rule of this table can refuse it.
"""

import os
import re
import stat
from typing import NamedTuple

from minicaffe.errors import DataError

HEAD = 1024  # bytes of a file that the rules see: tar's signature is at byte 257
FETCH_AGAIN = "fetch the file again"
CONVERT_REMEDY = "set the parameters of a net to its arrays in Python (net.params), and write them with net.save"
SPACE = rb"(?:\s|#[^\r\n]*[\r\n]|//[^\r\n]*[\r\n]|/\*(?:(?!\*/).)*\*/)*"


class Kind(NamedTuple):
    """A kind of file: `name` for readers, `what` and `remedy` for errors, and the `rule` that its first bytes match.

    `text` is true if a list of paths might begin with the same bytes. The rule is a pattern of the module re, in which a dot is any
    byte. A repetition must match a text in one way only: otherwise a hostile file makes re try an exponential number of ways.
    """

    name: str
    what: str
    remedy: str
    rule: bytes
    text: bool = False


# The first rule that matches counts.
KINDS = (
    Kind("empty", "empty", FETCH_AGAIN, rb"\Z", True),
    Kind("zeros", "filled with zeros", f"a copy or download of it was cut off; {FETCH_AGAIN}", rb"\0{16}(?=\0*\Z)"),
    Kind("lfs", "a Git LFS pointer", "run 'git lfs pull'", rb"version https://git-lfs"),
    Kind("annex", "a git-annex pointer", "run 'git annex get'", rb"(?:\.\./)*(?:\.git)?/?annex/objects/"),
    Kind("utf-16", "text in UTF-16", "save it as UTF-8", rb"\xff\xfe|\xfe\xff|(?:[\t\n\r -~]\0){4}|(?:\0[\t\n\r -~]){4}"),
    Kind("html", "a web page (HTML)", f"the download went wrong; {FETCH_AGAIN}",
         rb"(?i)(?:\xef\xbb\xbf)?\s*(?:<!--(?:(?!-->).)*-->\s*)*<(?:!doctype html|html|head|body|meta|title|script)\b"),
    Kind("xml", "an XML file", "name another file",
         rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml\b|<!DOCTYPE\b|<[A-Za-z_][\w.:-]*(?:\s[^<>]*)?>)"),
    # Archives and arrays
    Kind("npz", "a NumPy archive (.npz)", "name a .npy file",
         rb"PK\x03\x04.{26}[^\0]{0,200}?\.npy"),
    Kind("pytorch", "a PyTorch checkpoint", CONVERT_REMEDY,
         rb"PK\x03\x04.{26}[^\0/]{1,200}/(?:data\.pkl|version|byteorder|\.format_version)"),
    Kind("zip", "a zip archive", "unpack it with unzip", rb"PK[\x03\x05][\x04\x06]"),
    Kind("gzip", "a gzip archive", "unpack it with gunzip, or with tar xzf", rb"\x1f\x8b"),
    Kind("bzip2", "a bzip2 archive", "unpack it with bunzip2, or with tar xjf", rb"BZh[1-9]1AY"),
    Kind("xz", "an xz archive", "unpack it with unxz, or with tar xJf", rb"\xfd7zXZ\0"),
    Kind("zstd", "a zstd archive", "unpack it with unzstd", rb"\x28\xb5\x2f\xfd"),
    Kind("7z", "a 7-Zip archive", "unpack it with 7z x", rb"7z\xbc\xaf\x27\x1c"),
    Kind("rar", "a RAR archive", "unpack it with unrar x", rb"Rar!\x1a\x07"),
    Kind("tar", "a tar archive", "unpack it with tar xf", rb".{257}ustar[\0 ][\0 0]"),
    Kind("npy", "a NumPy array (.npy)", "name another file", rb"\x93NUMPY"),
    Kind("hdf5", "an HDF5 file", "name another file", rb"\x89HDF\r\n\x1a\n"),
    # Nets of other frameworks
    Kind("pytorch", "a PyTorch checkpoint", CONVERT_REMEDY, rb"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"),
    Kind("pickle", "a Python pickle", "read it in Python, if you trust it", rb"\x80[\x02-\x05]"),
    Kind("safetensors", "a safetensors file", CONVERT_REMEDY, rb'.{6}\0\0\{\s*"'),
    Kind("tflite", "a TensorFlow Lite model", CONVERT_REMEDY, rb".{2}\0\0TFL3"),
    Kind("onnx", "an ONNX model", CONVERT_REMEDY,
         rb"\x08[\x01-\x1f](?:\x12[\x01-\x40](?!/|[^\0-\x1f]{0,63}\.(?:caffemodel|h5))[ -~]{2,64}[\x1a\x22(:B]|:|B)"),
    # Pictures, films, programs
    Kind("picture", "a PNG picture", "name another file", rb"\x89PNG"),
    Kind("picture", "a JPEG picture", "name another file", rb"\xff\xd8\xff"),
    Kind("picture", "a GIF picture", "name another file", rb"GIF8[79]a"),
    Kind("picture", "a BMP picture", "name another file", rb"BM.{4}\0\0\0\0"),
    Kind("picture", "a WebP picture", "name another file", rb"RIFF.{4}WEBP"),
    Kind("picture", "a TIFF picture", "name another file", rb"II\*\0|MM\0\*"),
    Kind("film", "a film", "name another file", rb"RIFF.{4}AVI |\0\0.{2}ftyp|\x1a\x45\xdf\xa3"),
    Kind("pdf", "a PDF document", "name another file", rb"%PDF-"),
    Kind("program", "a program", "name another file", rb"\x7fELF|MZ.{58}\0"),
    # Databases
    Kind("lmdb lock", "the lock file of an LMDB database", "name the folder that it is in", rb"\xde\xc0\xef\xbe"),
    Kind("lmdb", "the data file of an LMDB database", "name the folder that it is in", rb".{16}\xde\xc0\xef\xbe"),
    Kind("leveldb", "a file of a LevelDB database", "name the folder that it is in", rb"MANIFEST-\d+\n"),
    # Text
    Kind("trace", "a trace of minicaffe", "minicaffe.addons.trace.load reads it", rb'\s*\{\s*"format":\s*\d+,\s*"minicaffe":', True),
    Kind("json", "a JSON file", "name another file", rb'(?:\xef\xbb\xbf)?\s*[\[{]\s*(?:["\]}{\[]|-?\d)', True),
    Kind("yaml", "a YAML file", "name another file",
         rb"(?:\xef\xbb\xbf)?(?:%YAML|---\s|(?:\s|#[^\n]*\n)*(?:- )?[\w-]+:[ ]*\r?\n(?:#[^\n]*\n)*[ ]*(?:- |[\w-]+:\s))", True),
    Kind("proto", "a .proto file, which defines messages", "name a prototxt, which holds one",
         SPACE + rb'(?:syntax\s*=|package\s+[\w.]+\s*;|import\s+"|(?:message|enum)\s+\w+\s*\{)', True),
    Kind("script", "a script", "name another file",
         rb"#!\s*/|" + SPACE + rb"(?:import\s+[A-Za-z_]|from\s+[\w.]+\s+import\s|def\s+\w+\s*\(|class\s+\w+\s*[:(])", True),
    Kind("log", "the log of a training", "minicaffe plot reads it", rb"Log file created at:|[IWEF]\d{4} \d\d:\d\d:\d\d\.\d", True),
    Kind("prototxt", "a prototxt", "it defines a net, a solver or a label map, and holds no weights",
         rb"(?:\xef\xbb\xbf)?" + SPACE + rb"(?:name|layers?|input(?:_dim|_shape)?|force_backward|debug_info|state|item|"
         rb"(?:train_|test_)?net(?:_param)?|test_iter|test_interval|base_lr|lr_policy|max_iter|display|snapshot\w*|solver_\w+|"
         rb"random_seed|type)\s*[:{]", True),
    Kind("text", "text", "name another file",
         rb"(?:[\t\n\f\r -~]|[\xc2-\xf4][\x80-\xbf]{1,3})+(?:[\xc2-\xf4][\x80-\xbf]{0,2})?\Z", True),
    # Caffe's own binary files; one that is cut off begins in the same way
    Kind("workspace", "a file of Workspace.save", "Workspace.load reads it", rb"\x08\x01\x12[\x80-\xff]{0,9}[\0-\x7f]\x0a"),
    Kind("solverstate", "a solver state", "weights are in the .caffemodel beside it",
         rb"\x08[\x80-\xff]{0,4}[\0-\x7f][\x12\x1a\x20]"),
    Kind("mean", "a mean file or another single blob (binaryproto)", "it is no net; a net's weights are in a .caffemodel",
         rb"\x08[\x80-\xff]{0,4}[\0-\x7f]\x10[\x80-\xff]{0,4}[\0-\x7f][\x18\x20\x2a\x3a]"),
    Kind("caffemodel", "a .caffemodel, the weights of a net", "give it as --weights or weights=",
         rb"(?:\x0a[\0-\xff][ -~]*)?(?:\x12|\xa2\x06)[\x80-\xff]{0,4}[\0-\x7f]"),
)


def kind_of(head, text=True):
    """Return the first `Kind` of `KINDS` whose rule the head of a file matches; None if there is none.

    Parameters
    ----------
    head : bytes or str
        The first `HEAD` bytes, or all of a shorter file; a text that was read with surrogateescape.
    text : bool
        Whether to try also the kinds with `Kind.text`, whose first bytes could be those of a list of paths.
    """
    head = head[:HEAD]
    if isinstance(head, str):
        try:
            head = head.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:  # surrogates that are not from bytes
            head = head.encode("utf-8", "replace")
    head = bytes(head)[:HEAD]
    return next((kind for kind in KINDS if (text or not kind.text) and re.match(kind.rule, head, re.DOTALL)), None)


def describe(kind, wanted):
    """Return the message for a file of a `Kind` where a reader expects another, whose name is `wanted`."""
    return f"is {kind.what}, where {wanted} is expected; {kind.remedy}"


def check(head, wanted, path):
    """Raise `DataError` if a file whose first bytes are `head` cannot be a text of lines, such as a list of paths."""
    kind = kind_of(head, text=False)
    if kind is not None:
        raise DataError(describe(kind, wanted), file=str(path))


def with_kind(error, head, wanted, own=()):
    """Return a reader's error. If the file is of another kind, change its message to the kind found and the kind expected.

    Parameters
    ----------
    error : Error
        Changed and returned.
    head : bytes, str or None
        As for `kind_of`; None if the file cannot be read.
    wanted : str
        The expected kind: ``"a prototxt"``.
    own : collection of str
        Names of kinds for which the error is not changed.
    """
    kind = kind_of(head) if head is not None else None
    if kind is None or kind.name in own:
        return error
    error.message = describe(kind, wanted)
    error.line = error.column = error.field = error.layer = error.layer_type = error.record = None
    return error


def with_kind_inside(error, path, wanted, own):
    """As `with_kind`, for an error about a folder whose file `path` must be of a kind in `own`."""
    kind = kind_of(head_of(path) or b"")
    if kind is not None and kind.name not in own:
        error.message = f"its {os.path.basename(path)} {describe(kind, wanted)}"
    return error


def head_of(path):
    """Return the first bytes of a file for `kind_of`; None if it cannot be read, or is a pipe, whose opening may block."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        with open(path, "rb") as file:
            return file.read(HEAD)
    except (OSError, ValueError):
        return None
