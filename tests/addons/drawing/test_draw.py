"""minicaffe.draw: formats of pictures, and what is refused."""

import sys
from xml.etree import ElementTree

import cv2
import pytest

import minicaffe as caffe
from minicaffe import draw
from minicaffe.addons.drawing import svg
from minicaffe.errors import ConfigError, DependencyError, FileError


def test_formats(net, tmp_path):
    draw.draw_net_to_file(net, tmp_path / "net.svg", "TB", caffe.TEST, True)
    assert (tmp_path / "net.svg").read_bytes() == draw.draw_net(net, "TB", "svg", caffe.TEST, True) == svg.net_svg(net, "TB", caffe.TEST, True).encode()
    for name, got in (("net.dot", "got .dot"), ("net", "got no extension")):
        with pytest.raises(ConfigError, match=f"^{tmp_path}/{name}: a net is drawn as .svg or .png, {got}; rsvg-convert and Inkscape make .pdf"):
            draw.draw_net_to_file(net, tmp_path / name)
        assert not (tmp_path / name).exists()
    with pytest.raises(ConfigError, match="^a net is drawn as .svg or .png, got .pdf"):
        draw.draw_net(net, "LR", "pdf")
    net.layer[0].exclude.add(phase=caffe.TEST)
    with pytest.raises(ConfigError, match="not both"):
        draw.draw_net(net, "LR", "svg", phase=caffe.TRAIN)


def test_png(net, tmp_path, monkeypatch):
    with monkeypatch.context() as context:
        context.setitem(sys.modules, "resvg_py", None)
        with pytest.raises(DependencyError, match="pip install"):
            draw.draw_net(net, "LR", "png")
    pytest.importorskip("resvg_py", reason="resvg-py makes the pixels")
    draw.draw_net_to_file(net, tmp_path / "net.png", "TB")
    picture = cv2.imread(str(tmp_path / "net.png"))
    width = float(ElementTree.fromstring(svg.net_svg(net)).get("width"))
    assert picture.shape[1] == 2 * width and (picture[0, 0] == 255).all()
    assert (abs(picture.astype(int) - (0x3B, 0x3F, 0xB8)).sum(axis=-1) == 0).sum() > 1000    # the convolution's box, BGR
    with pytest.raises(FileError, match="cannot be written"):
        draw.draw_net_to_file(net, tmp_path / "none" / "net.svg")
