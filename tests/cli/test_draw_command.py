"""``minicaffe draw``: folded blocks, and the page on which layers can be chosen."""

import importlib.util
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe import cli
from minicaffe.cli import net_page
from minicaffe.cli.draw import FOLDED_ABOVE

BLOCK = """layer {{ name: "block{n}/conv" type: "Convolution" bottom: "{below}" top: "c{n}" param {{ lr_mult: 2 }} param {{ name: "bias{n}" decay_mult: 0 }}
  convolution_param {{ num_output: 3 kernel_size: 1 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "block{n}/relu" type: "ReLU" bottom: "c{n}" top: "c{n}" }}
"""
DATA = """name: "a <net>" layer { name: "in" type: "DummyData" top: "data" top: "label" dummy_data_param { shape { dim: 2 dim: 3 dim: 4 dim: 4 } shape { dim: 2 } } }
"""
END = 'layer { name: "end" type: "Power" bottom: "c%d" top: "end" } layer { name: "</script>" type: "Power" bottom: "c%d" top: "</style>" }\n'


def net_of(blocks):
    return DATA + "".join(BLOCK.format(n=n, below=f"c{n - 1}" if n else "data") for n in range(blocks)) + END % (blocks - 1, blocks - 1)


@pytest.fixture
def there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.prototxt").write_text(net_of(40))
    (tmp_path / "small.prototxt").write_text(net_of((FOLDED_ABOVE - 3) // 2))
    net = caffe.Net("net.prototxt", caffe.TEST)
    net.params["block3/conv"][0].data[...] = np.arange(9).reshape(3, 3, 1, 1)
    net.params["block3/conv"][1].data[...] = (0, np.nan, 2)
    net.save("w.caffemodel")
    return tmp_path


SAID = "78 layers are repetitions of a block, which is drawn once; --unfold draws each"


def drawn(path):
    return len(re.findall('<g class="layer', Path(path).read_text()))


def test_a_large_net_is_folded_and_a_line_says_so(there, capsys):
    def said(*arguments):
        assert cli.main([*arguments]) == 0
        return capsys.readouterr().err
    assert said("draw", "net.prototxt", "a.svg") == SAID + "\n" and drawn("a.svg") == 5
    assert said("draw", "net.prototxt", "b.svg", "--unfold") == "" and drawn("b.svg") == 83
    assert said("draw", "net.prototxt", "c.svg", "--quiet") == "" and drawn("c.svg") == 5
    assert said("draw", "small.prototxt", "d.svg") == "" and drawn("d.svg") == FOLDED_ABOVE - 1
    assert "repetitions" in said("draw", "small.prototxt", "e.svg", "--fold") and drawn("e.svg") == 5
    assert said("draw_net", "net.prototxt", "f.svg") == "" and drawn("f.svg") == 83      # as Caffe draws
    assert said("draw", "net.prototxt", "g.svg", "--shapes", "--phase=TEST") == SAID + "\n" and "2×3×4×4" in Path("g.svg").read_text()
    assert said("draw", "net.prototxt", "h.dot") == "" and "block39/relu" in Path("h.dot").read_text()


@pytest.mark.parametrize(("arguments", "status", "text"), [
    (["net.dot", "--fold"], 2, "--fold is for .svg, .png and .html, got net.dot"), (["net.svg", "--weights=w.caffemodel"], 2, "--weights is for .html, got net.svg"),
    (["net.dot", "--shapes", "--phase=TEST"], 2, "--shapes is for .svg, .png and .html"), (["net.html", "--weights=none"], 1, "none: no such file"),
    (["none/net.html"], 1, "none/net.html: cannot be written")])
def test_what_is_refused(there, capsys, arguments, status, text):
    assert cli.main(["draw", "net.prototxt", *arguments]) == status
    assert text in capsys.readouterr().err.splitlines()[-1] and not list(there.glob("net.[!p]*"))


def data_of(path):
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', Path(path).read_text(), re.S)[1])


def test_the_page_has_definitions_shapes_and_statistics(there, capsys):
    assert cli.main(["draw", "net.prototxt", "n.html", "--weights", "w.caffemodel", "--quiet"]) == 0
    page, data = Path("n.html").read_text(), data_of("n.html")
    assert "{{" not in page and not re.search(r"""(?:src|href|url)\s*[=(]\s*["']?(?!data:|#|http://www.w3.org)\w+[:/.]""", page)
    assert "<title>a &lt;net&gt;: a drawing of minicaffe</title>" in page and data["folded"] == 78
    layers = {layer["name"]: layer for layer in data["layers"]}
    weight, bias = layers["block3/conv"]["parameters"]
    assert (weight["shape"], weight["count"], weight["lr_mult"], bias["name"], bias["decay_mult"]) == ("3×3×1×1", 9, "2", "blobs[1] (bias3)", "0")
    assert dict(weight["statistics"])["max"] == "8" and dict(weight["statistics"])["zeros"] == "11.11%" and sum(weight["histogram"]) == 9
    assert dict(bias["statistics"])["not finite"] == "1"
    assert "num_output: 3" in layers["block3/conv"]["text"] and layers["block3/relu"]["place"] == "in place"
    assert layers["in"]["type"] == "DummyData" and data["shapes"]["c5"] == "2×3×4×4" and "</script>" in layers
    assert cli.main(["draw", "net.prototxt", "o.html", "--phase", "TRAIN"]) == 0
    bare = data_of("o.html")
    assert "net.prototxt, phase TEST, 83 layers, weights of w.caffemodel" in page and "net.prototxt, phase TRAIN, 83 layers<" in Path("o.html").read_text()
    assert net_page.times(()) == "scalar"
    assert not bare["weights"] and {layer["name"]: layer for layer in bare["layers"]}["block3/conv"]["parameters"][0]["statistics"] == []
    assert "a page is of one phase" not in capsys.readouterr().err
    assert cli.main(["draw", "small.prototxt", "p.html"]) == 0 and data_of("p.html")["folded"] == 0
    assert "a page is of one phase: TEST; --phase TRAIN shows the other" in capsys.readouterr().err


def test_a_page_has_colours_of_its_own(there, capsys):
    """A drawing that is a file has a background, by the reader's setting a dark one; the drawings of a page have the page's."""
    background = ".net-drawing { color: #e4e7eb; background: #16191d; }"
    for path, count in (("n.html", 0), ("n.svg", 1)):
        assert cli.main(["draw", "net.prototxt", path, "--quiet"]) == 0
        assert Path(path).read_text().count(background) == count


def test_a_page_needs_no_data_and_shows_the_layer_that_reads_them(there, capsys):
    (there / "db.prototxt").write_text('''layer { name: "d" type: "Data" top: "x" top: "y" include { phase: TRAIN } data_param { source: "train" batch_size: 2 } }
        layer { name: "d" type: "Data" top: "x" top: "y" include { phase: TEST } transform_param { crop_size: 4 } data_param { source: "test" batch_size: 2 } }
        layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 2 } }''')
    assert cli.main(["draw", "db.prototxt", "d.html"]) == 0
    layer = data_of("d.html")["layers"][0]
    assert layer["type"] == "Data" and 'source: "test"' in layer["text"] and layer["top_shapes"][0] == "2×3×4×4"
    assert 'data-type="Data"' in Path("d.html").read_text()


@pytest.fixture
def browser(tmp_path):
    missing = [name for name, found in (("selenium", importlib.util.find_spec("selenium")), ("chromium", shutil.which("chromium")),
                                        ("chromedriver", shutil.which("chromedriver"))) if not found]
    if missing:
        pytest.skip(f"no {', no '.join(missing)}: pip install selenium, apt install chromium chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1200,800", f"--user-data-dir={tmp_path}/profile"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()


def test_layers_and_blobs_are_chosen_in_the_page(there, browser):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    assert cli.main(["draw", "net.prototxt", "n.html", "--weights", "w.caffemodel", "--quiet"]) == 0
    browser.get((there / "n.html").as_uri())

    def find(selector):
        return browser.find_element(By.CSS_SELECTOR, selector)

    def count(selector):
        return len(browser.find_elements(By.CSS_SELECTOR, selector))

    def details():
        return find("#details").text

    assert count("#net g.layer") == 5 and count("#net g.fold") == 1 and find("#unfold").text == "Unfold 78 layers"
    find('g[data-layer="block0/conv"]').click()
    assert "blobs[0]: 3×3×1×1" in details() and "times 2" in details() and "num_output: 3" in details() and count("#details .bars i") == 24
    find('g[data-blob="c0"]').send_keys(Keys.ENTER)
    assert details().startswith("c0") and "Read by" in details() and count("#net .edge.chosen") == 1
    find("g.fold").click()          # shows the first layer of the block, and unfolds
    assert details().startswith("block1/conv") and count("#net g.layer") == 83 and count("#net g.fold") == 0
    find("#unfold").click()
    assert count("#net g.fold") == 1
    find("#search").send_keys("block3/conv", Keys.ENTER)
    assert details().startswith("block3/conv") and "not finite 1" in details() and count("#net g.layer") == 83
    browser.execute_script("[...document.querySelectorAll('g.layer')].find(g => g.dataset.layer === '</script>').dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    assert details().startswith("</script>")
    browser.get("about:blank")
    browser.get((there / "n.html").as_uri() + "#layer=block3%2Fconv")
    assert details().startswith("block3/conv")
    colours = set()
    for _ in range(2):
        colours.add(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))
        find("#theme").click()
    assert len(colours) == 2
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
