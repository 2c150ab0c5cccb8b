"""Every command that builds a net names the line of the layer that is wrong."""

import cv2
import numpy as np
import pytest

from minicaffe import cli
from minicaffe.data.class_folders import convert_folders

NET = """layer { name: "data" type: "Data" top: "data" top: "label" data_param { source: "db/train_lmdb" backend: LMDB batch_size: 2 } }
layer { name: "first" type: "InnerProduct" bottom: "data" top: "first" %s }
layer { name: "ip" type: "InnerProduct" bottom: "first" top: "ip" inner_product_param { num_output: 2 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
FAULTS = {"number": ("inner_product_param { num_output: 0 }", "inner_product_param.num_output: must be at least 1, got 0"),
          "rules": ("include { phase: TRAIN } exclude { phase: TEST }", "include: give include rules or exclude rules, not both")}
COMMANDS = ["summary bad.prototxt", "summary bad.prototxt --phase TEST", "summary solver.prototxt",
            "draw bad.prototxt out.svg --shapes --phase TRAIN", "train bad.prototxt", "train solver.prototxt",
            "train bad.prototxt --class-weights auto", "test bad.prototxt --weights net.caffemodel", "time bad.prototxt", "trace bad.prototxt",
            "gradcheck bad.prototxt", "export bad.prototxt -o out.onnx", "fold bad.prototxt net.caffemodel -o out",
            "extract_features net.caffemodel bad.prototxt ip out 1",
            "classify pictures/a/0.png --model bad.prototxt --weights net.caffemodel", "detect pictures/a/0.png --model bad.prototxt --weights net.caffemodel",
            "deploy bad.prototxt net.caffemodel -o out", "finetune bad.prototxt net.caffemodel db"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lines")
    for path in ("pictures/a", "pictures/b"):
        (folder / path).mkdir(parents=True)
        for i in range(3):
            cv2.imwrite(str(folder / path / f"{i}.png"), np.full((4, 4, 3), 90 * i, np.uint8))
    convert_folders(str(folder / "pictures"), str(folder / "db"))
    (folder / "solver.prototxt").write_text('net: "bad.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 1\n')
    (folder / "net.caffemodel").write_bytes(b"\n\1x")
    return folder


@pytest.mark.parametrize(("command", "fault"), [(command, fault) for command in COMMANDS for fault in FAULTS
                                                if (command[:6], fault) != ("export", "number")])    # it takes deploy nets alone
def test_errors_have_lines(folder, monkeypatch, capsys, command, fault):
    monkeypatch.chdir(folder)
    fields, text = FAULTS[fault]
    (folder / "bad.prototxt").write_text(NET % fields)
    assert cli.main([*command.split(), "--quiet"]) == 2
    assert f"bad.prototxt:2: layer 'first' (InnerProduct): {text}" in capsys.readouterr().err


def test_missing_data_with_advice(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    (folder / "bad.prototxt").write_text(NET.replace("db/train_lmdb", "none") % "inner_product_param { num_output: 2 }")
    assert cli.main(["summary", "bad.prototxt"]) == 1
    error = capsys.readouterr().err
    assert "bad.prototxt:1: layer 'data' (Data): data_param.source: none: no such database" in error and "--shape data=" in error


@pytest.mark.parametrize("command", ["summary", "train"])
def test_lines_in_a_solver(folder, monkeypatch, capsys, command):
    monkeypatch.chdir(folder)
    net = NET % "inner_product_param { num_output: 0 }"
    (folder / "inline.prototxt").write_text(f'base_lr: 0.1 lr_policy: "fixed" max_iter: 1\nnet_param {{\n{net}}}\n')
    assert cli.main([command, "inline.prototxt", "--quiet"]) == 2
    assert "inline.prototxt:4: layer 'first' (InnerProduct): inner_product_param.num_output" in capsys.readouterr().err
