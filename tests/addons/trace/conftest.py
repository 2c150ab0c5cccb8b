"""Traces of small nets on the CPU and on the simulated device, in the default run, too."""

import importlib.util
import shutil

import pytest
from small_net import NET

from minicaffe.proto import caffe_pb2, text
from minicaffe.solver import create_solver


@pytest.fixture
def make_solver():
    """Return a function that makes a solver for the text of a net; options are those of Solver, or fields of its file."""
    def make(net=NET, plan=None, **fields):
        param = caffe_pb2.SolverParameter(**{"type": "SGD", "base_lr": 0.05, "lr_policy": "fixed", "momentum": 0.9, "random_seed": 1,
                                             "snapshot_after_train": False, **fields})
        param.net_param.CopyFrom(text.parse_text(net, caffe_pb2.NetParameter)[0])
        return create_solver(param, plan=plan)
    return make


FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--window-size=1440,1000")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Chromium; a visible skip says what is missing."""
    missing = [name for name, there in (("selenium", importlib.util.find_spec("selenium")), ("chromium", shutil.which("chromium")),
                                        ("chromedriver", shutil.which("chromedriver"))) if not there]
    if missing:
        pytest.skip(f"no {', no '.join(missing)}: pip install selenium, apt install chromium chromium-driver")
    from selenium import webdriver
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    yield driver
    driver.quit()


@pytest.fixture
def screen(browser):
    """Return a function that gives the browser a width, and a colour scheme."""
    def resize(width, scheme="light"):
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 400})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    yield resize
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
