"""Add-ons: the package of docs/writing_an_addon.md is built, installed and used; two of one name, a broken one, an untrusted file."""

import importlib.util
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import minicaffe
from minicaffe import entry_points
from minicaffe.cli import app
from minicaffe.errors import ConfigError
from minicaffe.layer import layer_class
from minicaffe.proto.text import parse_text

PAGE = Path(__file__).resolve().parents[1] / "docs" / "writing_an_addon.md"
FILES = dict(re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", PAGE.read_text(), re.M | re.S))
NET = """
layer { name: "data" type: "DummyData" top: "x" top: "t" dummy_data_param {
  shape { dim: 4 dim: 3 } data_filler { value: 1 } shape { dim: 4 dim: 1 } data_filler { value: 2 } } }
layer { name: "square" type: "Square" bottom: "x" top: "squared" }
layer { name: "fc" type: "InnerProduct" bottom: "squared" top: "y" inner_product_param { num_output: 1 weight_filler { type: "xavier" } } }
layer { name: "shift" type: "Shift" bottom: "y" top: "z" shift_param { by: 1 } }
layer { name: "loss" type: "EuclideanLoss" bottom: "z" bottom: "t" top: "loss" }
"""
SOLVER = 'net: "net.prototxt" base_lr: 0.02 lr_policy: "fixed" max_iter: 60 random_seed: 1 display: 0 snapshot_after_train: false'


@pytest.mark.slow(40)
def test_the_package_of_the_page(tmp_path):
    if missing := [name for name in ("Cython", "mesonpy") if importlib.util.find_spec(name) is None]:
        pytest.skip(f"{' and '.join(missing)} not installed: pip install -r tests/requirements.txt")
    for name, text in FILES.items():
        (tmp_path / "package" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "package" / name).write_text(text)
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, tmp_path / "package"],
                   check=True)
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    # minicaffe and what it needs are those of this environment; start-up files of editable installs count, too.
    (site / "beside.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    wheel, = tmp_path.glob("*.whl")
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--python", environment, "install", "--no-deps", "--no-index", wheel], check=True)

    def run(*words, status=0):
        done = subprocess.run([environment / "bin" / "python", "-m", "minicaffe", *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    log = run("train", "solver.prototxt", "--display=20", "--verbose")
    losses = [float(number) for number in re.findall(r"Iteration \d+ \(.*loss = (\d[\d.e-]*)", log)]
    assert len(losses) == 3 and losses[2] < 0.1 * losses[0], log
    assert run("count", "net.prototxt") == "5 layers\n"
    assert re.search(r"count +Print how many layers a net has\. \(my-layers\)", run("--help"))
    assert re.search(r"Shift\b.*my-layers", run("layers"))
    assert "my_layers (my-layers 1.0)\n  layer types: Shift, Square\n  commands: count\n" in run("addons")
    script = 'import minicaffe as caffe; caffe.Net("net.prototxt", caffe.TRAIN, trusted=False)'
    untrusted = [subprocess.run([environment / "bin" / "python", "-c", before + script], cwd=tmp_path, capture_output=True, text=True).stderr
                 for before in ("", "import my_layers; ")]
    assert "unknown layer type 'Square'" in untrusted[0] and not untrusted[1]


@pytest.fixture
def add(tmp_path, monkeypatch):
    """Return a function that installs a package with a module and its entry points, for this process."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(package, module, groups):
        (tmp_path / f"{package}.py").write_text(module)
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("".join(f"[minicaffe.{group}]\n{package} = {target}\n" for group, target in groups.items()))
        entry_points.entries.cache_clear()
        entry_points._load.cache_clear()

    yield install
    entry_points.entries.cache_clear()
    entry_points._load.cache_clear()
    for name in [name for name in sys.modules if name.startswith("addon_")]:
        del sys.modules[name]


TYPES = 'LAYERS = {{"{0}": "addon_types:{0}Layer"}}\nimport minicaffe\nclass {0}Layer(minicaffe.Layer):\n    pass\n'


def test_two_packages_of_one_name(add):
    for package in ("addon_one", "addon_two"):
        add(package, 'LAYERS = {"Doubled": "nowhere:X"}\nCOMMANDS = {"doubled": ("", "nowhere:x", "")}',
            {"layers": f"{package}:LAYERS", "commands": f"{package}:COMMANDS"})
    both = "of two add-ons, 'addon_one' of package addon_one and 'addon_two' of package addon_two; uninstall one"
    with pytest.raises(ConfigError, match=f"'Doubled' is among the layer types {both}"):
        layer_class("Doubled")
    with pytest.raises(ConfigError, match=f"'doubled' is among the commands {both}"):
        app.minicaffe.get_command(None, "doubled")


def test_broken_packages(add, caplog):
    add("addon_broken", "import addon_that_is_missing", {"layers": "addon_broken:LAYERS", "commands": "addon_broken:COMMANDS"})
    with pytest.raises(ConfigError, match="unknown layer type 'Qq': the core lacks it, and so do the installed add-ons .*addon_broken"):
        layer_class("Qq")
    line = "add-on 'addon_broken' of package addon_broken is left out: addon_broken:LAYERS fails: ModuleNotFoundError: No module named"
    assert [line in record.getMessage() for record in caplog.records] == [True]
    assert app.minicaffe.get_command(None, "train") is not None
    add("addon_half", 'LAYERS = {"Half": "addon_that_is_missing:HalfLayer"}', {"layers": "addon_half:LAYERS"})
    with pytest.raises(ConfigError, match="'Half' is of add-on 'addon_half' of package addon_half, whose addon_that_is_missing:HalfLayer fails"):
        layer_class("Half")


def test_untrusted_file(add):
    add("addon_types", TYPES.format("Foreign"), {"layers": "addon_types:LAYERS"})
    net, _ = parse_text('layer { name: "f" type: "Foreign" top: "y" }', minicaffe.proto.caffe_pb2.NetParameter)
    with pytest.raises(ConfigError, match="unknown layer type 'Foreign'"):
        minicaffe.Net(net, minicaffe.TEST, trusted=False)
    assert "addon_types" not in sys.modules
    with pytest.raises(minicaffe.errors.Error, match="reshape"):      # it is found, and defines nothing
        minicaffe.Net(net, minicaffe.TEST)


def test_no_add_ons():
    program = ("from minicaffe import entry_points; entry_points.entries = lambda group: []; "
               "from minicaffe.layer import layer_class; layer_class('PriorBox')")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "unknown layer type 'PriorBox': the core lacks it, and so do the installed add-ons (none); write it in Python" in done.stderr
