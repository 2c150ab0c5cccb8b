"""What all tests share: the device they run on, ``pytest --device sim`` or ``--device gpu`` instead of the CPU; ``-n auto`` runs the
files of tests side by side, on up to eight processes.
"""

import contextlib
import faulthandler
import functools
import gc
import importlib.util
import itertools
import json
import logging
import math
import os
import re
import signal
import subprocess
import sys
import time
import zlib
from collections import OrderedDict
from pathlib import Path

import hypothesis
import pytest
from compile_kernels import ARCHITECTURES, find_nvrtc

# Imports of add-ons, by their own or public names, or of what imports them.
OF_ADDONS = re.compile(r"^\s*(from|import) (minicaffe\.(addons|onnx|pytorch|trace|plan|serialization|dnn)\b|layers_table|"
                       r"test_nets_of_forks|minicaffe import .*\b(dnn|trace|onnx|Tensor|Slot|Workspace)\b)", re.M)
# Files of few tests that take long: they train, search or start processes.
LONG = re.compile(r"\b(second_use|parallel|models|cli|scripts)/|test_(course|scripts|five_users|docs|hostile|fuzz|ssd300|fine_tuning_page|kernels|"
                  r"grid|channels_last|cudnn|recorded|bench)\.py")
# Python processes that tests start import the installed package, not the source in the folder where pytest was called.
os.environ["PYTHONSAFEPATH"] = "1"
# Processes side by side compute on one thread each: with more, threads would wait for others' processors. .ci/run has runs on two.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser):
    parser.addini("process_timeout", "seconds after which a process ends whose test does not end; 0: never", default="0")
    parser.addoption("--device", default="cpu", choices=["cpu", "sim", "gpu"], help="where nets compute")
    parser.addoption("--plan", choices=["memory"], help="a plan for every net that asks for none; what reads a recycled blob is skipped")
    parser.addoption("--ranks", default="2", metavar="N,N", help="with how many processes those train together that tests compare with one")
    parser.addoption("--examples", type=int, metavar="N", help="how many sequences of calls each state machine of tests/second_use tries, at random")
    parser.addoption("--program", type=int, metavar="SEED", help="run only this one of the random programs of tests/second_use")
    parser.addoption("--every", action="store_true", help="let each call of an iteration fail in tests/second_use, not a part of them; run a few slow tests, too")
    parser.addoption("--of-addons", action="store_true", help="run only the tests that a core without add-ons leaves out")
    parser.addoption("--rehearse", action="store_true", help="rehearse tools/gpu_check and what it measures (minutes)")
    parser.addoption("--all-architectures", action="store_true", help="compile every kernel for every supported GPU (minutes)")


class Watchdog:
    """Ends the process when a test lasts too long in C, where no signal is handled: a thread in C, which needs no GIL, writes all stacks.

    It starts again once in a tenth of its time. pytest's own starts a thread for each test, which takes a busy machine milliseconds.
    """

    def __init__(self, seconds):
        self.seconds, self.started = seconds, -math.inf
        self.errors = os.dup(2)     # pytest captures the other one

    def begin_test(self):
        now = time.monotonic()
        if self.seconds and now - self.started > self.seconds / 10:
            faulthandler.dump_traceback_later(self.seconds, file=self.errors, exit=True)
            self.started = now

    def end(self):
        faulthandler.cancel_dump_traceback_later()
        os.close(self.errors)


WATCHDOG = pytest.StashKey()    # of the configuration


def pytest_unconfigure(config):
    if WATCHDOG in config.stash:
        config.stash[WATCHDOG].end()


def pytest_configure(config):
    signal.signal(signal.SIGINT, signal.default_int_handler)    # tests send it; who started this may ignore it, as pytest-xdist does
    config.addinivalue_line("markers", "no_plan(reason): shows what a net with a plan does otherwise; not run with --plan")
    config.addinivalue_line("markers", "slow(seconds): a test for --every alone, so that the others take minutes; .ci/run has it")
    if config.getoption("--examples"):
        config.option.timeout = 0       # a long search is no hang
    config.stash[WATCHDOG] = Watchdog(0 if config.getoption("--examples") else float(config.getini("process_timeout")))
    examples = 100 if config.getoption("--every") else 25
    hypothesis.settings.register_profile("repeatable", derandomize=True, database=None, deadline=None, max_examples=examples)
    hypothesis.settings.load_profile("repeatable")
    device = config.getoption("--device")
    os.environ["MINICAFFE_DEVICE"] = device
    if device == "gpu":
        os.environ.setdefault("MINICAFFE_DETERMINISTIC", "1")   # tests compare bits, and gradients with differences
    import minicaffe  # an editable install builds now, before there are several processes that would
    if device != "cpu":
        minicaffe.set_mode_gpu()
    if plan := config.getoption("--plan"):
        from minicaffe.net.net import Net
        as_asked = Net.set_plan
        Net.set_plan = lambda net, asked, *rest: as_asked(net, asked or plan, *rest)
    gc.disable()    # while tests are collected, which leaves little garbage and 18,000 objects that live on


def pytest_collection_finish():
    gc.enable()


def addons_installed():
    return importlib.util.find_spec("minicaffe.addons") is not None


@functools.cache
def uses_addons(path):
    """Whether a folder or file of tests is of add-ons, or imports them, by their names or by public ones."""
    folder = Path(__file__).with_name("addons")
    return path == folder or folder in path.parents or path.suffix == ".py" and bool(OF_ADDONS.search(path.read_text(encoding="utf-8")))


def pytest_ignore_collect(collection_path):
    """Without minicaffe/addons leave out tests/addons, and the files that import add-ons."""
    return True if not addons_installed() and uses_addons(collection_path) else None


def pytest_collection_modifyitems(config, items):
    """Without minicaffe/addons leave out the tests of the core that use types or commands of add-ons: needs_addons.txt has patterns.
    With --of-addons leave out all that runs without add-ons.
    """
    if addons_installed() and not config.getoption("--of-addons"):
        return
    patterns = re.compile("|".join(Path(__file__).with_name("needs_addons.txt").read_text(encoding="utf-8").splitlines()))
    parts = {True: [], False: []}
    for item in items:
        parts[uses_addons(item.path) or bool(patterns.match(item.nodeid.removeprefix("tests/")))].append(item)
    config.hook.pytest_deselected(items=parts[not addons_installed()])
    items[:] = parts[addons_installed()]


def pytest_runtest_setup(item):
    # Nets without a seed have the same weights in each run of a test: what passes once passes again.
    import minicaffe
    minicaffe.set_random_seed(zlib.crc32(item.nodeid.encode()))
    # A test, or a command that it ran, may have ended in another mode.
    device = os.environ["MINICAFFE_DEVICE"] = item.config.getoption("--device")
    (minicaffe.set_mode_cpu if device == "cpu" else minicaffe.set_mode_gpu)()
    marker = item.get_closest_marker("no_plan")
    if marker and item.config.getoption("--plan"):
        pytest.skip(marker.args[0])
    marker = item.get_closest_marker("slow")
    if marker and not item.config.getoption("--every"):
        pytest.skip(f"takes {marker.args[0]} seconds: run it with --every, as .ci/run does")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    from minicaffe.errors import RecycledError
    try:
        return (yield)
    except RecycledError as error:
        if not item.config.getoption("--plan") or error.layer is not None:      # a layer must find all that it reads
            raise
        pytest.skip(f"reads what the plan recycled: {error}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    return min(8, len(os.sched_getaffinity(0)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """A file stays in one process: what a module's fixtures made serves all of its tests. A test that ends its process has failed."""
    from xdist.scheduler import LoadFileScheduling

    class Collected(list):
        """The tests that a process found; pytest-xdist asks for the place of each."""
        def __init__(self, tests):
            super().__init__(tests)
            self.places = {test: place for place, test in enumerate(self)}

        def index(self, test):
            return self.places[test]

    class Scheduling(LoadFileScheduling):
        ordered = False

        def _assign_work_unit(self, node):
            """Begin with files of few long tests: at the end of a run other processes would wait for them."""
            if not self.ordered:
                self.workqueue = OrderedDict(sorted(self.workqueue.items(), key=lambda unit: not LONG.search(unit[0])))
                self.ordered = True
            super()._assign_work_unit(node)

        def add_node_collection(self, node, collection):
            super().add_node_collection(node, collection)
            if node in self.registered_collections:
                self.registered_collections[node] = Collected(collection)

        def remove_node(self, node):
            """Return the test that ran; pytest-xdist gives it to the next process, too, until all have ended."""
            work = self.assigned_work[node]
            unit, ran = next(((unit, test) for unit in work.values() for test, done in unit.items() if not done), (None, None))
            if unit is not None:
                unit[ran] = True
            for scope in [scope for scope, unit in work.items() if all(unit.values())]:
                del work[scope]
            super().remove_node(node)
            return ran

    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Give the log back, which commands that run in this process, also in fixtures of a module, direct to standard error."""
    log = logging.getLogger("minicaffe")
    level, propagate, handlers = log.level, log.propagate, list(log.handlers)
    item.stash[CHILDREN] = children()
    item.config.stash[WATCHDOG].begin_test()
    done = yield
    log.setLevel(level)
    log.propagate, log.handlers[:] = propagate, handlers
    return done


CHILDREN = pytest.StashKey()    # of an item: the processes that ran before it


def children(process="self"):
    """Return the numbers of the processes that one has started and that still run, and of theirs; none where /proc does not list them."""
    found = set()
    with contextlib.suppress(OSError):      # it has ended
        for task in os.listdir(f"/proc/{process}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{process}/task/{task}/children", "rb") as file:    # a Path takes 10 times as long
                for child in map(int, file.read().split()):
                    found |= {child} | children(child)
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """End the processes that a test has started whose time is over; a fixture would wait for them."""
    if call.excinfo is not None and "from pytest-timeout" in str(call.excinfo.value):
        for child in children() - item.stash[CHILDREN]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
    return (yield)


def pytest_report_header(config):
    return f"nets compute on: {config.getoption('--device')}"


def pytest_generate_tests(metafunc):
    """One architecture by default, since there are hundreds of kernels; all with ``--all-architectures``, as in CI. As many
    processes that train together as ``--ranks`` says.
    """
    if "group_size" in metafunc.fixturenames:
        metafunc.parametrize("group_size", list(map(int, metafunc.config.getoption("--ranks").split(","))))
    if "architecture" in metafunc.fixturenames:
        every = metafunc.config.getoption("--all-architectures")
        metafunc.parametrize("architecture", ARCHITECTURES if every else ["sm_90"])


@pytest.fixture
def every_kernel(request):
    """For tests that compile all kernels, half a minute for each architecture."""
    if not request.config.getoption("--all-architectures"):
        pytest.skip("compiles every kernel: run it with --all-architectures, as .ci/run does")


@pytest.fixture(scope="module", autouse=True)
def old_objects():
    """Keep the garbage collector from searching what earlier modules and pytest itself hold: that is half of the suite's time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def device(request):
    """The name of the device that nets compute on: cpu, sim or gpu."""
    return request.config.getoption("--device")


@pytest.fixture
def on_cpu():
    """Compute on the CPU during one test; the next one begins in the mode of --device."""
    import minicaffe
    minicaffe.set_mode_cpu()


@pytest.fixture(autouse=True)
def settings_restored():
    """Restore the number of threads, the preferred engine, the exactness and the precision, which tests change."""
    from minicaffe.device.threads import get_num_threads, set_num_threads
    from minicaffe.engines import engine
    threads, preferred, exact, precision = get_num_threads(), engine.preferred(), engine.get_exact(), engine.get_precision()
    yield
    set_num_threads(threads)
    if engine.preferred() != preferred:
        engine.prefer(preferred)
    if engine.get_exact() != exact:
        engine.set_exact(exact)
    if engine.get_precision() != precision:
        engine.set_precision(precision)


@pytest.fixture
def onednn(on_cpu):
    """Let layers on the CPU ask engine ONEDNN first; gives a function that does so, or not. A visible skip where there is no oneDNN."""
    from minicaffe.engines import engine
    from minicaffe.engines.onednn import library
    from minicaffe.errors import DependencyError
    try:
        library.version()
    except DependencyError as error:
        pytest.skip(str(error))
    engine.prefer("ONEDNN")
    yield lambda use: engine.prefer("ONEDNN" if use else "CAFFE")


@pytest.fixture
def no_cudnn(device):
    """Let our own kernels compute on a device, also where cuDNN is: it differs in edge values, last bits, and what is computed at once."""
    from minicaffe.engines import engine
    if device != "cpu":
        engine.prefer("CAFFE")


@pytest.fixture(scope="session")
def nvrtc():
    """The NVRTC library."""
    library = find_nvrtc()
    if library is None:
        pytest.skip('no NVRTC library: pip install nvidia-cuda-nvrtc (it is in tests/requirements.txt)')
    return library


PROGRAMS = itertools.count()
FORKING = """
import json, os, runpy, sys
import minicaffe
for line in sys.stdin:
    number, folder, output, arguments, environment = json.loads(line)
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        os.environ.update(environment)
        for stream, name in (1, "stdout"), (2, "stderr"):
            os.dup2(os.open(os.path.join(output, name), os.O_CREAT | os.O_TRUNC | os.O_WRONLY), stream)
        sys.argv = arguments
        (runpy.run_path if arguments[0].endswith(".py") else runpy.run_module)(arguments[0], run_name="__main__")
        sys.exit()
    print(number, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="session")
def forking():
    """A process that has imported minicaffe, which takes most of the time of a short program, and runs each program in a child."""
    with subprocess.Popen([sys.executable, "-c", FORKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          cwd=Path(__file__).parent) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def run_forked(forking, tmp_path_factory):
    """Return a function that runs a script, or a module with arguments, in a folder; it returns what subprocess.run does."""
    output = tmp_path_factory.mktemp("output")

    def run(*arguments, cwd, **environment):
        number = next(PROGRAMS)
        print(json.dumps([number, str(cwd), str(output), list(map(str, arguments)), environment]), file=forking.stdin, flush=True)
        answer = next(line.split() for line in forking.stdout if line.startswith(f"{number} "))     # others are of tests that timed out
        status = int(answer[1])
        return subprocess.CompletedProcess(arguments, status, *((output / name).read_text() for name in ("stdout", "stderr")))
    return run
