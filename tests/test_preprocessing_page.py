"""The pictures of docs/preprocessing.md are what its fields make of a picture."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

cv2 = pytest.importorskip("cv2")
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("preprocessing_pictures", ROOT / "tools" / "preprocessing_pictures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def made(tool, on_cpu):
    return {name: tool.make_picture(name, fields) for name, fields in tool.fields_on_page().items()}


@pytest.mark.slow(4)
def test_pictures(tool, made):
    assert {path.stem for path in tool.FOLDER.glob("*.png")} == set(made) and len(made) == 10
    for name, expected in made.items():
        picture = cv2.imread(str(tool.FOLDER / f"{name}.png"))[:: tool.ENLARGED, :: tool.ENLARGED, ::-1]
        assert picture.shape == expected.shape, name
        # Releases of OpenCV round resized, blurred and coloured pixels in other ways.
        assert np.abs(picture.astype(int) - expected).mean() <= (4 if name in ("resize", "blur", "distort") else 0), name
    house = tool.draw_picture()
    assert np.array_equal(made["original"], house) and np.array_equal(made["mirror"], house[:, ::-1])
    crop, places = made["crop"], [(y, x) for y in range(13) for x in range(33)]
    assert crop.shape == (48, 48, 3) and any(np.array_equal(crop, house[y:y + 48, x:x + 48]) for y, x in places)
    assert made["resize"].shape == (40, 80, 3)
    assert min(made["expand"].shape[:2]) > 60 and (made["expand"] == 104).all(2).mean() > 0.2
    white = (made["noise"] == 255).all(2)
    assert 0.03 < white.mean() < 0.06 and np.array_equal(made["noise"][~white], house[~white])
    values = tool.transform(house, tool.fields_on_page()["mean"])
    assert np.array_equal(values, house.astype(np.float32) - [123, 117, 104])      # of red, green, blue; the file has blue first
