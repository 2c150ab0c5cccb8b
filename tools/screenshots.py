"""Take the pictures of pages that README and docs/ show: the view of a trace, of LeNet on the simulated device, and convolution.

Needs Debian's chromium and chromium-driver, and ``pip install selenium pillow``. Run it in the root of the repository::

    python tools/screenshots.py            # writes docs/pictures/view-light.png and the others
"""

import argparse
import contextlib
import io
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

ROOT = Path(__file__).resolve().parent.parent
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--hide-scrollbars")
COLOURS = 224       # enough for this page, and a third of the bytes
CONVOLUTION = ROOT / "minicaffe" / "addons" / "trace" / "view" / "convolution.html"
SETTINGS = "#height=5&width=5&channels=1&outputs=1&kernel=3&stride=1&pad=1"
LIGHT_UP = "Object.assign(lit, {p: 1, q: 2, i: 2, j: 1}); settle(); show()"
PICTURES = {        # name: width, height, colour scheme, what is done before
    "view-light": (1440, 1010, "light", ""),
    "view-dark": (1440, 1010, "dark", ""),
    "view-small": (390, 844, "light", ""),
    "convolution-light": (1560, 737, "light", LIGHT_UP),
    "convolution-dark": (1560, 737, "dark", LIGHT_UP),
}


@contextlib.contextmanager
def browser():
    """Start chromium without a window."""
    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
        try:
            yield driver
        finally:
            driver.quit()


def take(driver, page, name, step):
    """Take one picture of a page at a step."""
    width, height, scheme, script = PICTURES[name]
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    driver.get(CONVOLUTION.as_uri() + SETTINGS if name.startswith("convolution") else f"{page.as_uri()}#step={step}")
    driver.execute_async_script(script + "; requestAnimationFrame(() => setTimeout(arguments[0], 300))")
    return Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB").quantize(COLOURS)


def main():
    """Make the trace, and a file for each picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    parser.add_argument("--page", type=Path, help="a page that is there already")
    parser.add_argument("--step", type=int, default=5, help="the step to show")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, browser() as driver:
        page = arguments.page
        if page is None:
            page = Path(folder) / "lenet.html"
            command = [sys.executable, "-m", "minicaffe", "trace", "models/lenet/net.prototxt", "--iterations", "2"]
            subprocess.run([*command, "--device", "sim", "--html", str(page)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        for name in PICTURES:
            path = arguments.out / f"{name}.png"
            take(driver, page.resolve(), name, arguments.step).save(path, optimize=True)
            print(f"{path.stat().st_size:>8,} {path}")


if __name__ == "__main__":
    main()
