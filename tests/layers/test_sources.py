"""What sources with numbered records have in common: processes share them, record by record in training, batch by batch in tests."""

import logging

import numpy as np
import pytest

cv2 = pytest.importorskip("cv2")
h5py = pytest.importorskip("h5py")

from annotated import annotated, rectangle, write_annotated  # noqa: E402
from helpers import layer_text, net_solver, one_of  # noqa: E402
from pictures import source_net, write_pictures  # noqa: E402
from test_window_data import OBJECT, windows_of  # noqa: E402

from minicaffe.common import TEST, TRAIN, caffe  # noqa: E402
from minicaffe.errors import ConfigError, DataError, FileError  # noqa: E402
from minicaffe.layer import register_layer  # noqa: E402
from minicaffe.layers.data import hdf5_data  # noqa: E402
from minicaffe.layers.data.sources import NumberedSource, RankSharding, log_undivided_sources, why_not_divisible  # noqa: E402
from minicaffe.proto import caffe_pb2  # noqa: E402

RECORDS, SIZE = 7, 32
RANDOM = "transform_param { crop_size: 24 mirror: true }"
SOURCES = {
    "Data": f'data_param {{ source: "db" backend: LMDB batch_size: %d }} {RANDOM}',
    "AnnotatedData": 'data_param { source: "boxes" backend: LMDB batch_size: %d } transform_param { mirror: true resize_param { '
                     'height: 24 width: 24 } } annotated_data_param { batch_sampler { max_sample: 1 max_trials: 5 sampler { '
                     'min_scale: 0.3 } } }',
    "ImageData": f'image_data_param {{ source: "list.txt" shuffle: true rand_skip: 4 batch_size: %d }} {RANDOM}',
    "WindowData": 'window_data_param { source: "windows.txt" fg_fraction: 0.4 batch_size: %d } transform_param { crop_size: 8 mirror: true }',
    "VideoData": f'video_data_param {{ video_type: VIDEO video_file: "film.avi" skip_frames: 1 }} data_param {{ batch_size: %d }} {RANDOM}',
    "HDF5Data": 'hdf5_data_param { source: "files.txt" shuffle: true batch_size: %d }',
}
every_source = pytest.mark.parametrize("kind", SOURCES)


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A folder with seven records for each source, numbered by their labels."""
    folder = tmp_path_factory.mktemp("sources")
    pictures, random = write_pictures(folder, RECORDS, SIZE, SIZE), np.random.default_rng(1)
    write_annotated(folder / "db", [datum(picture, i) for i, picture in enumerate(pictures)])
    write_annotated(folder / "boxes", [annotated(image, [(i, *box)]) for i in range(RECORDS) for image, box in [rectangle(random)]])
    (folder / "list.txt").write_text("".join(f"{folder}/{i}.png {i}\n" for i in range(RECORDS)))
    (folder / "windows.txt").write_text("".join(
        windows_of(f"{folder}/{i}.png", (i + 1, 0.9, *OBJECT), (1, 0.1, i, i, i + 9, i + 8), number=i) for i in range(RECORDS)))
    video = cv2.VideoWriter(str(folder / "film.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 10.0, (SIZE, SIZE))
    for picture in pictures:
        video.write(picture)
    video.release()
    for name, first, last in (("a", 0, 3), ("b", 3, 4), ("c", 4, RECORDS)):
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["data"], file["label"] = random.random((last - first, 2), np.float32), np.arange(first, last, dtype=np.float32)
    (folder / "files.txt").write_text(" ".join(f"{folder}/{name}.h5" for name in "abc"))
    return folder


def datum(picture, label):
    return caffe_pb2.Datum(label=label, encoded=True, data=cv2.imencode(".png", picture)[1].tobytes()).SerializeToString()


@pytest.fixture
def folder(filled, monkeypatch):
    monkeypatch.chdir(filled)
    return filled


def text(kind, batch):
    return layer_text(kind, "d", tops="data label", more=SOURCES[kind] % batch)


def records_of(net):
    net.forward_from_to(0, len(net.layers) - 1)
    data, label = (blob.cpu_data for blob in net.tops[0])
    if label.ndim == 4:     # rows of boxes, each with the place of its picture
        label = [label[0, 0][label[0, 0, :, 0] == i][:, 1:] for i in range(len(data))]
    return [[*data[i].ravel().tolist(), *np.ravel(label[i]).tolist()] for i in range(len(data))]


def state_of(net):
    return net.layers[0].get_state()


class Counted(NumberedSource):
    batch_size, exact_num_top_blobs = 2, 1

    def reshape(self, bottom, top):
        top[0].reshape(self.batch_size)

    def forward_cpu(self, bottom, top):
        numbers, step = self.records()
        top[0].data[...] = numbers
        self.position += step


def be_rank(monkeypatch, rank, count):
    monkeypatch.setattr(caffe, "solver_count", count)
    monkeypatch.setattr(caffe, "solver_rank", rank)


def test_user_source_shares_records(monkeypatch):
    register_layer("Counted", Counted)
    net = source_net(layer_text("Counted", "n"))
    be_rank(monkeypatch, 1, 3)
    given = [(net.forward_from_to(0, 0), *net.blobs["n"].data)[1:] for _ in range(3)]
    assert given == [(1, 4), (7, 10), (13, 16)] and state_of(net) == {"position": 18}
    net.layers[0].set_state({"position": 7})
    sharding = RankSharding(net, 3, 0)        # 3 batches lie before: it is the turn of rank 0
    sharding.advance_to(0)
    assert (net.forward_from_to(0, 0), *net.blobs["n"].data) == (0, 7, 8)
    sharding.end(2)
    assert state_of(net) == {"position": 11}


def test_rank_and_windows_of_processes(folder, monkeypatch):
    monkeypatch.setattr(caffe, "solver_rank", 1)
    with pytest.raises(ConfigError, match=r"layer 'd' \(Data\): solver_rank: must be from 0 to 0, got 1"):
        source_net(text("Data", 1)).forward_from_to(0, 0)
    monkeypatch.setattr(caffe, "solver_rank", 0)
    net = source_net(text("WindowData", 1).replace("fg_fraction", "fg_threshold: 0.95 fg_fraction"))    # of one window 0.4 are none
    be_rank(monkeypatch, 2, 3)
    with pytest.raises(DataError, match=r"windows.txt: layer 'd' .*has 7 windows of background and 0 of objects, and .* 3 processes"):
        net.forward_from_to(0, 0)


BATCHES = 5     # no multiple of 2 or 3


def scored(net, count, rank, batches=BATCHES):
    """Return the records of the process's batches of a test, by the batch's number."""
    sharding, found = RankSharding(net, count, rank), {}
    for batch in range(batches):
        if (sharding.first + batch) % count == rank:
            sharding.advance_to(batch)
            found[batch] = records_of(net)
    sharding.end(batches)
    return found


@every_source
@pytest.mark.parametrize("phase", [TRAIN, TEST])
@pytest.mark.parametrize("count", one_of(4, [3, 1, 2, 7]))
def test_turns_repeat_batches_of_one(folder, kind, count, phase):
    alone = source_net(text(kind, 2), phase=phase)
    nets = [source_net(text(kind, 2), phase=phase) for _ in range(count)]
    for _ in range(3):
        wanted = dict(enumerate(records_of(alone) for _ in range(BATCHES)))
        found = {}
        for rank, net in enumerate(nets):
            found |= scored(net, count, rank)
        assert found == wanted
        assert [state_of(net) for net in nets] == [state_of(alone)] * count
    assert records_of(nets[-1]) == records_of(alone)


def test_early_end_of_turns(folder):
    for kind in SOURCES:
        net, alone = (source_net(text(kind, 2).replace("rand_skip: 4", ""), phase=TEST) for _ in range(2))
        sharding = RankSharding(net, 2, 1)
        for batch in (1, 3):
            sharding.advance_to(batch)
            records_of(net)
        sharding.end(1)
        records_of(alone)
        assert records_of(net) == records_of(alone)


def test_what_a_process_reads(folder, monkeypatch, tmp_path):
    net = source_net(text("Data", 2), phase=TEST)
    assert list(scored(net, 3, 1)) == [1, 4]
    first = net.layers[0].prefetcher
    assert list(scored(net, 3, 1)) == [2]           # batches 7 of 5 to 9
    assert net.layers[0].prefetcher is first
    assert list(scored(net, 2, 1)) == [1, 3]
    assert net.layers[0].prefetcher is not first
    net, read = source_net(text("HDF5Data", 1).replace("shuffle: true", ""), phase=TEST), []
    monkeypatch.setattr(hdf5_data, "read_array", lambda dataset: read.append(dataset.name) or dataset[...])
    assert [one[0][-1] for one in scored(net, RECORDS, 4, 2 * RECORDS).values()] == [4, 4]
    assert read == ["/data", "/label"]
    monkeypatch.chdir(tmp_path)
    good = datum(np.zeros((SIZE, SIZE, 3), np.uint8), 0)
    write_annotated("db", [good, good, b"\x08", b"\x08"])
    net = source_net(text("Data", 2), phase=TEST)
    assert list(scored(net, 2, 0, 8)) == [0, 2, 4, 6]
    with pytest.raises(DataError, match=r"layer 'd' \(Data\): record 2 \(key '00000002'\): is no Datum"):
        scored(net, 2, 1, 8)


def test_nets_and_sources_not_divided(folder, caplog):
    lstm = ('layer { name: "r" type: "LSTM" bottom: "data" bottom: "label" top: "r" recurrent_param { num_output: 1 '
            'weight_filler { type: "constant" } } }')
    source = text("HDF5Data", 4) + 'layer { name: "s" type: "Reshape" bottom: "label" top: "cont" reshape_param { shape { dim: 2 dim: 2 } } }'
    steps = 'layer { name: "t" type: "Reshape" bottom: "data" top: "steps" reshape_param { shape { dim: 2 dim: 2 dim: 2 } } }'
    assert why_not_divisible(source_net(source)) is None
    net = source_net(source + steps + lstm.replace('"data"', '"steps"').replace('"label"', '"cont"'))
    assert why_not_divisible(net) == "layer 'r' (LSTM) keeps something from one batch to the next"
    blob = 'input_param { shape { dim: 1 } }'
    filler = 'dummy_data_param { shape { dim: 1 } data_filler { type: "%s" } }'
    net = source_net(text("Data", 2) + f'layer {{ name: "given" type: "Input" top: "a" {blob} }}'
                     f'layer {{ name: "noise" type: "DummyData" top: "b" {filler % "gaussian"} }}'
                     f'layer {{ name: "zero" type: "DummyData" top: "c" {filler % "constant"} }}'
                     'layer { name: "learned" type: "Parameter" top: "d" parameter_param { shape { dim: 1 } } }')
    with caplog.at_level(logging.INFO, "minicaffe.layers.data.sources"):
        log_undivided_sources(net)
    assert [r.getMessage() for r in caplog.records if r.name.endswith("sources")] == ["layer 'given' (Input) gives each rank what it is given",
                                                        "layer 'noise' (DummyData) gives each rank what it is given"]
    memory = layer_text("MemoryData", "m", tops="memory number", more="memory_data_param { batch_size: 1 channels: 1 height: 1 width: 1 }")
    net = source_net(text("Data", 2) + memory, phase=TEST)
    net.layers[1].reset(np.arange(10, dtype=np.float32).reshape(10, 1, 1, 1), np.zeros(10, np.float32))
    sharding = RankSharding(net, 3, 2)
    for batch in (2, 5, 8):
        sharding.advance_to(batch) if batch < 8 else sharding.end(8)
        net.forward_from_to(0, 1)
        assert [net.blobs["memory"].cpu_data.item(), *net.blobs["label"].cpu_data] == [batch, 2 * batch % RECORDS, (2 * batch + 1) % RECORDS]


@pytest.mark.parametrize("kind, wrong", [("Data", r"record 3 \(key '00000003'\)"), ("ImageData", "list.txt:4: .*record 3")])
def test_bad_record_named_as_by_one(tmp_path, monkeypatch, kind, wrong):
    monkeypatch.chdir(tmp_path)
    pictures, messages = write_pictures(tmp_path, 4, SIZE, SIZE), []
    write_annotated("db", [*(datum(picture, 0) for picture in pictures[:3]), b"\x08"])
    (tmp_path / "list.txt").write_text("".join(f"{i}.png {i}\n" for i in range(4)))
    (tmp_path / "3.png").unlink()
    for count in (1, 2):
        be_rank(monkeypatch, 0, 1)
        net = source_net(text(kind, 2).replace("shuffle: true rand_skip: 4", ""))
        be_rank(monkeypatch, count - 1, count)
        with pytest.raises((DataError, FileError), match=wrong) as error:
            for _ in range(3):
                net.forward_from_to(0, 0)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


SHAPE = "{ shape { dim: 1 } data_filler { value: 1 } }"
IN_PLACE = {
    "DummyData": f'top: "d" dummy_data_param {SHAPE}',
    "Parameter": 'top: "d" parameter_param { shape { dim: 1 } }',
    "MemoryData": 'top: "d" top: "l" memory_data_param { batch_size: 1 channels: 1 height: 1 width: 1 }',
    "HDF5Data": 'top: "d" hdf5_data_param { source: "ones.txt" batch_size: 1 }',
    "Data": 'top: "d" data_param { source: "one" backend: LMDB batch_size: 1 prefetch: 1 }',
    "ImageData": 'top: "d" top: "l" image_data_param { source: "one.list" batch_size: 1 }',
    "Input": 'top: "d" input_param { shape { dim: 1 } }',
}


@pytest.mark.parametrize("phase", [TRAIN, TEST])
@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("kind", IN_PLACE)
def test_source_overwritten_in_place(tmp_path, monkeypatch, kind, view, phase):
    monkeypatch.chdir(tmp_path)
    cv2.imwrite("one.png", np.ones((1, 1, 3), np.uint8))
    (tmp_path / "one.list").write_text("one.png 1\n")
    write_annotated(tmp_path / "one", [datum(np.ones((1, 1, 3), np.uint8), 1)])
    with h5py.File("ones.h5", "w") as file:
        file["d"] = np.ones((1, 1), np.float32)
    (tmp_path / "ones.txt").write_text("ones.h5")
    more = 'layer { name: "r" type: "Reshape" bottom: "d" top: "e" reshape_param { shape { dim: 1 dim: -1 } } }' * view
    name = "de"[view]
    net = source_net(f'''layer {{ name: "d" type: "{kind}" {IN_PLACE[kind]} }} {more}
        layer {{ name: "x" type: "Power" bottom: "{name}" top: "{name}" power_param {{ scale: 3 }} }}''', phase=phase)
    array = np.ones((1, 1, 1, 1), np.float32)
    if kind == "MemoryData":
        net.layers[0].reset(array, array)
    for blob in net.layers[0].blobs or net.input_blobs:
        blob.data[...] = 1
    found = []
    for _ in range(4):
        net.forward_from_to(0, len(net.layers) - 1)
        found.append(net.blobs[name].data.ravel()[0])
    assert found == ([3, 9, 27, 81] if kind == "Input" else [3, 3, 3, 3])     # the program fills an input
    assert array.item() == 1 and all(blob.data.item() == 1 for blob in net.layers[0].blobs)


@pytest.mark.parametrize("plan", [None, "memory"])
@pytest.mark.parametrize("kind, loss", [("DummyData", 8), ("Parameter", 2)])
def test_source_overwritten_in_training(kind, loss, plan):
    """Also by the CUDA graph that a device may record."""
    solver = net_solver(f'layer {{ name: "d" type: "{kind}" {IN_PLACE[kind]} }}'
                        + layer_text("Reshape", "r", "d", more="reshape_param { shape { dim: [1, -1] } }")
                        + layer_text("Power", "x", "r", "r", "power_param { scale: 3 shift: 1 }")
                        + layer_text("InnerProduct", "i", "r", more="inner_product_param { num_output: 2 weight_filler { value: 1 } }")
                        + layer_text("Reduction", "l", "i", more="loss_weight: 1"), plan, base_lr=0, momentum=0)
    for _ in range(6):
        solver.step(1)
        assert solver.smoothed_loss == loss
