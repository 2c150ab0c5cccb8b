"""docs/adding_a_layer.md works when typed in as it is: every file of the page is written, built and tested."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cplusplus import compiler

import minicaffe
from minicaffe import layer as registry
from minicaffe.cuda import compile
from minicaffe.errors import ConfigError

PAGE = Path(__file__).resolve().parents[1] / "docs" / "adding_a_layer.md"
FILES = dict(re.findall(r"^```\w+\n(?:#|//) (\S+)\n(.*?)^```", PAGE.read_text(), re.M | re.S))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder; what is registered or imported in it goes away with it."""
    monkeypatch.setattr(registry, "_types", registry.layer_types())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cube", raising=False)
    yield tmp_path
    for name in ("cube", "gain"):
        sys.modules.pop(name, None)


def load(path):
    """Import a file."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.no_plan("goes backward in phase TEST, in which a plan has forward alone")
def test_in_python(folder):
    for name in ("cube.py", "cube.prototxt", "test_cube.py"):
        Path(name).write_text(FILES[name])
    load("test_cube.py").test_values_and_gradient()
    Path("cube.prototxt").write_text(FILES["cube.prototxt"].replace("start: 2", "start: 0"))
    with pytest.raises(minicaffe.errors.ConfigError, match=r"cube.prototxt:4: layer 'gain' \(Gain\): gain_param.start: must not be 0"):
        minicaffe.Net("cube.prototxt", minicaffe.TEST)


@pytest.mark.slow(7)
def test_in_cython(folder, monkeypatch):
    if importlib.util.find_spec("Cython") is None:
        pytest.skip("Cython is not installed: pip install Cython")
    compiler()
    Path("minicaffe/ops/cube").mkdir(parents=True)
    Path("minicaffe/ops/cube/kernel.hpp").write_text(FILES["minicaffe/ops/cube/kernel.hpp"])
    for name in ("cube", "gain"):
        Path(f"{name}.pyx").write_text(FILES[f"minicaffe/layers/{name}.pyx"])
    Path("build_cube.py").write_text(FILES["build_cube.py"].replace('"-O2"', '"-O0"'))  # five times as quick
    built = subprocess.run([sys.executable, "build_cube.py"], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    importlib.import_module("cube")
    importlib.import_module("gain")
    monkeypatch.syspath_prepend(PAGE.parents[1] / "tests" / "layers")
    Path("test_in_cython.py").write_text(FILES["tests/layers/test_cube.py"])
    tests = load("test_in_cython.py")
    header = re.search(r'`minicaffe.cuda.add_kernels\("(.*)"\)`', PAGE.read_text())[1]
    monkeypatch.setattr(compile, "_added_headers", {})
    minicaffe.cuda.add_kernels(header)
    for kernel in "Vector<CubeForward<double>, double, 1>", "Vector<Gain<float>, float, 1>":    # as a GPU would
        compile.kernel_image(kernel, 32, "sm_90")
    assert "Cube" not in compile.program_text("Vector<BnllForward<float>, float, 1>")     # whose cubin stays the same
    for case in tests.test_values_and_gradient.pytestmark[0].args[1]:
        tests.test_values_and_gradient(*case)
    tests.test_a_wrong_gain()


def test_files_and_headers(tmp_path):
    with pytest.raises(ConfigError, match="cannot read the header 'nowhere.hpp': No such file"):
        minicaffe.cuda.add_kernels("nowhere.hpp")
    names = re.findall(r"^```\w+\n(?:#|//) (\S+)$", PAGE.read_text(), re.M)
    assert len(names) == len(set(names)) == len(re.findall(r"^```\w+$", PAGE.read_text(), re.M))
    text = (PAGE.parents[1] / "minicaffe" / "layers" / "bnll.py").read_text()
    assert len([line for line in text.splitlines() if line.strip()]) <= 15
    source = tmp_path / "relu.cpp"
    for members, compiles in ((", 0.5", True), ("", False)):
        source.write_text('#include "minicaffe/ops/activation/caffe.hpp"\n'
                          "void f(const mc::Context& on, const void* x, void* y) "
                          f"{{ mc::map1<mc::ReluForward>(on, 0, 3, x, y{members}); }}\n")
        built = subprocess.run([*compiler(), "-std=c++17", "-fsyntax-only", "-w", "-I", PAGE.parents[1], source], capture_output=True, text=True)
        assert (built.returncode == 0) == compiles and ("a member of this functor is not given" in built.stderr) != compiles, built.stderr
