"""Write docs/pictures/preprocessing/: what the fields in the tables of docs/preprocessing.md make of a picture.

The fields are read from the page. An ImageData layer in phase TRAIN applies them to a picture that is drawn here.

Needs OpenCV (``pip install "minicaffe[images]"``).
"""

import re
import tempfile
from pathlib import Path

import numpy as np

import minicaffe as caffe
from minicaffe.cli.pictures import write_png

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "preprocessing.md"
FOLDER = PAGE.parent / "pictures" / "preprocessing"
HEIGHT, WIDTH, ENLARGED = 60, 80, 2     # pixels; each becomes a square of so many in the file
SEED = 7


def draw_picture():
    """Return a house, a sun and a meadow, uint8 of (60, 80, 3), RGB."""
    image = np.full((HEIGHT, WIDTH, 3), (120, 180, 240), np.uint8)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    image[y > 44] = 70, 150, 60
    image[(y - 12) ** 2 + (x - 64) ** 2 < 64] = 250, 210, 50
    image[(y > 28) & (y < 50) & (x > 12) & (x < 44)] = 200, 60, 50
    image[(y <= 28) & (y > 14) & (abs(x - 28) < (y - 14) * 1.4)] = 110, 50, 40
    image[(y > 34) & (y < 50) & (x > 17) & (x < 26)] = 60, 40, 30
    image[(y > 33) & (y < 41) & (x > 31) & (x < 40)] = 240, 240, 200
    return image


def fields_on_page():
    """Return the transform_param of each picture of the page, by the name of its file; those of text are not in it."""
    rows = re.findall(r"^\| (.*) \| !\[.*?\]\(pictures/preprocessing/(\w+)\.png\) \|$", PAGE.read_text(), re.M)
    return {name: (re.match(r"`(.*?)`", text) or [None, ""])[1] for text, name in rows}


def transform(picture, fields):
    """Return what an ImageData layer with `fields` as transform_param makes of a picture (H, W, 3), RGB: float32, RGB."""
    with tempfile.TemporaryDirectory() as folder:
        write_png(f"{folder}/picture.png", picture)
        Path(folder, "list.txt").write_text(f"{folder}/picture.png 0\n")
        Path(folder, "net.prototxt").write_text(f"""layer {{ name: "p" type: "ImageData" top: "data" top: "label"
            transform_param {{ {fields} }} image_data_param {{ source: "{folder}/list.txt" batch_size: 1 }} }}""")
        caffe.set_random_seed(SEED)
        net = caffe.Net(f"{folder}/net.prototxt", caffe.TRAIN)
        net.forward()
        return net.blobs["data"].data[0, ::-1].transpose(1, 2, 0).copy()


def make_picture(name, fields):
    """Return a picture of the page, uint8 of (H, W, 3), RGB."""
    picture = draw_picture()
    if name == "swapped":
        return picture[:, :, ::-1]
    values = transform(picture, fields)
    if "mean_value" in fields:      # 0 is shown as gray
        values += 128 if name == "mean" else np.float32(re.search(r"mean_value: (\d+)", fields)[1])
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def main():
    """Write all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name, fields in fields_on_page().items():
        write_png(str(FOLDER / f"{name}.png"), make_picture(name, fields).repeat(ENLARGED, 0).repeat(ENLARGED, 1))


if __name__ == "__main__":
    main()
