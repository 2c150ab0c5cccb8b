"""docs/your_own_pictures.md: its commands, in their order, lead from a folder of pictures to the name of a class."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from five_users import write_pictures
from tiny import PATIENCE

cv2 = pytest.importorskip("cv2")
PAGE = Path(__file__).parents[2] / "docs" / "your_own_pictures.md"
MOST = 6  # commands


def run_commands(text, folder):
    """Run the commands of a part of the page; return the last one's process."""
    commands = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    assert 4 <= len(commands) <= MOST
    for command in commands:
        if command.startswith("minicaffe train"):
            command = command.rstrip() + " --seed 1"
        command = re.sub("^minicaffe ", f"{sys.executable} -m minicaffe ", re.sub("^python ", f"{sys.executable} ", command))
        done = subprocess.run(["bash", "-c", command], cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True,
                              text=True, timeout=4 * PATIENCE)
        assert done.returncode == 0, f"{command}: {done.stderr[-2000:]}"
    return done


@pytest.fixture
def parts(device):
    """The page before and after it comes to numbers."""
    if device == "sim":
        pytest.skip("minutes on the simulated device")
    return PAGE.read_text().split("\n## Numbers in place of classes\n")


@pytest.mark.slow(3)
def test_the_commands_of_the_page(tmp_path, parts):
    write_pictures(tmp_path)
    done = run_commands(parts[0], tmp_path)
    assert "as in net.prototxt" in done.stderr and "flowers/labels.txt" in done.stderr
    picture, best, second = done.stdout.splitlines()
    assert picture == "pictures/rose/1.jpg:" and best.split()[1] == "rose" and second.split()[1] == "tulip"
    assert float(best.split()[0]) > 0.8
    assert cv2.imread(str(tmp_path / "sheet.png")) is not None


def test_the_commands_for_numbers(tmp_path, parts):
    (tmp_path / "numbers.txt").write_text(write_pictures(tmp_path))
    done = run_commands(parts[1], tmp_path)
    values = np.array([line.split() for line in done.stdout.splitlines()], float)
    predicted, wanted = values[:, :2], values[:, 2:]
    assert values.shape == (16, 4) and np.abs(predicted - wanted).mean() < 0.3 * np.abs(wanted - wanted.mean(axis=0)).mean()
