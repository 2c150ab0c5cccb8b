"""Kernels compiled by NVRTC and the cache of their cubins; no device is needed, so these run everywhere that NVRTC is."""

import os
import re
import subprocess
import sys
import textwrap
import time
from types import SimpleNamespace

import pytest
from processes import command

from minicaffe.cuda import compile
from minicaffe.errors import DependencyError, DeviceError

SOURCE = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'
FILL = "const char* mc::spelling() [with K = Each<Fill<float> >]"


@pytest.fixture(scope="module")
def nvrtc():
    try:
        return compile.nvrtc()
    except DependencyError as error:
        pytest.skip(str(error))


@pytest.fixture
def compiled(nvrtc, monkeypatch):
    """Count what is compiled indeed."""
    calls, real = [], compile.compile_cubin

    def counted(source, expression, options):
        calls.append(expression)
        return real(source, expression, options)

    monkeypatch.setattr(compile, "compile_cubin", counted)
    return calls


def twice(source=SOURCE, architecture="sm_90", options=()):
    return compile.image(source, "twice", architecture, options=options)


def test_key_of_a_kernel(cache, compiled, monkeypatch):
    """It has the source, the GPU, each option, the version of NVRTC and minicaffe's headers."""
    cubin, name = twice()
    assert cubin[:4] == b"\x7fELF" and name == "twice"
    assert twice() == (cubin, name) and len(compiled) == 1
    file, = cache.iterdir()         # no temporary file is left
    assert file.suffix == ".cubin" and file.read_bytes().startswith(compile.MAGIC)
    for others, changed in enumerate((
            {"source": SOURCE.replace("2", "3")}, {"architecture": "sm_80"}, {"options": ["-DN=1"]}, {"options": ["-DN=1", "-DM=2"]},
            {"options": ["--use_fast_math"]}, {"options": ["-DA=1", "-DB"]}, {"options": ["-DA=1-DB"]}), 2):
        twice(**changed)
        assert len(compiled) == len(list(cache.glob("*.cubin"))) == others, changed
    monkeypatch.setattr(compile, "_nvrtc_version", lambda: (99, 0))
    twice()
    texts = compile._kernel_texts()
    monkeypatch.setattr(compile, "_kernel_texts", lambda: [*texts[:-1], texts[-1] + "// changed"])
    twice()
    assert len(compiled) == 10


def test_damaged_entry_is_recompiled(cache, compiled, caplog):
    cubin, _ = twice()
    file, = cache.glob("*.cubin")
    whole = file.read_bytes()
    for number, damaged in enumerate((b"", whole[:10], whole[:-1], whole + b"\0", whole[:60] + bytes([whole[60] ^ 1]) + whole[61:],
                                      b"\0" * len(whole), b"minicaffe cubin 0\n" + whole[18:]), 2):
        file.write_bytes(damaged)
        caplog.clear()
        assert twice()[0] == cubin and len(compiled) == number, damaged[:100]
        assert "is damaged; it is made again" in caplog.text and file.read_bytes() == whole
        assert twice()[0] == cubin and len(compiled) == number


@pytest.mark.parametrize("below", ["", "below"])
def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch, compiled, caplog, below):
    (tmp_path / "cache").write_text("in the way")
    monkeypatch.setenv("MINICAFFE_CACHE", os.fspath(tmp_path / "cache" / below))
    for _ in range(2):
        assert twice()[0][:4] == b"\x7fELF"
    compile.write_cached_plan("a", "1")
    assert len(compiled) == 2 and compile.read_cached_plan("a") is None     # it works, compiled every time
    assert "cannot keep what is compiled and measured" in caplog.text and "MINICAFFE_CACHE names another folder" in caplog.text
    assert (tmp_path / "cache").read_text() == "in the way"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(cache, compiled, caplog):
    twice()
    cache.chmod(0o555)
    try:
        assert twice() and len(compiled) == 1  # reading still works
        twice(options=["-DN=2"])
        assert "cannot keep what is compiled" in caplog.text
    finally:
        cache.chmod(0o755)


@pytest.mark.slow(2)
def test_many_processes_at_once(nvrtc, cache):
    code = textwrap.dedent(f"""
        from minicaffe.cuda import compile
        for n in 1, 2, 1, 2:
            cubin, name = compile.image({SOURCE!r}, "twice", "sm_90", options=[f"-DN={{n}}"])
            assert cubin[:4] == b"\\x7fELF" and name == "twice"
        """)
    running = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) for _ in range(4)]
    for process in running:
        _, text = process.communicate(timeout=120)
        assert process.returncode == 0, text
        assert "damaged" not in text and "cannot keep" not in text
    files = list(cache.iterdir())
    assert len(files) == 2 and all(compile.cache_entry_name(f) == "twice" for f in files)


def test_limit_removes_the_oldest(cache, compiled, monkeypatch):
    for n in range(3):
        twice(options=[f"-DN={n}"])
    files = sorted(cache.glob("*.cubin"), key=lambda p: p.stat().st_mtime_ns)
    size, now = files[0].stat().st_size, time.time()
    for age, file in zip((300, 200, 100), files):
        os.utime(file, (now - age, now - age))
    monkeypatch.setattr(compile, "LIMIT", 3 * size + size // 2)
    twice(options=["-DN=0"])                # used again: no longer the oldest
    twice(options=["-DN=3"])
    assert len(compiled) == 4
    left = set(cache.glob("*.cubin"))
    assert files[1] not in left and {files[0], files[2]} <= left and len(left) == 3
    monkeypatch.setattr(compile, "LIMIT", 10)
    assert twice(options=["-DN=4"])[0][:4] == b"\x7fELF"


def test_choices_are_kept_side_by_side(cache, caplog, monkeypatch):
    """In one folder, which is made with those above it, each with its key; the last of one key counts."""
    cache /= "deep/down"
    monkeypatch.setenv("MINICAFFE_CACHE", os.fspath(cache))
    for place, choice in (("a", "1"), ("b", "2\nx"), ("a", "3"), ("", "")):
        compile.write_cached_plan(place, choice)
        assert compile.read_cached_plan(place) == choice
    assert [compile.read_cached_plan(place) for place in ("a", "b", "", "c")] == ["3", "2\nx", "", None]
    first, second = (next(p for p in cache.iterdir() if compile.cache_entry_name(p) == name) for name in "ab")
    first.write_bytes(second.read_bytes())      # whole, but of another key
    assert compile.read_cached_plan("a") is None and compile.read_cached_plan("b") == "2\nx"
    assert not caplog.records


@pytest.mark.parametrize("what", ["A<float>", ""])
def test_what_is_said_of_compiling(cache, monkeypatch, caplog, what):
    """Where the files are, once in a process; then one line for each kernel, by its short name if it has one."""
    monkeypatch.setattr(compile, "_notice_logged", False)
    monkeypatch.setattr(compile, "_nvrtc_version", lambda: (13, 0))
    monkeypatch.setattr(compile, "compile_cubin", lambda source, expression, options: (b"cubin of " + source.encode(), "symbol"))
    caplog.set_level("INFO", "minicaffe")
    for source in "one", "two", "one":
        assert compile.image(source, "mc::run<mc::A>", "sm_90", what) == (b"cubin of " + source.encode(), "symbol")
    notice, *lines = [(r.levelname, r.getMessage()) for r in caplog.records]
    assert notice == ("WARNING", f"compiling kernels for sm_90; they are kept in {cache}")
    assert [(level, re.sub("[0-9]+ ms", "0 ms", line)) for level, line in lines] == 2 * [("INFO", f"compiled {what or 'mc::run<mc::A>'} in 0 ms")]


def test_what_is_cleared_first(cache, monkeypatch):
    """The least recently used, until the rest fits; names of other endings are no files of the cache, and files may have gone."""
    cache.mkdir()
    (cache / "gone.cubin").symlink_to(cache / "nothing")    # listed, but no file any more
    sizes = {"a.cubin": 10, "b.so": 20, "c.plan": 30}       # the most recently used first
    for keep in (0, 9, 10, 29, 30, 59, 60, 61):
        for age, (name, size) in enumerate([*sizes.items(), ("d.txt", 99)]):
            (cache / name).write_bytes(b"x" * size)
            os.utime(cache / name, (10**9 - age, 10**9 - age))
        assert [(path.name, size) for path, size, _ in compile.cached()] == list(sizes.items())
        left = [name for name, total in zip(sizes, (10, 30, 60)) if total <= keep]
        assert compile.clear(keep) == 3 - len(left)
        assert sorted(p.name for p in cache.iterdir()) == sorted([*left, "d.txt", "gone.cubin"]), keep
    listed = compile.cached()
    (cache / "a.cubin").unlink()
    monkeypatch.setattr(compile, "cached", lambda: listed)
    compile.clear()
    assert sorted(p.name for p in cache.iterdir()) == ["d.txt", "gone.cubin"]


def test_compile_error_numbers_lines(cache, nvrtc):
    lines = ["// first line", 'extern "C" __global__ void twice(float* x) {', "  x[0] = undeclared;", "}"]
    with pytest.raises(DeviceError) as caught:
        compile.image("\n".join(lines), "twice", "sm_90")
    text = str(caught.value)
    assert caught.value.code == "NVRTC_ERROR_COMPILATION" and "twice does not compile" in text
    assert 'kernel.cu(3): error: identifier "undeclared" is undefined' in text
    assert "   3   x[0] = undeclared;" in text
    assert not list(cache.glob("*"))


def test_what_nvrtc_does_not_know(cache, nvrtc):
    for name, gpu, options, words in (("twice", "sm_12345", (), "architecture"), ("twice", "sm_90", ("--no-such-option",), "no-such-option"),
                                      ("thrice", "sm_90", (), "thrice")):
        with pytest.raises(DeviceError, match=words):
            compile.image(SOURCE, name, gpu, options=options)


def test_kernel_of_the_package(cache, nvrtc, tmp_path, monkeypatch):
    """Its parameters have the size that the host compiler gave; in a checkout of minicaffe headers are those of the package that runs."""
    (tmp_path / "minicaffe" / "kernels").mkdir(parents=True)
    (tmp_path / "minicaffe" / "kernels" / "config.hpp").write_text("#error the wrong one\n")
    monkeypatch.chdir(tmp_path)
    cubin, name = compile.kernel_image(FILL, 24, "sm_90")
    assert cubin[:4] == b"\x7fELF" and "Fill" in name
    assert compile.cache_entry_name(next(cache.glob("*.cubin"))) == name
    with pytest.raises(DeviceError, match="lay this kernel's parameters out differently"):
        compile.kernel_image(FILL, 16, "sm_90")
    assert compile.short_name(FILL) == "Each<Fill<float> >"


def test_message_without_nvrtc(cache, monkeypatch):
    import cuda.bindings.nvrtc as module
    compile.nvrtc.cache_clear()
    monkeypatch.setattr(module, "nvrtcVersion", lambda: (_ for _ in ()).throw(RuntimeError("Failure finding libnvrtc.so")))
    with pytest.raises(DependencyError, match=r'NVRTC.*libnvrtc.so.*pip install "minicaffe\[cuda\]"'):
        twice()


@pytest.mark.parametrize("fails", [False, True])
def test_second_library_of_nvrtc(nvrtc, tmp_path, monkeypatch, fails):
    from cuda import pathfinder
    loaded = []

    def load(path):
        loaded.append(os.path.basename(path))
        if fails:
            raise OSError("no library")

    for name in "libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "libnvrtc-builtins.alt.so.13.0":
        (tmp_path / name).write_bytes(b"")
    monkeypatch.setattr(compile.ctypes, "CDLL", load)
    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", lambda name: SimpleNamespace(abs_path=f"{tmp_path}/libnvrtc.so.13"))
    compile.nvrtc.cache_clear()
    assert compile.nvrtc() is nvrtc and loaded == ["libnvrtc-builtins.so.13.0"]


@pytest.mark.slow(1)
def test_the_command_shows_and_clears(cache, nvrtc):
    assert "0 files, 0 bytes of at most" in command("cache")  # the folder is not even there
    twice()
    compile.kernel_image(FILL, 24, "sm_90")
    compile.write_cached_plan("convolution by cuDNN", "1")
    (cache / "notes.txt").write_text("not ours")
    (cache / "broken.cubin").write_bytes(b"damaged")
    text = command("cache", "show")
    assert all(word in text for word in (os.fspath(cache), "4 files", "twice", "Fill", "broken.cubin", "convolution by cuDNN")), text
    assert "removed 4 files" in command("cache", "clear")
    assert [p.name for p in cache.iterdir()] == ["notes.txt"]
    assert "removed 0 files" in command("cache", "clear")
