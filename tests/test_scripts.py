"""Nine scripts as people wrote them for pycaffe run unchanged: ``import caffe`` gives minicaffe (minicaffe/as_caffe.py)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import one_of

import minicaffe

SCRIPTS = Path(__file__).resolve().parent / "scripts"
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py") if "datalayers" not in path.name)
assert len(NAMES) == 9


def run(*arguments, cwd, **environment):
    """Run Python with the arguments; ``PYTHONPATH`` is as the environment says."""
    return subprocess.run([sys.executable, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=120,
                          env={**os.environ, "OMP_NUM_THREADS": "2", **environment})


@pytest.mark.parametrize("name", NAMES)
def test_script(name, tmp_path, run_forked):
    pytest.importorskip("cv2")
    done = run_forked("minicaffe.as_caffe", SCRIPTS / f"{name}.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


PROGRAMS = {
    "caffe": """import minicaffe
minicaffe.install_as_caffe()
import caffe, caffe.io, caffe.net_spec, caffe.draw, caffe.coord_map, caffe.classifier, caffe.detector, caffe.pycaffe, caffe._caffe
from caffe import layers as L, params as P, to_proto
from caffe.proto import caffe_pb2
import caffe.proto.caffe_pb2 as pb2
from caffe.pycaffe import Net, SGDSolver
assert caffe is minicaffe and Net is minicaffe.Net and pb2 is caffe_pb2 and caffe._caffe.get_solver is minicaffe.get_solver
assert caffe.io.caffe_pb2.Datum is caffe_pb2.Datum and caffe.net_spec.layers is L and caffe.params is P
minicaffe.install_as_caffe()
""",
    "minicaffe": """import minicaffe.io as io, minicaffe.classifier, minicaffe.detector, minicaffe.net_spec, minicaffe.draw
from minicaffe import coord_map, dnn
from minicaffe.dnn import readNetFromCaffe
from minicaffe.pycaffe import Net, SGDSolver, get_solver, set_mode_cpu
assert Net is minicaffe.Net and io is minicaffe.io is minicaffe.pycaffe.io and minicaffe.net_spec.layers is minicaffe.layers
assert readNetFromCaffe is minicaffe.addons.opencv.dnn.readNetFromCaffe and coord_map.L is minicaffe.layers
import pickle; assert pickle.loads(pickle.dumps(io.Transformer)) is minicaffe.io.Transformer
"""}


@pytest.mark.parametrize("name", PROGRAMS)
def test_names_of_modules(name, tmp_path):
    (tmp_path / "caffe").mkdir()  # Caffe's sources beside a script are no caffe to import
    done = run("-c", PROGRAMS[name], cwd=tmp_path, PYTHONSAFEPATH="")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow(2)
def test_runner_and_another_caffe(tmp_path):
    (tmp_path / "beside.py").write_text("word = 'hello'\n")
    (tmp_path / "script.py").write_text("import sys, beside, caffe\nprint(beside.word, sys.argv[1:], __name__)\nsys.exit(3)\n")
    done = run("-m", "minicaffe.as_caffe", tmp_path / "script.py", "a", "-b", cwd="/")
    assert (done.returncode, done.stdout) == (3, "hello ['a', '-b'] __main__\n"), done.stderr
    assert run("-m", "minicaffe.as_caffe", "nowhere.py", cwd=tmp_path).returncode == 2
    assert "usage" in run("-m", "minicaffe.as_caffe", cwd=tmp_path).stderr
    (tmp_path / "caffe.py").write_text("__version__ = 'theirs'\n")
    ask = "import minicaffe\ntry:\n    minicaffe.install_as_caffe()\nexcept ValueError as error:\n    print(error)\n{}import caffe; print(caffe.__version__)"
    done = run("-c", ask.format(""), cwd=tmp_path, PYTHONSAFEPATH="")
    assert "another caffe is there" in done.stdout and "caffe.py" in done.stdout and done.stdout.endswith("theirs\n"), done.stderr
    done = run("-c", "import caffe\n" + ask.format("minicaffe.install_as_caffe(force=True)\n"), cwd=tmp_path, PYTHONSAFEPATH="")
    assert done.stdout.endswith(f"{minicaffe.__version__}\n"), done.stderr


LOADED = "import caffe, sys, caffe.io; from caffe.proto import caffe_pb2; from caffe import layers as L; print(caffe.__name__, caffe.io.__name__)"


@pytest.fixture(scope="module")
def alias(tmp_path_factory):
    """The folder of an alias, which lies on Python's path as the folder of the installed packages does."""
    folder = tmp_path_factory.mktemp("alias") / "packages"
    done = run("-m", "minicaffe.as_caffe", "--install", folder, cwd=folder.parent)
    assert done.returncode == 0 and "caffe.py: written; import caffe gives minicaffe" in done.stdout, done.stderr
    assert "is not on Python's path; add it to PYTHONPATH" in done.stderr
    return folder


@pytest.mark.slow(2)
def test_alias(alias, tmp_path):
    assert run("-m", "minicaffe.as_caffe", "--install", alias, cwd=tmp_path, PYTHONPATH=str(alias)).returncode == 0     # it is written again
    find = "import importlib.util as u; print(u.find_spec('caffe').origin); import caffe; print(u.find_spec('caffe.io').loader.own_name)"
    done = run("-c", find, cwd=tmp_path, PYTHONPATH=str(alias))
    assert done.stdout.split() == [str(alias / "caffe.py"), "minicaffe.io"] and not done.stderr
    for program in (LOADED, f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {LOADED!r}]))",
                    f"import minicaffe; minicaffe.install_as_caffe(); {LOADED}", f"{LOADED}; import minicaffe; minicaffe.install_as_caffe()"):
        done = run("-c", program, cwd=tmp_path, PYTHONPATH=str(alias))
        assert done.stdout == "minicaffe minicaffe.pycaffe.io\n" and not done.stderr, program


@pytest.mark.slow(1)
def test_alias_in_processes_and_threads(alias, tmp_path):
    (tmp_path / "spawn.py").write_text("""
import multiprocessing
import caffe
def work(seed):
    caffe.set_random_seed(seed)
    return caffe.__name__, caffe.Layer.__module__
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, [1]))
""")
    done = run(tmp_path / "spawn.py", cwd=tmp_path, PYTHONPATH=str(alias))
    assert done.stdout == "[('minicaffe', 'minicaffe.layers.python')]\n", done.stderr
    done = run("-c", """
import threading
start, found = threading.Barrier(8), []
def work():
    start.wait()
    import caffe
    from caffe import Net, layers
    found.append(caffe.Net is Net and caffe.TEST == 1)
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(found.count(True))
""", cwd=tmp_path, PYTHONPATH=str(alias))
    assert done.stdout == "8\n", done.stderr


@pytest.mark.slow(8)
@pytest.mark.parametrize("name", ["caffe.py", "caffe/__init__.py"])
def test_alias_and_another_caffe(name, tmp_path):
    theirs, folder = tmp_path / "theirs" / name, tmp_path / "packages"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("__version__ = 'theirs'\n")
    done = run("-m", "minicaffe.as_caffe", "--install", folder, cwd=tmp_path, PYTHONPATH=str(tmp_path / "theirs"))
    assert done.returncode == 2 and f"another caffe is installed ({theirs}); uninstall it first" in done.stderr and not folder.exists()
    done = run("-m", "minicaffe.as_caffe", "--install", tmp_path / "theirs", cwd=tmp_path)
    assert done.returncode == 2 and f"another caffe is installed ({theirs}); uninstall it first" in done.stderr
    assert theirs.read_text() == "__version__ = 'theirs'\n"


@pytest.mark.slow(1)
def test_unwritable_alias(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder" / "caffe.py").mkdir(parents=True)
    for folder, status, words in ("file/below", 1, "cannot be written: Not a directory; name another FOLDER"), ("folder", 2, "another caffe is installed"):
        done = run("-m", "minicaffe.as_caffe", "--install", folder, cwd=tmp_path)
        assert done.returncode == status and words in done.stderr and "Traceback" not in done.stderr, done.stderr


LOGS = """
import warnings, minicaffe, logging
log = logging.getLogger("minicaffe.net")
log.info("an info"); log.warning("a warning"); log.error("an error"); log.critical("a fatal line")
warnings.warn(minicaffe.errors.ConfigWarning("a config warning"))
"""


@pytest.mark.parametrize("level, shown", one_of(5, [
    ("0", "info warning error fatal config"), ("", "warning error fatal config"), ("2", "error fatal"), ("7", "fatal"),
    ("few", "warning error fatal config few")]))
def test_minloglevel_of_glog(level, shown, tmp_path):
    done = run("-c", LOGS, cwd=tmp_path, GLOG_minloglevel=level)
    lines = {"info": "an info", "warning": "a warning", "error": "an error", "fatal": "a fatal", "config": "a config",
             "few": "must be a number, 0 to 3, got 'few'; it is ignored"}
    assert [word for word, line in lines.items() if line in done.stderr] == shown.split(), done.stderr


@pytest.mark.slow(1)
def test_log_and_mode_of_programs(tmp_path):
    program = "import minicaffe, sys; minicaffe.init_log({}); minicaffe.log('an info line')"
    assert "an info line" in run("-c", program.format("0"), cwd=tmp_path, GLOG_minloglevel="2").stderr
    assert "an info line" not in run("-c", program.format(""), cwd=tmp_path, GLOG_minloglevel="2").stderr
    assert "an info line" in run("-c", program.format(""), cwd=tmp_path, GLOG_minloglevel="").stderr
    program = "import minicaffe, os\nminicaffe.set_mode_gpu()\nos.environ['MINICAFFE_DEVICE'] = 'cpu'\nminicaffe.set_mode_gpu()\nprint(minicaffe.common.caffe.mode)"
    done = run("-c", program, cwd=tmp_path, MINICAFFE_DEVICE="sim")
    assert done.stdout == "cpu\n" and done.stderr == "set_mode_gpu(): MINICAFFE_DEVICE is cpu; the CPU computes\n"


# ---- GPU mode without a GPU

USES_GPU = "import {0} as caffe\ncaffe.set_device(0)\ncaffe.set_mode_gpu()\ncaffe.set_mode_gpu()\nprint(caffe.common.caffe.mode)\n"
NO_DRIVER = pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="this machine has a GPU")


@NO_DRIVER
@pytest.mark.parametrize("way", one_of(3, ["as_caffe", "alias", "install_as_caffe"]))
def test_gpu_mode_without_a_driver(way, alias, tmp_path):
    before = "import minicaffe\nminicaffe.install_as_caffe()\n" if way == "install_as_caffe" else ""
    (tmp_path / "old.py").write_text(before + USES_GPU.format("caffe"))
    arguments, path = (["-m", "minicaffe.as_caffe"], "") if way == "as_caffe" else ([], str(alias) if way == "alias" else "")
    done = run(*arguments, "old.py", cwd=tmp_path, MINICAFFE_DEVICE="", PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (0, "cpu\n"), done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("set_device(0): no CUDA driver")
    assert done.stderr.endswith("; the CPU computes. MINICAFFE_DEVICE=gpu makes this an error\n")
    done = run(*arguments, "old.py", cwd=tmp_path, MINICAFFE_DEVICE="gpu", PYTHONPATH=path)
    assert done.returncode == 1 and "no CUDA driver" in done.stderr and not done.stdout


@NO_DRIVER
@pytest.mark.parametrize("call", ["minicaffe.set_mode_gpu()", "minicaffe.set_device(0)", "net.set_mode_gpu()",
                                  "dnn.readNetFromCaffe('net.prototxt').setPreferableTarget(dnn.DNN_TARGET_CUDA)"])  # fmt: skip
def test_gpu_mode_by_own_name(call, tmp_path, run_forked):
    (tmp_path / "net.prototxt").write_text('layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 } } }')
    (tmp_path / "program.py").write_text(
        f"import minicaffe\nfrom minicaffe import dnn\nnet = minicaffe.Net('net.prototxt', 1)\n{call}\nprint(minicaffe.common.caffe.mode)")
    done = run_forked("program.py", cwd=tmp_path, MINICAFFE_DEVICE="")
    assert done.returncode == 1 and done.stderr.endswith("; with MINICAFFE_DEVICE=cpu set_mode_gpu() computes on the CPU\n"), done.stderr
    done = run_forked("program.py", cwd=tmp_path, MINICAFFE_DEVICE="cpu")
    assert done.stdout == "cpu\n" and done.stderr.count(": MINICAFFE_DEVICE is cpu; the CPU computes\n") == 1, done.stderr


# ---- scripts in Python 2

@pytest.mark.parametrize("python, line", [
    *((2, line) for line in ('print "a"', "print x, y", "x = 0777", 'exec "x = 1"', "try: pass\nexcept ValueError, e: print e", "xrange(3)",
                             "{}.iteritems()", "{}.has_key(1)", "import cPickle", "import sys; print >>sys.stderr, 'x'")),
    *((3, line) for line in ("x = (1", "raise ValueError('a' 3)", "y = [].reduce", "import nowhere", "print(1", "x = dict(a='3x3_pool' b=1)"))])
def test_faults_of_scripts(python, line, tmp_path, run_forked):
    (tmp_path / "old.py").write_text(f"# old\n{line}\n")
    done = run_forked("minicaffe.as_caffe", "old.py", cwd=tmp_path)
    assert done.returncode == 1 and f'old.py", line {2 + line.count(chr(10))}' in done.stderr, done.stderr
    assert ("\nthis is Python 2: convert it with 2to3" in done.stderr) == (python == 2)
