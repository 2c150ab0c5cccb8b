"""Files with seven records for each kind of source, and plain models of what a source must give of them."""

import importlib.util

import cv2
import h5py
import numpy as np

from minicaffe.common import TRAIN
from minicaffe.data.db import open_db
from minicaffe.data.transform import draw
from minicaffe.proto import caffe_pb2

COUNT, SIDE, CROP = 7, 8, 5
FILES = {"a": 3, "b": 1, "c": 3}        # of HDF5, with so many rows
SKIPPED = 1                             # frames of the video between two
OBJECTS, BACKGROUND = range(0, COUNT), range(0, COUNT, 2)   # pictures with such a window
CUT = f"transform_param {{ crop_size: {CROP} mirror: true scale: 0.5 }}"


def make_files(folder):
    """Write all files into a folder; return what they hold by name."""
    dice = np.random.default_rng(4)
    pictures = dice.integers(0, 256, (COUNT, SIDE, SIDE, 3), np.uint8)
    made = {"pictures": pictures, "boxes": [dice.uniform(0.1, 0.9, (i % 3, 4)).astype(np.float32) for i in range(COUNT)]}
    records = [caffe_pb2.Datum(channels=3, height=SIDE, width=SIDE, label=i, data=picture.transpose(2, 0, 1).tobytes())
               for i, picture in enumerate(pictures)]
    for kind in ("LMDB", "LEVELDB") if importlib.util.find_spec("plyvel") else ("LMDB",):     # tests of LevelDB skip without
        write_db(folder / kind, kind, records)
    annotated = [caffe_pb2.AnnotatedDatum(type=caffe_pb2.AnnotatedDatum.BBOX, datum=record) for record in records]
    for i, (record, boxes) in enumerate(zip(annotated, made["boxes"])):
        group = record.annotation_group.add(group_label=i + 1)
        for box in boxes:
            group.annotation.add(bbox=dict(zip(("xmin", "ymin", "xmax", "ymax"), np.sort(box.reshape(2, 2), 0).ravel().tolist())))
    write_db(folder / "boxes", "LMDB", annotated)
    for i, picture in enumerate(pictures):
        cv2.imwrite(str(folder / f"{i}.png"), picture)
    (folder / "list.txt").write_text("".join(f"{folder}/{i}.png {i}\n" for i in range(COUNT)))
    (folder / "real.txt").write_text("".join(f"{folder}/{i}.png {i + 0.5} {-i}\n" for i in range(COUNT)))
    (folder / "windows.txt").write_text("".join(
        f"# {i}\n{folder}/{i}.png\n3\n{SIDE}\n{SIDE}\n{1 + (i in BACKGROUND)}\n{i + 1} 0.9 0 1 {CROP - 1} {CROP}\n"
        + f"1 0.1 1 0 {CROP} {CROP - 1}\n" * (i in BACKGROUND) for i in OBJECTS))
    writer = cv2.VideoWriter(str(folder / "film.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 10.0, (4 * SIDE, 4 * SIDE))
    for picture in pictures:
        writer.write(cv2.resize(picture, (4 * SIDE, 4 * SIDE)))
    writer.release()
    capture = cv2.VideoCapture(str(folder / "film.avi"))
    made["frames"] = [capture.read()[1] for _ in range(COUNT)]
    made["rows"] = {}
    for name, count in FILES.items():
        rows = made["rows"][name] = dice.uniform(-1, 1, (count, 2)).astype(np.float32)
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["data"], file["label"] = rows, rows[:, 0]
    (folder / "files.txt").write_text(" ".join(f"{folder}/{name}.h5" for name in FILES))
    return made


def write_db(path, kind, records):
    with open_db(str(path), kind, "w") as db:
        for i, record in enumerate(records):
            db.put(b"%08d" % i, record.SerializeToString())


class Model:
    """What a source gives: `text` is its layer, for a batch size and a depth of the prefetch thread; `files` is of `make_files`."""

    made = None

    def first(self, seed):
        """Return the number of the record that a new source begins with."""
        return 0

    def state(self, seed, position):
        """Return the state of a source that is there."""
        return {"seed": seed, "position": position}

    def record(self, seed, number, phase):
        """Return data and label of a record."""
        raise NotImplementedError

    def batch(self, seed, numbers, phase, start=0, together=0):
        """Return the tops of records; all processes have one batch of `together` records together, which begins at record `start`."""
        data, labels = zip(*(self.record(seed, number, phase) for number in numbers))
        return np.stack(data), np.stack(labels)


class DataModel(Model):
    text = f'type: "Data" data_param {{ source: "FOLDER/LMDB" backend: LMDB batch_size: BATCH prefetch: DEPTH }} {CUT}'

    def record(self, seed, number, phase):
        i = number % COUNT
        return 0.5 * cut(self.made["pictures"][i], seed, number, phase), i


class LevelDBModel(DataModel):
    text = DataModel.text.replace("LMDB", "LEVELDB")


class ImageModel(Model):
    text = (f'type: "ImageData" image_data_param {{ source: "FOLDER/list.txt" batch_size: BATCH shuffle: true rand_skip: 20 }} {CUT} '
            "data_param { prefetch: DEPTH }")

    def first(self, seed):
        return draw(seed, 2**64 - 1, 0, 20)

    def index(self, seed, number):
        epoch, place = divmod(number, COUNT)
        return int(np.random.Generator(np.random.Philox(key=np.array([seed % 2**64, epoch], np.uint64))).permutation(COUNT)[place])

    def record(self, seed, number, phase):
        i = self.index(seed, number)
        return 0.5 * cut(self.made["pictures"][i], seed, number, phase), i


class RealLabelsModel(ImageModel):
    """Not shuffled, gray to none, with labels that are real numbers."""

    text = (f'type: "ImageData" image_data_param {{ source: "FOLDER/real.txt" batch_size: BATCH label_size: 2 }} {CUT} '
            "data_param { prefetch: DEPTH }")

    def first(self, seed):
        return 0

    def index(self, seed, number):
        return number % COUNT

    def record(self, seed, number, phase):
        data, i = super().record(seed, number, phase)
        return data, (i + 0.5, -i)


class AnnotatedModel(Model):
    text = ('type: "AnnotatedData" data_param { source: "FOLDER/boxes" backend: LMDB batch_size: BATCH prefetch: DEPTH } '
            "annotated_data_param { } transform_param { mirror: true }")

    def batch(self, seed, numbers, phase, start=0, together=0):
        data, rows = [], []
        for i, number in enumerate(numbers):
            index, flip = number % COUNT, draw(seed, number, 0, 2)
            data.append(cut(self.made["pictures"][index], seed, number, phase, SIDE))
            for box in self.made["boxes"][index]:
                left, top, right, bottom = np.sort(box.reshape(2, 2), 0).ravel()
                rows.append((i, index + 1, 0, *((1 - right, top, 1 - left, bottom) if flip else (left, top, right, bottom)), 0))
        return np.stack(data), np.array(rows or [[-1] * 8])[None, None]


class WindowModel(Model):
    """Each window has the size of what comes out, so that it is cut out and not resized."""

    text = ('type: "WindowData" window_data_param { source: "FOLDER/windows.txt" batch_size: BATCH fg_fraction: 0.4 cache_images: true } '
            f"transform_param {{ crop_size: {CROP} mirror: true }} data_param {{ prefetch: DEPTH }}")

    def batch(self, seed, numbers, phase, start=0, together=0):
        data, labels = [], []
        for number in numbers:
            background = (number - start) % together < together - int(np.float32(together) * np.float32(0.4))
            table = BACKGROUND if background else OBJECTS
            index = table[draw(seed, number, 1, len(table))]
            piece = self.made["pictures"][index][0:CROP, 1:CROP + 1] if background else self.made["pictures"][index][1:CROP + 1, 0:CROP]
            data.append((piece[:, ::-1] if draw(seed, number, 0, 2) else piece).transpose(2, 0, 1))
            labels.append(0 if background else index + 1)
        return np.stack(data), np.array(labels)


class VideoModel(Model):
    text = (f'type: "VideoData" video_data_param {{ video_type: VIDEO video_file: "FOLDER/film.avi" skip_frames: {SKIPPED} }} '
            f"data_param {{ batch_size: BATCH prefetch: DEPTH }} {CUT}")

    def record(self, seed, number, phase):
        return 0.5 * cut(self.made["frames"][number * (SKIPPED + 1) % COUNT], seed, number, phase), 0


class HDF5Model(Model):
    text = 'type: "HDF5Data" hdf5_data_param { source: "FOLDER/files.txt" batch_size: BATCH shuffle: true }'

    def place(self, seed, number):
        """Return the epoch, the place of the file in it, the number of its rows that are before, and its name."""
        epoch, row = divmod(number, COUNT)
        for place, i in enumerate(np.random.default_rng([seed, epoch]).permutation(len(FILES))):
            name = list(FILES)[i]
            if row < FILES[name]:
                return epoch, place, row, name
            row -= FILES[name]
        raise AssertionError(number)

    def record(self, seed, number, phase):
        epoch, place, row, name = self.place(seed, number)
        values = self.made["rows"][name][np.random.default_rng([seed, epoch, place + 1]).permutation(FILES[name])[row]]
        return values, values[0]


class OrderedHDF5Model(HDF5Model):
    text = HDF5Model.text.replace(" shuffle: true", "")

    def place(self, seed, number):
        epoch, row = divmod(number, COUNT)
        place = 0 if row < 3 else 1 if row < 4 else 2
        return epoch, place, row - (0, 3, 4)[place], "abc"[place]

    def record(self, seed, number, phase):
        _, _, row, name = self.place(seed, number)
        return self.made["rows"][name][row], self.made["rows"][name][row][0]


def cut(picture, seed, number, phase, size=CROP):
    """Return the part of a picture that a record shows, as (channels, height, width)."""
    height, width = picture.shape[:2]
    top, left = (height - size) // 2, (width - size) // 2
    if phase == TRAIN and size < height:
        top, left = draw(seed, number, 1, height - size + 1), draw(seed, number, 2, width - size + 1)
    part = picture[top:top + size, left:left + size]
    return (part[:, ::-1] if draw(seed, number, 0, 2) else part).transpose(2, 0, 1).astype(np.float32)


MODELS = {"Data": DataModel, "LevelDB": LevelDBModel, "ImageData": ImageModel, "real labels": RealLabelsModel, "AnnotatedData": AnnotatedModel,
          "WindowData": WindowModel, "VideoData": VideoModel, "HDF5Data": HDF5Model, "HDF5Data in order": OrderedHDF5Model}
