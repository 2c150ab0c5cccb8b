"""Sources of ranks that train together: the records of one process with all of their batches, at the start and after a resume."""

import h5py
import numpy as np
import pytest
import ranks

from minicaffe.common import TRAIN
from minicaffe.data.db import open_db
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text
from minicaffe.solver import create_solver

cv2 = pytest.importorskip("cv2")

RECORDS, BATCH, STEPS = 7, 2, 5
# No random_seed: each rank has seeds and orders of its own until it takes those of rank 0.
SOURCES = """
layer { name: "db" type: "Data" top: "data" top: "label" data_param { source: "%(folder)s/db" batch_size: %(batch)d backend: LMDB }
  transform_param { crop_size: 5 mirror: true } }
layer { name: "list" type: "ImageData" top: "picture" top: "picture_label" image_data_param { source: "%(folder)s/list.txt"
  shuffle: true rand_skip: 5 batch_size: %(batch)d } transform_param { crop_size: 5 mirror: true } }
layer { name: "rows" type: "HDF5Data" top: "row" hdf5_data_param { source: "%(folder)s/files.txt" shuffle: true batch_size: %(batch)d } }
"""
NET = SOURCES + """
layer { name: "noise" type: "DummyData" top: "noise" dummy_data_param { shape { dim: 1 } data_filler { type: "uniform" } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 1 } }
layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "row" top: "loss" }
"""
TOPS = ("data", "label", "picture", "picture_label", "row")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("shared"), np.random.default_rng(0)
    pictures = random.integers(0, 256, (RECORDS, 3, 8, 8), np.uint8)
    with open_db(folder / "db", "LMDB", "w") as db:
        for i, picture in enumerate(pictures):
            datum = caffe_pb2.Datum(channels=3, height=8, width=8, data=picture.tobytes(), label=i)
            db.put(b"%03d" % i, datum.SerializeToString())
            cv2.imwrite(str(folder / f"{i}.png"), picture.transpose(1, 2, 0))
    (folder / "list.txt").write_text("".join(f"{folder}/{i}.png {i}\n" for i in range(RECORDS)))
    for name, first, last in (("a", 0, 4), ("b", 4, RECORDS)):
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["row"] = np.arange(first, last, dtype=np.float32).reshape(-1, 1)
    (folder / "files.txt").write_text(f"{folder}/a.h5 {folder}/b.h5")
    return str(folder)


def states(net):
    return {layer.name: state for layer in net.layers if (state := layer.get_state()) is not None}


def records(net):
    """The records of the batch that a net has run last, each as a list of numbers, by source."""
    blobs = [net.blobs[name].cpu_data.reshape(len(net.blobs["row"].cpu_data), -1) for name in TOPS]
    return [[row.tolist() for row in np.concatenate(part, axis=1)] for part in (blobs[:2], blobs[2:4], blobs[4:])]


def train(folder, resume):
    """Take some steps; return states before, the records of each step, states after, and what the log said of the sources."""
    messages = ranks.heard("minicaffe.layers.data.sources", "INFO")
    param = parse_text("base_lr: 0.0001 lr_policy: 'fixed'", caffe_pb2.SolverParameter)[0]
    param.snapshot_prefix = f"{folder}/run"
    param.net_param.CopyFrom(parse_text(NET % {"folder": folder, "batch": BATCH}, caffe_pb2.NetParameter)[0])
    solver = create_solver(param)
    solver.distribute()
    if resume:
        solver.restore(f"{folder}/run_iter_{STEPS}.solverstate")
    before, seen = states(solver.net), []
    for _ in range(STEPS):
        solver.step(1)
        seen.append(records(solver.net))
    if not resume:
        solver.snapshot()
    return [before, seen, states(solver.net), messages]


def test_ranks_share_records_and_resume(folder):
    ended = None
    for count, resume in ((2, False), (3, True)):
        together = ranks.run(count, __file__, "train", folder, resume)
        before, _, after, _ = together[0]
        text = parse_text(SOURCES % {"folder": folder, "batch": count * BATCH}, caffe_pb2.NetParameter)[0]
        text.state.phase = TRAIN
        alone = Net(text)
        for layer in alone.layers:
            layer.set_state(before[layer.name])
        for step in range(STEPS):
            first = [layer.position for layer in alone.layers]
            alone.forward_from_to(0, 2)
            for source, wanted in enumerate(records(alone)):
                found = [together[(first[source] + i) % count][1][step][source][i // count] for i in range(count * BATCH)]
                assert found == wanted
        assert all((rank[0], rank[2]) == (before, states(alone)) for rank in together)
        assert all(rank[3] == ["layer 'noise' (DummyData) gives each rank what it is given"] for rank in together)
        assert ended in (None, before)
        ended = after
