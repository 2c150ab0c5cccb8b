"""The page "convolution up close" computes what the layers compute, and lights up what belongs together.

The layer of each setting is built from the prototxt that the page itself shows.
"""

import random
import re
from pathlib import Path

import numpy as np
import pytest

import minicaffe
from minicaffe import cli
from minicaffe.addons.trace import convolution_command as convolution
from minicaffe.errors import Error
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text

PAGE = convolution.PAGE
SETTINGS = ["", "height=6&width=6&pad=0&outputs=1", "channels=4&outputs=4&group=2&stride=1", "channels=3&outputs=3&group=3",
            "height=1&width=1&kernel=2&stride=2&pad=0",                         # too small by less than a stride: size 1
            "height=7&width=4&kernel=2&stride=1&pad=2&dilation=3"]


def some_settings(count=40):
    """Settings drawn from all that the page allows, some of which no layer can have."""
    draw = random.Random(1701)
    for _ in range(count):
        yield (f"height={draw.randint(1, 10)}&width={draw.randint(1, 10)}&channels={draw.randint(1, 4)}&outputs={draw.randint(1, 4)}"
               f"&group={draw.randint(1, 4)}&kernel={draw.randint(1, 5)}&stride={draw.randint(1, 4)}&pad={draw.randint(0, 3)}"
               f"&dilation={draw.randint(1, 3)}")


@pytest.fixture
def opened(browser):
    """A function that opens the page with settings; afterwards the console must be empty."""
    def open_page(settings=""):
        browser.get("about:blank")
        browser.get(f"{PAGE.as_uri()}#{settings}")
        return browser
    yield open_page
    assert browser.get_log("browser") == []


def net_of(text):
    """The net of a prototxt, run, with the page's values in the blob `x` and the weights."""
    net = Net(parse_text(text, caffe_pb2.NetParameter)[0])
    x = net.blob_by_name("x")
    x.data[...] = ((7 * np.arange(x.count) + 3) % 10).reshape(x.shape)
    for weights in net.layers[-1].blobs:
        weights.data[...] = ((5 * np.arange(weights.count) + 1) % 3 - 1).reshape(weights.shape)
    net.forward_from_to(0, len(net.layers) - 1)
    return net


def columns_of(text, shape, values):
    """What layer Im2col makes of `values` with the window of a convolution's prototxt."""
    text = re.sub(r"num_output: \d+|group: \d+|bias_term: false", "", text.replace('"Convolution"', '"Im2col"'))
    net = Net(parse_text(text, caffe_pb2.NetParameter)[0])
    net.blob_by_name("x").data[...] = np.reshape(values, shape)
    net.forward_from_to(0, 1)
    return net.blob_by_name("y").data.ravel()


def test_numbers_are_the_layers(opened):
    ask = """return arguments[0].map((text) => { const s = fromHash(text), L = layer(s);
             return {...L, at: null, pixel: null, text: prototxt(s)}; })"""
    refused = 0
    asked = [*SETTINGS, *some_settings()]
    for settings, page in zip(asked, opened().execute_script(ask, asked), strict=True):
        if "error" in page:
            with pytest.raises(Error) as raised:
                net_of(page["text"])
            assert page["error"].split(" in the")[0] in str(raised.value), settings
            refused += 1
            continue
        net = net_of(page["text"])
        y = net.blob_by_name("y")
        assert page["top"] == list(y.shape), settings
        np.testing.assert_allclose(page["y"], y.data.ravel(), rtol=1e-6, err_msg=settings)
        indices = np.arange(np.prod(page["bottom"])) + 1                # im2col writes 0 for what is outside
        assert (columns_of(page["text"], page["bottom"], indices) - 1).tolist() == page["pixels"], settings
        assert columns_of(page["text"], page["bottom"], page["x"]).tolist() == page["columns"], settings
    assert 3 < refused < len(asked) / 2


def lit(browser, grid, look):
    """The cells (row, column) of a grid that are lit in one way."""
    found = browser.execute_script("return [...document.querySelectorAll(`[data-grid=${arguments[0]}] g path.${arguments[1]}`)]"
                                   ".map((cell) => cell.dataset.cell)", grid, look)
    return {tuple(map(int, cell.split(","))) for cell in found}


def point_at(browser, grid, row, column):
    """Move the mouse over a cell."""
    from selenium.webdriver import ActionChains
    svg = browser.find_element("css selector", f"[data-grid={grid}]")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", svg)
    size = browser.execute_script("return grids.find((grid) => grid.name === arguments[0]).size", grid)
    box = svg.size
    ActionChains(browser, duration=0).move_to_element_with_offset(svg, int((column + 0.5) * size - box["width"] / 2),
                                                                  int((row + 0.5) * size - box["height"] / 2)).perform()


def test_cells_that_light_up(opened):
    page = opened("height=5&width=5&channels=2&outputs=2&kernel=3&stride=1&pad=1")
    point_at(page, "image1", 3, 2)                                      # channel 1, pixel (2, 1), as the padding has a row and a column
    index = (1 * 5 + 2) * 5 + 1
    assert f"is element {index}" in page.find_element("id", "said").text
    pixels = np.array(page.execute_script("return L.pixels")).reshape(18, 25)
    where = set(map(tuple, np.argwhere(pixels == index).tolist()))
    assert lit(page, "columns", "dots") == where and len(where) == 9    # the pixel is in nine windows
    assert lit(page, "columns", "strong") <= where
    (row, column), = lit(page, "columns", "strong")
    assert lit(page, "columns", "pale") == {(r, column) for r in range(18)}
    seen_by = {divmod(c, 5) for _, c in where}
    assert lit(page, "grid0", "pale") | lit(page, "grid0", "strong") == seen_by
    point_at(page, "columns", 0, 6)                                     # channel 0, tap (0, 0), window (1, 1)
    assert lit(page, "image0", "strong") == {(1, 1)} and lit(page, "grid0", "strong") == {(1, 1)}
    assert lit(page, "weight0", "strong") == {(0, 0)} and lit(page, "weights", "strong") == {(0, 0)}
    assert len(lit(page, "image0", "pale")) == 8 and len(lit(page, "image1", "pale")) == 9
    page = opened("channels=4&outputs=4&group=2&stride=1")
    point_at(page, "grid3", 0, 0)
    assert [bool(lit(page, f"image{c}", "pale")) for c in range(4)] == [False, False, True, True]
    assert {row // 9 for row, _ in lit(page, "columns", "pale")} == {2, 3}


def test_keys_and_settings(opened):
    from selenium.webdriver.common.keys import Keys
    page = opened("stride=1&kernel=3&pad=1")
    page.find_element("css selector", "[data-grid=grid0]").send_keys(Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.PAGE_DOWN)
    assert lit(page, "grid1", "strong") == {(3, 2)}
    assert "held" in page.find_element("id", "said").text
    page.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert "held" not in page.find_element("id", "said").text
    slider = page.find_element("css selector", "input[name=kernel]")
    slider.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)                # which keeps the focus
    assert "kernel=5&" in page.current_url and page.execute_script("return L.top") == [1, 2, 3, 3]
    page.find_element("id", "show-values").send_keys(Keys.SPACE)
    texts = page.execute_script("return [...document.querySelectorAll('[data-grid=grid0] > text')].map((text) => text.textContent)")
    assert texts == [str(int(y)) for y in page.execute_script("return L.y")[:9]]
    opened("kernel=5&pad=0&height=3&width=9&stride=1")
    assert "the output would have size -1 along spatial axis 0, where the input has 3" in page.find_element("id", "error").text
    assert not page.find_element("id", "flow").is_displayed()


def test_a_narrow_page(opened, screen):
    screen(360)
    page = opened("channels=4&outputs=4&height=10&width=10")
    assert page.execute_script("return document.documentElement.scrollWidth") == 360
    assert page.execute_script("return named('columns').readable"), "cells too small for their numbers"


@pytest.mark.slow(3)
def test_command_and_its_file(tmp_path, monkeypatch, capsys):
    assert cli.main(["convolution", "--html", str(tmp_path / "c.html")]) == 0
    assert (tmp_path / "c.html").read_bytes() == PAGE.read_bytes()
    assert cli.main(["convolution", "--html", str(tmp_path / "none" / "c.html")]) == 1
    assert "none/c.html: cannot be written: the folder" in capsys.readouterr().err
    opened = []
    monkeypatch.setattr(convolution.webbrowser, "open", lambda address: opened.append(address) or len(opened) == 1)
    assert cli.main(["convolution"]) == 0 and opened == [PAGE.as_uri()]
    assert str(PAGE) in capsys.readouterr().out
    assert cli.main(["convolution"]) == 1
    assert "--html FILE" in capsys.readouterr().err
    assert Path(minicaffe.__file__).parent in PAGE.parents and PAGE.exists()
    assert re.findall(r"https?://|<link [^>]*href=\"(?!data:)|<script [^>]*src|@import|url\((?!#)", PAGE.read_text()) == []
