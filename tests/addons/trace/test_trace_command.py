"""``minicaffe trace``: what it prints and writes, of nets and solvers, whole and failing ones."""

import json
import os
import re
import subprocess
import sys

import pytest
from tiny import NET

from minicaffe.addons import trace


def test_a_net_and_a_solver(minicaffe, folder):
    for file in ("net.prototxt", "solver.prototxt"):
        out = minicaffe("trace", file, "--iterations", "2", "--json", "t.json", "--force")
        assert "> scale" in out and "< scale" in out and "= update" in out and "wrote t.json" in out
        assert re.search(r"^live memory, host(, page-locked)?: at most ", out, re.M)
        made = trace.load(folder / "t.json")
        assert {step["iteration"] for step in made.steps} == {0, 1} and made.document["net"]["file"] == "net.prototxt"
    assert not list(folder.glob("*.caffemodel"))


def test_page_of_the_cpu(folder):
    """States of memories name a device, also where none is used; a page must not begin with that empty place."""
    subprocess.run([sys.executable, "-m", "minicaffe", "trace", "net.prototxt", "--html", "t.html"], check=True, capture_output=True,
                   env={**os.environ, "MINICAFFE_DEVICE": "cpu"})
    page = json.loads(re.search(r'id="trace">(.*?)</script>', (folder / "t.html").read_text(), re.S)[1])
    assert [place["title"] for place in page["places"]] == ["host"] and any(page["places"][0]["usage"].values())


def test_on_the_simulated_device(minicaffe, folder, on_cpu, device, monkeypatch):
    where = "gpu" if device == "gpu" else "sim"     # a process has one of them
    monkeypatch.setenv("MINICAFFE_DEVICE", "cpu")   # the option changes the variable
    import minicaffe as caffe
    try:
        out = minicaffe("trace", "net.prototxt", "--device", where, "--json", "t.json")
    finally:
        caffe.set_mode_cpu()
    assert "live memory, device 0: at most " in out
    made = trace.load(folder / "t.json")
    assert made.document["device"]["kind"] == where and "launch" in {event.kind for event in made.events}


def test_failing_net(minicaffe, folder):
    broken = NET.replace('type: "EuclideanLoss"', 'type: "SoftmaxWithLoss"').replace("value: 1 }", "value: 99 }")
    broken = broken.replace("shape { dim: 8 dim: 4 } shape { dim: 8 dim: 4 }", "shape { dim: 8 dim: 4 } shape { dim: 8 }")
    (folder / "net.prototxt").write_text(broken)
    assert "loss" in minicaffe("trace", "net.prototxt", "--json", "t.json", status=1)
    assert [step["layer"] for step in trace.load(folder / "t.json").steps if step["kind"] == "forward"] == ["in", "scale", "loss"]


def test_an_output_that_cannot_be_written(minicaffe, folder):
    assert "no/such/t.json" in minicaffe("trace", "net.prototxt", "--json", "no/such/t.json", status=1)
    (folder / "dir").mkdir()
    assert "dir: cannot be written: it is a folder" in minicaffe("trace", "gone.prototxt", "--html", "dir", status=1)    # before all else


def test_a_net_that_is_not_trusted(minicaffe, folder):
    minicaffe("trace", "net.prototxt", "--untrusted")     # the solver is the command's own


def test_a_deploy_net_runs_forward_only(minicaffe, folder):
    (folder / "deploy.prototxt").write_text("""layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
      layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 4 } }""")
    assert "no loss" in minicaffe("trace", "deploy.prototxt", status=2)
    minicaffe("trace", "deploy.prototxt", "--phase", "TEST", "--iterations", "2", "--json", "t.json")
    made = trace.load(folder / "t.json")
    steps = [(step["iteration"], step["kind"], step["layer"]) for step in made.steps if step["node"] is not None]
    assert steps == [(i, "forward", name) for i in (0, 1) for name in ("in", "ip")] and made.document["net"]["phase"] == "TEST"


def test_steps_in_full(minicaffe, folder):
    out = minicaffe("trace", "net.prototxt", "--step", "--json", "t.json")
    assert out.startswith("step 0 of") and out.count("layer scale, ") == 2 and out.endswith("wrote t.json\n")      # no table before it


def test_the_document_is_plain_json(minicaffe, folder):
    minicaffe("trace", "net.prototxt", "--json", "t.json")
    document = json.loads((folder / "t.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert document["format"] == 1


def test_page_and_perfetto_files(minicaffe, folder):
    out = minicaffe("trace", "net.prototxt", "--html", "t.html", "--perfetto", "t.perfetto")
    assert "wrote t.html" in out and "wrote t.perfetto" in out
    assert '<svg class=\\"net-drawing' in (folder / "t.html").read_text().replace("\\u003c", "<").replace('xmlns=\\"http://www.w3.org/2000/svg\\" ', "")
    assert json.loads((folder / "t.perfetto").read_text())["traceEvents"]
    assert "none" in minicaffe("trace", "net.prototxt", "--html", "none/t.html", status=1)
