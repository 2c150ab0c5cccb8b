"""The command line and devices: --device, --gpu, solver_mode, device_query, with a driver and without."""

import re

import pytest
from processes import command
from test_driver import DRIVERLESS

pytestmark = pytest.mark.slow(12)    # all together
CHOSEN = "Use GPU with device ID "


@pytest.mark.parametrize("option", ["--device=sim", "-device=sim"])
def test_train_on_the_simulated_device(folder, option):
    text = command("train", "net.prototxt", "--max-iter", "3", "--display", "1", "--snapshot-after-train", "false", option, cwd=folder)
    assert CHOSEN + "0" in text and "GPU 0: minicaffe simulated device" in text
    assert "Iteration 2" in text and text.count("some 100 times slower than the CPU") == 1


def test_chosen_device(folder, place):
    """By the solver file and by options."""
    for options, device, settings, status, words in (
            ([], place, "", 0, [CHOSEN + "0"]), (["--device", "cpu"], None, "", 0, ["Use CPU"]), (["--gpu", "0"], place, "", 0, [CHOSEN + "0"]),
            (["--gpu", "1"], "sim", "devices=2", 0, [CHOSEN + "1"]), (["--gpu", "x"], place, "", 2, ["--gpu", "'x'"]),
            (["--gpu", "7"], place, "", 1, ["no device 7", "this machine has", "device_query"])):
        text = command("train", "solver.prototxt", *options, cwd=folder, device=device, settings=settings, status=status)
        assert all(word in text for word in words), text


@DRIVERLESS
def test_without_a_driver(folder):
    """A solver file that asks for a GPU trains on the CPU with a message; an option that asks for one is an error."""
    text = command("train", "solver.prototxt", cwd=folder)
    assert "no CUDA driver" in text and "the CPU trains" in text and "Iteration 2" in text
    for option in ["--gpu", "0"], ["--device", "gpu"]:
        text = command("train", "solver.prototxt", *option, cwd=folder, status=1)
        assert "no CUDA driver" in text and "--device sim" in text and "Traceback" not in text


@DRIVERLESS
def test_device_query_without_a_driver():
    text = command("device_query")
    lines = {line.partition(":")[0]: line.partition(":")[2].strip() for line in text.splitlines()}
    assert lines["CUDA driver"].startswith("none: no CUDA driver") and "GPUs" not in lines
    for library, package in ("NVRTC", "nvidia-cuda-nvrtc"), ("cuBLAS", "nvidia-cublas"), ("cuDNN", "nvidia-cudnn-cu13"):
        assert "lib" in lines[library] or lines[library] == f"not found: pip install {package}"


def test_device_query(place):
    settings = "devices=2,memory=1GiB,peers=0-1" if place == "sim" else ""
    text = command("device_query", device=place, settings=settings)
    for label in ("Compute capability", "Total global memory", "Free global memory", "Warp size", "Maximum threads per block",
                  "Maximum dimension of grid", "Number of multiprocessors", "Peers that it reaches"):
        assert label + ":" in text, label
    if place == "sim":
        assert text.count("minicaffe simulated device") == 2 and "9.0" in text and "1,073,741,824 bytes" in text
        assert [line.split()[-1] for line in text.splitlines() if line.startswith("Peers")] == ["1", "0"]


def test_device_failure_in_one_line(folder):
    text = command("train", "solver.prototxt", cwd=folder, device="sim", settings="fail=cuLaunchKernel:20", status=1)
    last = text.strip().splitlines()[-1]
    assert last.startswith("minicaffe: ") and "cuLaunchKernel" in last and "Traceback" not in text


def test_time_and_test_on_a_device(folder, place):
    text = command("time", "net.prototxt", "--iterations", "2", cwd=folder, device=place)
    assert "Average Forward-Backward" in text
    lines = [line for line in text.splitlines() if re.match("layer|the figures", line)]
    assert lines[0].split() == ["layer", "type", "ms", "share", "GB/s", "GFLOP/s"]
    assert lines[1:] == ["the figures are those of the simulated device, which is no GPU"] * (place == "sim")
