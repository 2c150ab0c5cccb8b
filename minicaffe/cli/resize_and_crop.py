"""``minicaffe resize_and_crop``: pictures resized and cropped to one square size (Caffe tools/extra/resize_and_crop_images.py).

The shorter side is resized to the target length, then the middle square is cropped. Caffe runs mincepie clients; this command
uses threads.
"""

import os
from concurrent.futures import ThreadPoolExecutor, as_completed

import click

from minicaffe.cli import bars, options
from minicaffe.cli.inputs import SkippedInputs
from minicaffe.data.convert import check_picture
from minicaffe.data.datum import opencv, opencv_decode
from minicaffe.errors import DataError, DependencyError, shown
from minicaffe.proto.atomic import check_free
from minicaffe.proto.files import read_bytes, read_lines


@click.command(cls=options.CaffeCommand)
@click.option("--input", "list_file", required=True, metavar="FILE", help="List file: one picture per line; labels are ignored.")
@click.option("--input_folder", "--input-folder", default="", help="Folder of the pictures.")
@click.option("--output_folder", "--output-folder", required=True, help="Folder for the results, under the same names.")
@click.option("--output_side_length", "--output-side-length", type=click.IntRange(1, options.INT_MAX), default=256,
              show_default=True, help="Width and height of the results.")
@click.option("--image_lib", "--image-lib", type=click.Choice(["opencv", "pil"]), default="opencv", show_default=True,
              help="Library that reads and writes the pictures; pil writes JPEG of quality 75.")
@click.option("--num_clients", "--num-clients", type=click.IntRange(1, options.MOST_THREADS),
              default=min(os.cpu_count() or 1, options.MOST_THREADS), show_default="processors", help="Number of threads.")
@options.force
@options.messages
def resize_and_crop(list_file, input_folder, output_folder, output_side_length, image_lib, num_clients, force):
    """Resize the pictures of a list and crop their middle squares. Pictures that cannot be read are reported and skipped."""
    check_picture((output_side_length,) * 2, "--output_side_length")
    resize_file = {"opencv": opencv_resizer, "pil": pillow_resizer}[image_lib]()
    names = read_names(list_file)
    for name in names:
        check_free(output_path(output_folder, name), force)
    skipped = SkippedInputs(len(names))
    with bars.progress() as report, ThreadPoolExecutor(num_clients) as pool:
        jobs = {pool.submit(resize_file, os.path.join(input_folder, name), output_path(output_folder, name), output_side_length):
                name for name in names}
        for done, job in enumerate(as_completed(jobs), 1):
            if error := job.exception():
                text = " ".join(str(getattr(error, "message", error)).split())
                skipped.report([f"{shown(os.path.join(input_folder, jobs[job]))}: {text}"])
            report("pictures", done, len(names))
    click.echo(f"{output_folder}: {len(names) - skipped.count} pictures")


def read_names(path):
    """Return the names of the pictures of a list file, without the labels."""
    lines = [line.strip() for line in read_lines(path) if line.strip()]
    if not lines:
        raise DataError("the list is empty", file=path)
    return [line.rpartition(" ")[0] if line.rpartition(" ")[0] and line.rpartition(" ")[2].isdecimal() else line for line in lines]


def output_path(folder, name):
    """Return the path of a result: inside `folder`, even if `name` is absolute or contains ``..``."""
    return os.path.join(folder, os.path.normpath("/" + name).lstrip("/"))


def opencv_resizer():
    """Return ``resize_file(source, path, side)``: it reads picture `source` and writes the square of `side` pixels to `path`."""
    cv2 = opencv()

    def resize_file(source, path, side):
        try:
            f"{source}{path}".encode()
        except UnicodeEncodeError:  # bytes that are not UTF-8: OpenCV crashes on such a name
            raise DataError("the name is not UTF-8, and OpenCV takes no others; rename it") from None
        image, why = opencv_decode(read_bytes(source), cv2.IMREAD_COLOR)
        if image is None:
            raise DataError(f"cannot be read as a picture, {why}")
        height, width = image.shape[:2]
        size = (side, side * height // width) if height > width else (side * width // height, side)
        # A long, narrow picture becomes huge before it is cropped.
        check_picture(size, "--output_side_length, before the middle is cut out")
        image = cv2.resize(image, size)
        top, left = (size[1] - side) // 2, (size[0] - side) // 2
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if not cv2.imwrite(path, image[top:top + side, left:left + side]):
            raise DataError(f"cannot be written to {path}")

    return resize_file


def pillow_resizer():
    """Return the same function as `opencv_resizer`, by Pillow."""
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise DependencyError("--image_lib pil needs Pillow: pip install pillow") from None

    def resize_file(source, path, side):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with Image.open(source) as image:
            ImageOps.fit(image.convert("RGB"), (side, side), Image.Resampling.LANCZOS).save(path, "JPEG", quality=75)

    return resize_file
