"""``minicaffe draw``: shapes, the types of layers that read data, and what is refused."""

import os
import re
from pathlib import Path

import pytest

from minicaffe import cli

DATA = 'layer {{ name: "d" type: "{}" top: "x" top: "y" include {{ phase: {} }} {} }}\n'
TRAIN, IP = (DATA.format("Data", "TRAIN", 'data_param { source: "train" batch_size: 2 } %s'),
             'layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 2 } param { lr_mult: 2 } }')
CROP = "transform_param { crop_size: 4 }"
NET = 'name: "a <net>"\n' + TRAIN % "" + DATA.format("Data", "TEST", f'{CROP} data_param {{ source: "test" batch_size: 2 }}') + IP


@pytest.fixture
def there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.prototxt").write_text(NET)
    return tmp_path


def drawn(path):
    return re.findall('<g class="layer .*? data-layer="(.*?)" data-type="(.*?)"', Path(path).read_text())


def test_options_and_shapes(there, capsys):
    assert cli.main(["draw", "net.prototxt", "a.svg"]) == 0
    assert drawn("a.svg") == [("d", "Data"), ("d", "Data"), ("ip", "InnerProduct")] and "a &lt;net&gt;" in Path("a.svg").read_text()
    assert cli.main(["draw-net", "net.prototxt", "b.svg", "--phase=TEST", "--display_lrm", "-rankdir=LR"]) == 0
    assert len(drawn("b.svg")) == 2 and "lr mult 2, 1" in Path("b.svg").read_text()
    assert capsys.readouterr().out == "Drawing net to a.svg\nDrawing net to b.svg\n"
    height, width = (float(re.search(f'{side}="([0-9]+)"', Path("b.svg").read_text())[1]) for side in ("height", "width"))
    assert width > height
    assert cli.main(["draw", "net.prototxt", "c.svg", "--shapes", "--phase=TEST"]) == 0
    assert drawn("c.svg") == [("d", "Data"), ("ip", "InnerProduct")] and "x  2×3×4×4" in Path("c.svg").read_text()
    assert cli.main(["draw", "net.prototxt", "d.svg", "--shapes"]) == 2
    assert "--shapes: a net is built for one phase; give --phase TRAIN or TEST" in capsys.readouterr().err


@pytest.mark.parametrize(("phase", "kind"), [("TRAIN", "Data"), ("TEST", "ImageData")])
def test_types_of_a_phase(there, phase, kind):
    test = DATA.format("ImageData", "TEST", 'image_data_param { source: "test" batch_size: 2 new_height: 4 new_width: 6 }')
    (there / "net.prototxt").write_text(TRAIN % CROP + test + IP)
    assert cli.main(["draw", "net.prototxt", "c.svg", "--shapes", f"--phase={phase}"]) == 0
    assert drawn("c.svg") == [("d", kind), ("ip", "InnerProduct")] and ("x  2×3×4×6" in Path("c.svg").read_text()) == (phase == "TEST")


def test_what_is_refused(there, capsys):
    for picture, status, text in (
            ("net.dot", 2, "net.dot: a net is drawn as .svg or .png, got .dot; rsvg-convert and Inkscape make .pdf and other formats of an .svg"),
            ("net", 2, "net: a net is drawn as .svg or .png, got no extension"), ("none/net.svg", 1, "none/net.svg: cannot be written")):
        assert cli.main(["draw", "net.prototxt", picture]) == status
        assert text in capsys.readouterr().err.splitlines()[-1] and [path.name for path in there.iterdir()] == ["net.prototxt"]
    Path("empty.prototxt").write_text("")
    assert cli.main(["draw", "empty.prototxt", "x.svg"]) == 2
    assert "empty.prototxt: has no layer to" in capsys.readouterr().err


def test_old_nets_and_strange_names(there):
    name = os.fsdecode(b"net\xff.prototxt")
    Path(name).write_text('layers { name: "ip" type: INNER_PRODUCT bottom: "x" top: "y" inner_product_param { num_output: 3 } }')
    assert cli.main(["draw_net", name, "net.svg", "-rankdir=TB"]) == 0
    assert drawn("net.svg") == [("ip", "InnerProduct")]
