"""The folder that a worker runs its cases in, and the binary seeds: all of it is made here, small, and the same every time."""

import io
import math
import os
import struct
from pathlib import Path

import h5py
import lmdb
import numpy as np

import minicaffe
from minicaffe.data.datum import opencv
from minicaffe.layers.python import Layer
from minicaffe.proto import caffe_pb2

cv2 = opencv()

NETS = Path(__file__).resolve().parents[2] / "tests/fuzz/nets"
TRAINED = (NETS / "chain.prototxt").read_text()  # what weights and solver states belong to
SOLVER = 'base_lr: 0.01 lr_policy: "step" gamma: 0.5 stepsize: 2 momentum: 0.9 display: 0 max_iter: 4 snapshot_prefix: "snap"\n'
STATEFUL = """layer { name: "source" type: "Data" top: "pictures" data_param { source: "lmdb" batch_size: 2 backend: LMDB } }
layer { name: "h5" type: "HDF5Data" top: "rows" hdf5_data_param { source: "h5.txt" batch_size: 2 shuffle: true } }
layer { name: "time" type: "DummyData" top: "x" top: "cont"
  dummy_data_param { shape { dim: 3 dim: 2 dim: 4 } shape { dim: 3 dim: 2 } } }
layer { name: "rnn" type: "RNN" bottom: "x" bottom: "cont" top: "h" recurrent_param { num_output: 2 } }
"""


class Twice(Layer):
    """The class that seeds with a layer of type Python name, under the module `fuzz_python_layer`."""

    def setup(self, bottom, top):
        self.blobs.add_blob(1)

    def reshape(self, bottom, top):
        for x, y in zip(bottom, top):
            y.reshape_like(x)

    def forward(self, bottom, top):
        for x, y in zip(bottom, top):
            y.data[...] = 2 * x.data

    def backward(self, top, propagate_down, bottom):
        for x, y in zip(bottom, top):
            x.diff[...] = 2 * y.diff


class Broken(Layer):
    """Does what the fuzzer is there to find, as its `param_str` says; for the tests of the fuzzer."""

    def setup(self, bottom, top):
        if self.param_str == "raise":
            raise KeyError(self.param_str)
        if self.param_str == "die":
            os.abort()
        while self.param_str == "hang":
            pass
        self.memory = np.ones(9 << 27 if self.param_str == "memory" else 1, np.uint8)

    def reshape(self, bottom, top):
        """Nothing to do: it has no tops."""


class Folder:
    """A folder that is put back as it was after each case, whatever the case wrote into it.

    Parameters
    ----------
    path : Path
        An empty folder, which becomes the working directory.
    """

    def __init__(self, path):
        os.chdir(path)
        for folder in ("images", "lmdb"):
            os.mkdir(folder)
        rng = np.random.default_rng(1)
        for i, shape in enumerate([(9, 7, 3), (8, 8, 3), (12, 10)]):
            cv2.imwrite(f"images/{i}.png", rng.integers(0, 255, shape, np.uint8))
        Path("list.txt").write_text("0.png 1\n1.png 0\n2.png 3\n")
        Path("windows.txt").write_text("# 0\n0.png\n3\n9\n7\n2\n1 0.9 1 1 5 6\n0 0.1 0 0 3 3\n"
                                       "# 1\n1.png\n3\n8\n8\n1\n2 0.6 2 2 7 7\n")
        Path("mean.binaryproto").write_bytes(mean_seed((3, 5, 6)))
        Path("mean8.binaryproto").write_bytes(mean_seed((3, 8, 8)))
        Path("h.binaryproto").write_bytes(mean_seed((1, 5, 5)))
        Path("data.h5").write_bytes(hdf5({"data": rng.random((4, 2, 3)).astype(np.float32), "label": np.arange(4.0),
                                               "rows": np.arange(4)}))
        Path("h5.txt").write_text("data.h5\n")
        write_lmdb("lmdb", [datum_seed(False), datum_seed(False), datum_seed(True)])
        Path("trained.prototxt").write_text(TRAINED)
        net = minicaffe.Net("trained.prototxt", minicaffe.TRAIN)
        net.save("model.caffemodel")
        net.save_hdf5("model.h5")
        write_secret([blob.shape for blob in net.learnable_params])
        write_video("film.avi")
        self._contents = {path: Path(path).read_bytes() for path in _files(".")}
        self._stamps = self._look()

    def restore(self):
        """Put the files back; those that cases write at a known place may stay until they are written again."""
        if self._look() == self._stamps:
            return
        for path in _files("."):
            if path not in self._contents:
                os.unlink(path)
        for path, content in self._contents.items():
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if not os.path.exists(path) or Path(path).read_bytes() != content:
                Path(path).write_bytes(content)
        self._stamps = self._look()

    def _look(self):
        found = {}
        for path in _files("."):
            status = os.stat(path, follow_symlinks=False)
            found[path] = status.st_mtime_ns, status.st_size
        return found


def _files(folder):
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from _files(entry.path)
        else:
            yield entry.path


def write_lmdb(path, records):
    """Make an LMDB of `records` in an empty folder."""
    with lmdb.open(path, map_size=1 << 20, lock=False, sync=False) as env, env.begin(write=True) as transaction:
        for i, record in enumerate(records):
            transaction.put(f"{i:08d}".encode(), record)


def write_video(path):
    """Write a film of a few frames."""
    writer = cv2.VideoWriter(path, cv2.VideoWriter_fourcc(*"MJPG"), 10.0, (16, 12))
    for i in range(3):
        writer.write(np.full((12, 16, 3), 40 * i, np.uint8))
    writer.release()


def mean_seed(shape):
    """Return a BlobProto of one picture, as mean files hold it."""
    blob = caffe_pb2.BlobProto(num=1, channels=shape[0], height=shape[1], width=shape[2])
    blob.data.extend(range(int(np.prod(shape))))
    return blob.SerializeToString()


def datum_seed(encoded, floats=False, kind=".png"):
    """Return a serialized Datum of a picture of 3 x 5 x 6."""
    picture = np.arange(90, dtype=np.uint8).reshape(3, 5, 6)
    datum = caffe_pb2.Datum(channels=3, height=5, width=6, label=2)
    if encoded:
        datum.encoded = True
        datum.data = cv2.imencode(kind, picture.transpose(1, 2, 0))[1].tobytes()
    elif floats:
        datum.float_data.extend(picture.ravel().tolist())
    else:
        datum.data = picture.tobytes()
    return datum.SerializeToString()


def bomb_png(width, height):
    """Return a PNG file that says it has `width` x `height` pixels and holds none."""
    import zlib
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(bytes(100))),
              (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(struct.pack(">I", len(content)) + name + content
                                            + struct.pack(">I", zlib.crc32(name + content)) for name, content in chunks)


def hdf5(tree):
    """Return the bytes of an HDF5 file: a dict is a group, an array a dataset, a callable ``f(parent, name)`` anything else."""
    memory = io.BytesIO()
    with h5py.File(memory, "w") as file:
        _fill(file, tree)
    return memory.getvalue()


def _fill(group, tree):
    for name, value in tree.items():
        if isinstance(value, dict):
            _fill(group.create_group(name), value)
        elif callable(value):
            value(group, name)
        else:
            group.create_dataset(name, data=value)


def _odd(maker):
    return lambda group, name: maker(group, name)


ODD = (  # what may be in an HDF5 file where numbers of some shape should
    {}, {"0": np.float32(1)}, np.zeros((0, 3)), np.float32(3), np.zeros(3), np.full((2, 3), np.nan), np.int64(2**62),
    np.bool_(True),
    np.array([1 + 2j]), np.array([b"text"]), b"text", "text", np.zeros(2, [("a", "f4"), ("b", "i8")]), np.arange(5, dtype="u1"),
    np.zeros((1,) * 32, "f4"), np.zeros(4, ">f8"), np.zeros(3, "f2"),
    _odd(lambda g, n: g.create_dataset(n, (1 << 40,), "f4", chunks=(1 << 16,))),
    _odd(lambda g, n: g.create_dataset(n, (1 << 20, 1 << 20), "f8", chunks=(64, 64), compression="gzip")),
    _odd(lambda g, n: g.create_dataset(n, (1 << 20,), "f4", chunks=(1 << 20,), compression="gzip")),
    _odd(lambda g, n: g.create_dataset(n, (4,), "f4", maxshape=(None,))),
    _odd(lambda g, n: g.create_dataset(n, data=h5py.Empty("f4"))),
    _odd(lambda g, n: g.create_dataset(n, (3,), h5py.string_dtype())),
    _odd(lambda g, n: g.create_dataset(n, (3,), h5py.vlen_dtype(np.float32))),
    _odd(lambda g, n: g.create_dataset(n, (2,), h5py.ref_dtype)),
    _odd(lambda g, n: g.create_dataset(n, (2,), np.dtype(("f4", (3,))))),
    _odd(lambda g, n: g.__setitem__(n, h5py.SoftLink("/nowhere"))),
    _odd(lambda g, n: g.__setitem__(n, h5py.SoftLink("/"))),
    _odd(lambda g, n: g.__setitem__(n, h5py.ExternalLink("nowhere.h5", "/data"))),
    _odd(lambda g, n: g.__setitem__(n, np.dtype("f4"))),
)


SECRET = np.full(1 << 16, 7777, np.float32)  # what the files outside the folder hold
OUTSIDE, OUTSIDE_RAW = "../secret.h5", "../secret.bin"


def write_secret(shapes):
    """Write the files outside the folder: HDF5 with a dataset for each shape, and plain numbers."""
    tree = {f"s{shape}": np.full(shape, SECRET[0]) for shape in shapes}
    Path(OUTSIDE).write_bytes(hdf5({**tree, "all": SECRET, "group": {"0": tree[f"s{shapes[0]}"]}}))
    Path(OUTSIDE_RAW).write_bytes(SECRET.tobytes())


def link(value, rng):
    """Return an entry for `hdf5` that represents the array or group `value`, and leads to the file outside in most cases."""
    shape = np.shape(value) if not isinstance(value, dict) else ()
    path = rng.choice((*[OUTSIDE] * 4, "./" + OUTSIDE, "data.h5", ".", "nowhere.h5", "list.txt", "images"))
    target = rng.choice((*[f"/s{shape}"] * 5, f"s{shape}", "/group", "/", "/group/0", "/nowhere"))

    def external(group, name):
        group[name] = h5py.ExternalLink(path, target)

    def soft(group, name):
        group.file["far"] = h5py.ExternalLink(path, "/")
        steps = rng.choice((0, 1, 15, 16, 17))
        for i in range(steps):
            group.file[f"step{i}"] = h5py.SoftLink(f"/step{i + 1}" if i + 1 < steps else f"/far{target}")
        group[name] = h5py.SoftLink("/step0" if steps else rng.choice(("/far", "far", ".//far/.")) + "/" + target)

    def ring(group, name):
        group[name] = h5py.SoftLink(rng.choice((name, f"./{name}", f"{group.name}/{name}", "/", group.name)))

    def cycle(group, name):
        group[name] = group.file["/"]

    def stored(group, name):
        place = rng.choice((OUTSIDE_RAW, path)), rng.choice((0, 0, 0, 1 << 40)), rng.choice((4096, h5py.h5f.UNLIMITED))
        group.create_dataset(name, shape, np.float32, external=[place])

    def virtual(group, name):
        layout = h5py.VirtualLayout(shape, np.float32)
        layout[...] = h5py.VirtualSource(path, "all", SECRET.shape)[:math.prod(shape)] if rng.random() < 0.7 else (
            h5py.VirtualSource(path, target, shape))
        group.create_virtual_dataset(name, layout, fillvalue=1)

    return rng.choice((external, external, soft, soft, ring, cycle, stored, virtual, virtual))


def odd_tree(tree, rng):
    """Return a copy of a tree for `hdf5` with one entry missing, renamed or replaced by something odd or a link."""
    tree = {name: dict(value) if isinstance(value, dict) else value for name, value in tree.items()}
    place = tree
    while True:
        name = rng.choice(list(place)) if place else None
        if name is None or not isinstance(place[name], dict) or rng.random() < 0.2:
            break
        place[name] = dict(place[name])
        place = place[name]
    if name is not None:
        value = place.pop(name)
        kind = rng.randrange(8)
        if kind == 1:
            place[rng.choice(("0", "1", "7", "-1", "x", "data", "iter", "ö", "L" * 300))] = value
        elif kind > 1:
            place[name] = link(value, rng) if rng.random() < 0.4 else rng.choice(ODD)
    return tree
