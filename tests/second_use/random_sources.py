"""Random sources of data: their files, and the text of a layer that reads them."""

from functools import partial

import cv2
import h5py
import numpy as np

from minicaffe.data.db import open_db
from minicaffe.proto import caffe_pb2


class Source:
    """A random source, but for what is `fixed`; `write` makes its files in a folder and returns the text of its layer."""

    def __init__(self, write, dice, folder, **fixed):
        self.dice, self.folder, self.fixed, self.tops = dice, folder, fixed, 2
        self.random = np.random.default_rng(dice.randrange(1 << 30))
        self.count, self.batch_size = self.choose("count", range(1, 10)), self.choose("batch_size", [1, 2, 3, 5, 8])
        self.prefetch = f"prefetch: {self.choose('depth', [1, 2, 4, 7])}"
        folder.mkdir()
        self.text = write(self)

    def choose(self, name, values):
        return self.fixed.get(name, self.dice.choice(values))

    def draw_pictures(self, crops=(None, None, (4, 4), (3, 5), (1, 1), (6, 6))):
        """Random pictures of one size, or with a crop of several."""
        dice, sizes = self.dice, [(6, 6), (7, 6), (6, 9), (8, 8)]
        self.crop, self.size = dice.choice(crops), dice.choice(sizes)
        self.one_size = self.crop is None or dice.random() < 0.5
        self.pictures = [self.random.integers(0, 256, (*(self.size if self.one_size else dice.choice(sizes)), 3), np.uint8) for _ in range(self.count)]

    def transform_text(self, channels, more=""):
        dice = self.dice
        words = [dice.choice(["", "mirror: true"]), dice.choice(["", "scale: 0.5", "scale: 0.00390625"])]
        if self.crop is not None:
            h, w = self.crop
            words.append(f"crop_size: {h}" if h == w and dice.random() < 0.6 else f"crop_h: {h} crop_w: {w}")
        kind = dice.choice(["none", "one", "each", "file"] if self.one_size else ["none", "one", "each"])
        if kind in ("one", "each"):
            words += [f"mean_value: {100.5 + 20 * i}" for i in range(channels if kind == "each" else 1)]
        elif kind == "file":
            mean = self.random.uniform(0, 200, channels * self.size[0] * self.size[1])
            blob = caffe_pb2.BlobProto(num=1, channels=channels, height=self.size[0], width=self.size[1], data=mean.tolist())
            (self.folder / "mean.binaryproto").write_bytes(blob.SerializeToString())
            words.append(f'mean_file: "{self.folder}/mean.binaryproto"')
        return f"transform_param {{ {' '.join(words)} {more} }}"

    def write_db(self, backend, records):
        with open_db(str(self.folder / "db"), backend, "w") as db:
            for i, record in enumerate(records):
                db.put(b"%08d" % i, record.SerializeToString())
        return f'source: "{self.folder}/db" backend: {backend} batch_size: {self.batch_size} {self.prefetch}'


def gray(picture):
    return cv2.cvtColor(picture, cv2.COLOR_BGR2GRAY)[..., None]


def encoded(picture):
    return cv2.imencode(".png", picture)[1].tobytes()


def database(backend, source):
    dice = source.dice
    source.draw_pictures()
    kind = dice.choice(["raw", "raw", "float", "encoded", "force_color: true", "force_gray: true", "raw gray"])
    records, source.tops = [], dice.choice([1, 2, 2])
    for i, picture in enumerate(source.pictures):
        picture = gray(picture) if kind == "raw gray" or kind.startswith("force") and i % 2 else picture
        height, width, channels = picture.shape
        record = caffe_pb2.Datum(label=int(source.random.integers(-3, 1000)))
        if kind == "encoded" or kind.startswith("force"):
            record.encoded, record.data = True, encoded(picture)
        else:
            record.height, record.width, record.channels = height, width, channels
            planes = picture.transpose(2, 0, 1)
            if kind == "float":
                record.float_data.extend((planes / np.float32(7)).ravel().tolist())
            else:
                record.data = planes.tobytes()
        records.append(record)
    more = kind if kind.startswith("force") else ""
    return (f'type: "Data" data_param {{ {source.write_db(backend, records)} rand_skip: {dice.choice([0, 3])} }} '
            + source.transform_text(1 if "gray" in kind else 3, more))


def pictures(source):
    dice = source.dice
    source.draw_pictures()
    color, root, width = dice.random() < 0.7, dice.random() < 0.4, dice.choice([None, None, 1, 3])
    resize = dice.choice([None, None, (7, 6)])
    if resize:
        source.size, source.one_size = resize, True
    lines = []
    for i, picture in enumerate(source.pictures):
        cv2.imwrite(str(source.folder / f"{i}.png"), gray(picture) if dice.random() < 0.3 else picture)
        labels = source.random.integers(-50, 50, width or 1) / (4 if width else 1)
        lines.append(f"{'' if root else f'{source.folder}/'}{i}.png " + " ".join(f"{label:g}" for label in labels) + "\n")
    (source.folder / "list.txt").write_text("".join(lines))
    words = [f'root_folder: "{source.folder}/"'] * root + [f"label_size: {width}"] * (width is not None)
    words += [f"new_height: {resize[0]} new_width: {resize[1]}"] if resize else []
    shuffle = source.choose("shuffle", [True, True, False])
    return (f'type: "ImageData" image_data_param {{ source: "{source.folder}/list.txt" batch_size: {source.batch_size} rand_skip: {dice.choice([0, 0, 1, 5, 40])} '
            f"shuffle: {str(shuffle).lower()} is_color: {str(color).lower()} {' '.join(words)} }} data_param {{ {source.prefetch} }} "
            + source.transform_text(3 if color else 1))


def windows(source):
    dice, side, lines = source.dice, source.dice.choice([3, 5]), []
    for i in range(source.count):
        height, width = dice.randint(side, 9), dice.randint(side, 9)
        cv2.imwrite(str(source.folder / f"{i}.png"), source.random.integers(0, 256, (height, width, 3), np.uint8))
        rows = []
        for k in range(dice.randint(0, 4) if i else 8):
            overlap = [0, 1][k] if k < 2 and not i else dice.choice([0, 0.1, 0.3, 0.5, 0.6, 0.7, 1])
            left, top = dice.randint(0, width - side), dice.randint(0, height - side)
            rows.append(f"{dice.randint(1, 9)} {overlap} {left} {top} {left + side - 1} {top + side - 1}\n")
        lines.append(f"# {i}\n{source.folder}/{i}.png\n3\n{height}\n{width}\n{len(rows)}\n{''.join(rows)}")
    (source.folder / "windows.txt").write_text("".join(lines))
    words = [dice.choice(["", "mirror: true"]), dice.choice(["", "mean_value: 30.5", "mean_value: 1 mean_value: 2 mean_value: 3"])]
    return (f'type: "WindowData" window_data_param {{ source: "{source.folder}/windows.txt" batch_size: {source.batch_size} '
            f"fg_fraction: {dice.choice([0, 0.25, 0.34, 0.5, 1])} fg_threshold: {dice.choice([0.5, 0.7])} bg_threshold: {dice.choice([0.3, 0.5])} "
            f"cache_images: {dice.choice(['true', 'false'])} }} transform_param {{ crop_size: {side} {' '.join(words)} }} data_param {{ {source.prefetch} }}")


def boxes(source):
    dice, records = source.dice, []
    source.draw_pictures([None])
    for picture in source.pictures:
        record = caffe_pb2.AnnotatedDatum(type=caffe_pb2.AnnotatedDatum.BBOX)
        record.datum.CopyFrom(caffe_pb2.Datum(encoded=True, data=encoded(picture)))
        for _ in range(dice.randint(0, 2)):
            group = record.annotation_group.add(group_label=dice.randint(1, 9))
            for k in range(dice.randint(0, 2)):
                (left, right), (top, bottom) = np.sort(source.random.uniform(0, 1, (2, 2)), 1)
                group.annotation.add(instance_id=k, bbox=dict(xmin=left, ymin=top, xmax=right, ymax=bottom, difficult=dice.random() < 0.3))
        records.append(record)
    return f'type: "AnnotatedData" data_param {{ {source.write_db("LMDB", records)} }} annotated_data_param {{ }} {source.transform_text(3)}'


def tables(source):
    source.lengths = source.choose("lengths", [[3, 1, 3], [5], [1, 1, 2], [2, 4, 1, 5]])
    source.tops, shuffle = source.dice.choice([1, 2]), source.choose("shuffle", [True, True, False])
    for i, length in enumerate(source.lengths):
        rows = source.random.uniform(-1, 1, (length, 2, 3)).astype(np.float32)
        with h5py.File(source.folder / f"{i}.h5", "w") as file:
            file["data"], file["label"] = rows, rows[:, 0, 0]
    (source.folder / "files.txt").write_text(source.dice.choice([" ", "\n", "\n\n"]).join(f"{source.folder}/{i}.h5" for i in range(len(source.lengths))))
    return f'type: "HDF5Data" hdf5_data_param {{ source: "{source.folder}/files.txt" batch_size: {source.batch_size} shuffle: {str(shuffle).lower()} }}'


def video(source):
    source.crop, source.one_size, source.size = source.dice.choice([None, (5, 5), (20, 31)]), True, (32, 32)
    writer = cv2.VideoWriter(str(source.folder / "film.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 10.0, source.size)
    for picture in source.random.integers(0, 256, (7, 8, 8, 3), np.uint8):
        writer.write(cv2.resize(picture, source.size))
    writer.release()
    return (f'type: "VideoData" video_data_param {{ video_type: VIDEO video_file: "{source.folder}/film.avi" skip_frames: 1 }} '
            f"data_param {{ batch_size: {source.batch_size} {source.prefetch} }} {source.transform_text(3)}")


SOURCES = {"Data": partial(database, "LMDB"), "ImageData": pictures, "WindowData": windows, "AnnotatedData": boxes, "VideoData": video, "HDF5Data": tables,
           "LevelDB": partial(database, "LEVELDB")}
