"""Build a wheel for other Linux computers, repair it, and test it where there is no compiler.

    python tools/build_wheel.py                 # into dist/, with the platform tag of the oldest glibc that it runs on
    python tools/build_wheel.py --test FILE     # test a wheel that is there, as cibuildwheel does for each Python

auditwheel and patchelf give the wheel its platform tag. The test makes a new environment with no compiler on PATH, installs the
wheel with its dependencies, trains LeNet for 100 iterations, scores and classifies with the weights and with those of the package,
and imports caffe.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
from sources import INSTALLED, copy_models, sources  # noqa: E402

LARGEST = 15 << 20      # bytes of a wheel
COMPILERS = ("gcc", "g++", "cc", "c++", "clang", "clang++", "nvcc")
TRAIN = ["train", "models/lenet/net.prototxt", "--max-iter", "100", "--seed", "1", "--snapshot-prefix", "out/lenet"]
WEIGHTS = "out/lenet_iter_100.caffemodel"
COMMANDS = (
    TRAIN, ["test", "--model", "models/lenet/net.prototxt", "--weights", WEIGHTS],
    ["classify", "models/data/ankle_boot.png", "--model", "models/lenet/deploy.prototxt", "--weights", WEIGHTS],
    ["classify", "models/data/ankle_boot.png"])
SCRIPT = f"""import minicaffe
minicaffe.install_as_caffe()
import caffe
net = caffe.Net("models/lenet/deploy.prototxt", "{WEIGHTS}", caffe.TEST)
assert abs(net.forward()["prob"].sum() - 1) < 1e-4
"""


def run(*words, **options):
    """Run a program; end with its status if it fails."""
    done = subprocess.run([str(word) for word in words], **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: exit status {done.returncode}")


def environment(folder):
    """Make a virtual environment; return the path of its python."""
    venv.create(folder, with_pip=True, symlinks=True)
    return folder / "bin" / "python"


def build(out):
    """Return the path of a new wheel in the folder `out`."""
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        python = environment(place / "venv")
        run(python, "-m", "pip", "install", "--quiet", "auditwheel", "patchelf")
        began = time.perf_counter(), os.times()
        run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", place / "raw", ROOT)
        spent = os.times()
        processors = spent.children_user + spent.children_system - began[1].children_user - began[1].children_system
        print(f"built in {time.perf_counter() - began[0]:.0f} s, {processors:.0f} s of processors")
        path = {**os.environ, "PATH": f"{place / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        raw, = (place / "raw").glob("*.whl")
        run(python, "-m", "auditwheel", "repair", "--wheel-dir", place / "repaired", raw, env=path)
        repaired, = (place / "repaired").glob("*.whl")
        out.mkdir(exist_ok=True)
        return Path(shutil.move(repaired, out / repaired.name))


def missing(names):
    """Return what of the package a wheel with the files `names` lacks: files that are installed, and compiled modules."""
    compiled = {name.partition(".")[0] for name in names if name.endswith(".so")}
    return ([name for name in sources(*INSTALLED) if name not in names]
            + [f"the compiled {name}" for name in sources(".pyx") if name.removesuffix(".pyx") not in compiled])


def check(wheel):
    """End with a message if the wheel is too large, or lacks a part of the package."""
    try:
        size, names = wheel.stat().st_size, set(zipfile.ZipFile(wheel).namelist())
    except (OSError, zipfile.BadZipFile) as error:
        sys.exit(f"{wheel}: cannot be read as a wheel: {error}")
    if lacking := missing(names):
        sys.exit(f"{wheel}: lacks {', '.join(lacking[:5])}" + (f" and {len(lacking) - 5} more" if len(lacking) > 5 else ""))
    if size > LARGEST:
        sys.exit(f"{wheel}: has {size:,} bytes, more than {LARGEST:,}")
    print(f"{wheel.name}: {size / 1e6:.1f} MB, {len(names)} files", flush=True)


def test(wheel):
    """Install the wheel where there is no compiler, train and run a model."""
    check(wheel)
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        python = environment(place / "venv")
        copy_models(place / "models", "lenet", "data")
        (place / "out").mkdir()
        own = {key: value for key, value in os.environ.items() if key not in ("CC", "CXX", "PYTHONPATH")}
        own["PATH"] = str(place / "venv" / "bin")
        found = [name for name in COMPILERS if shutil.which(name, path=own["PATH"])]
        assert not found, found
        run(python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", f"minicaffe[images] @ {wheel.resolve().as_uri()}",
            env=own)
        for words in COMMANDS:
            run(place / "venv" / "bin" / "minicaffe", *words, "--quiet", env=own, cwd=place, stdout=subprocess.DEVNULL)
        run(python, "-c", SCRIPT, env=own, cwd=place)
    print(f"{wheel.name}: trains LeNet, scores, classifies and imports caffe without a compiler")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("dist"), metavar="DIR", help="where the wheel goes (dist)")
    parser.add_argument("--test", type=Path, metavar="FILE", help="test this wheel instead of building one")
    options = parser.parse_args()
    if options.out.exists() and not options.out.is_dir():
        parser.error(f"--out: {options.out} is no folder")
    if sys.platform != "linux":
        sys.exit("auditwheel repairs wheels of Linux; elsewhere: pip wheel --no-deps .")
    test(options.test or build(options.out))


if __name__ == "__main__":
    main()
