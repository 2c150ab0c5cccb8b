"""``minicaffe draw``: shapes, the types of layers that read data, and what is refused."""

import re
from pathlib import Path

import pytest

from minicaffe import cli

NET = """name: "a <net>"
layer { name: "d" type: "Data" top: "x" top: "y" include { phase: TRAIN } data_param { source: "train" batch_size: 2 } }
layer { name: "d" type: "Data" top: "x" top: "y" include { phase: TEST } transform_param { crop_size: 4 } data_param { source: "test" batch_size: 2 } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 2 } param { lr_mult: 2 } }
"""


@pytest.fixture
def there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.prototxt").write_text(NET)
    return tmp_path


def drawn(path):
    return re.findall('<g class="layer .*? data-layer="(.*?)" data-type="(.*?)"', Path(path).read_text())


def test_a_large_net_is_folded_and_a_line_says_so(there, capsys):
    def said(*arguments):
        assert cli.main([*arguments]) == 0
        return capsys.readouterr().err
    assert said("draw", "net.prototxt", "a.svg") == SAID + "\n" and drawn("a.svg") == 5
    assert said("draw", "net.prototxt", "b.svg", "--unfold") == "" and drawn("b.svg") == 83
    assert said("draw", "net.prototxt", "c.svg", "--quiet") == "" and drawn("c.svg") == 5
    assert said("draw", "small.prototxt", "d.svg") == "" and drawn("d.svg") == FOLDED_ABOVE - 1
    assert "repetitions" in said("draw", "small.prototxt", "e.svg", "--fold") and drawn("e.svg") == 5
    assert said("draw", "net.prototxt", "g.svg", "--shapes", "--phase=TEST") == SAID + "\n" and "2×3×4×4" in Path("g.svg").read_text()
    assert said("draw", "net.prototxt", "h.dot") == "" and "block39/relu" in Path("h.dot").read_text()


def test_shapes_need_no_data(there, capsys):
    """The layer that reads the data keeps its type, and there is a picture of each phase only."""
    assert cli.main(["draw", "net.prototxt", "c.svg", "--shapes", "--phase=TEST"]) == 0
    assert drawn("c.svg") == [("d", "Data"), ("ip", "InnerProduct")] and "x  2×3×4×4" in Path("c.svg").read_text()
    assert cli.main(["draw", "net.prototxt", "d.svg", "--shapes"]) == 2
    assert "--shapes: a net is built for one phase; give --phase TRAIN or TEST" in capsys.readouterr().err


@pytest.mark.parametrize(("picture", "status", "text"), [
    ("net.dot", 2, "net.dot: a net is drawn as .svg or .png, got .dot; rsvg-convert and Inkscape make .pdf and other formats of an .svg"),
    ("net", 2, "net: a net is drawn as .svg or .png, got no extension"), ("none/net.svg", 1, "none/net.svg: cannot be written")])
def test_what_is_refused(there, capsys, picture, status, text):
    assert cli.main(["draw", "net.prototxt", picture]) == status
    assert text in capsys.readouterr().err.splitlines()[-1] and [path.name for path in there.iterdir()] == ["net.prototxt"]
