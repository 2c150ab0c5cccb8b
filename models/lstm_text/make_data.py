"""Turn texts into the HDF5 files that net.prototxt reads.

    python models/lstm_text/make_data.py [TEXT ...] [--out data] [--streams 32]

Without names the Markdown pages of the checkout are the text; the last tenth is for tests. The text is cut into as many
streams as the batch has sequences, side by side: row t of the datasets holds character t of every stream (data), the one
after it (label), and cont, which is 0 only where a stream begins. So a batch of 32 rows goes on where the one before ended.
"""

import argparse
from pathlib import Path

import h5py
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))  # their places are the numbers that the net sees; others become "?"
STEPS = 32  # rows of a batch, as in make.py


def encode(text):
    """Return the numbers of the characters of `text`."""
    places = {character: place for place, character in enumerate(CHARACTERS)}
    return np.array([places.get(character, places["?"]) for character in text], np.float32)


def decode(numbers):
    """Return the text of an array of numbers."""
    return "".join(CHARACTERS[int(number)] for number in numbers)


def streams(numbers, count):
    """Return data, label and cont, each of shape (rows, count), rows a multiple of STEPS.

    Raises
    ------
    ValueError
        If the text is too short for one batch.
    """
    rows = (len(numbers) - 1) // count // STEPS * STEPS
    if rows == 0:
        raise ValueError(f"{len(numbers)} characters are too few for {count} streams of {STEPS}: at least {count * STEPS + 1}; "
                         "give more text or fewer --streams")
    data = numbers[:rows * count].reshape(count, rows).T
    label = numbers[1:rows * count + 1].reshape(count, rows).T
    cont = np.ones_like(data)
    cont[0] = 0
    return data, label, cont


def write(folder, split, numbers, count):
    """Write text_<split>.h5 and the list text_<split>.txt that names it."""
    file = folder / f"text_{split}.h5"
    with h5py.File(file, "w") as hdf5:
        for name, array in zip(("data", "label", "cont"), streams(numbers, count)):
            hdf5[name] = array
    (folder / f"text_{split}.txt").write_text(f"{file}\n")
    print(f"{file}: {array.shape[0]} rows of {count}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("texts", nargs="*", type=Path, help="default: README.md and docs/*.md")
    parser.add_argument("--out", type=Path, default=Path("data"), help="folder for the files (default: data)")
    parser.add_argument("--streams", type=int, default=32, help="sequences of a batch (default: 32)")
    arguments = parser.parse_args()
    texts = arguments.texts or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    numbers = encode("".join(path.read_text(encoding="utf-8", errors="replace") for path in texts))
    arguments.out.mkdir(parents=True, exist_ok=True)
    test = len(numbers) // 10
    write(arguments.out, "train", numbers[:-test], arguments.streams)
    write(arguments.out, "test", numbers[-test:], min(arguments.streams, 8))


if __name__ == "__main__":
    main()
