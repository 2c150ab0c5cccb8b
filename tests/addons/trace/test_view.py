"""The view of a trace in a real browser.

One trace of LeNet on the simulated device serves all tests. Where selenium, chromium or
chromedriver are missing the tests of the page skip and say which.
"""

import json
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from minicaffe import memory
from minicaffe.addons.trace import Trace, html, load, record, table

pytestmark = pytest.mark.slow(30)    # all together

ROOT = Path(__file__).resolve().parent.parent.parent.parent
CHOOSE_HOST = "$('place').value = 'CPUPlace()'; $('place').dispatchEvent(new Event('change'))"
SLOW = 5        # other processes of a test machine may be busy: a bound in milliseconds is this many times what a user may wait


@pytest.fixture(scope="module")
def lenet(tmp_path_factory):
    """The files of three iterations, made in a process of its own, as the device is chosen once for each."""
    files = {kind: tmp_path_factory.mktemp("lenet") / f"lenet.{kind}" for kind in ("html", "json")}
    subprocess.run([sys.executable, "-P", "-m", "minicaffe", "trace", "models/lenet/net.prototxt", "--iterations", "3", "--device", "sim",
                    "--json", files["json"], "--html", files["html"]], cwd=ROOT, check=True)
    return files


@pytest.fixture(scope="module")
def trace(lenet):
    return load(lenet["json"])


class Page:
    """The page in the browser."""

    def __init__(self, browser, path):
        self.browser = browser
        browser.get("about:blank")      # or another part after # would not reload the page
        browser.get(path if isinstance(path, str) else path.as_uri())

    def state(self, script=""):
        return self.browser.execute_script(f"{script}; return view.state()")

    def text(self, selector):
        return self.browser.execute_script(f"return document.querySelector('{selector}').textContent")

    def press(self, *keys):
        from selenium.webdriver.common.action_chains import ActionChains
        ActionChains(self.browser).send_keys(*keys).perform()
        return self.state()

    def texts(self, selector):
        return self.browser.execute_script(f"return [...document.querySelectorAll('{selector}')].map(e => e.textContent)")

    def errors(self):
        return [entry for entry in self.browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


@pytest.fixture
def page(browser, lenet):
    page = Page(browser, lenet["html"])
    yield page
    assert not page.errors()


def drawn_as_recorded(state, trace):
    """Compare heads and blocks that the page shows with `Trace.at`."""
    then = trace.at(state["moment"])
    assert {name: head for name, head in state["heads"].items() if head != "UNINITIALIZED"} \
        == {name: head for name, head in then.heads.items() if head != "UNINITIALIZED" and name in state["heads"]}
    copies = Counter(trace.owners[event.name]["name"] for event in trace.events[:state["moment"]] if event.kind in ("copy", "reorder"))
    assert {name: count for name, count in state["copies"].items() if count} == copies
    here = [block for block in then.blocks if block["place"] == state["place"]]
    assert sum(state["usage"].values()) == sum(block["bytes"] for block in here)
    segments = [segment for arena in then.arenas if arena["place"] == state["place"] for segment in arena["segments"]]
    cells = {(block["address"], block["bytes"], block["used"]) for segment in segments for block in segment["blocks"]}
    used = {address for address, _, is_used in cells if is_used}
    assert not [block for block in here if block["address"] not in used
                and any(segment["address"] <= block["address"] < segment["address"] + segment["bytes"] for segment in segments)]
    named = {(block["address"], block["bytes"], block["name"]) for block in state["blocks"] if block["name"]}
    assert named == {(block["address"], block["bytes"], block["name"]) for block in here if block["name"]}
    outside = {(block["address"], block["bytes"], True) for block in here if block["address"] not in used}
    assert {(block["address"], block["size"], block["used"]) for block in state["blocks"]} == cells | outside
    return len(cells)


def test_page_has_no_links_outside(lenet):
    text = lenet["html"].read_text()
    assert len(text) < 3_000_000
    assert not re.search(r"""(src|href)\s*=\s*["']?(?!#|data:)[^"'\s>]|@import|url\(|fetch\(|XMLHttp|import\(""", re.sub(
        r'(?s)<script type="application/json".*?</script>', "", text))
    assert "http" not in re.sub(r'(?s)<script type="application/json".*?</script>', "", text)


def test_moments_reasons_and_kernels(page, trace):
    assert {"data", "label", "next batch (data)", "next batch (label)"} <= {memory["title"] for memory in trace.memories}
    assert page.state()["steps"] == len(trace.steps) and page.state()["ready"] < 1000 * SLOW
    chosen = [0, len(trace), *random.Random(0).sample(range(len(trace)), 14)]
    assert max(drawn_as_recorded(page.state(f"view.goMoment({moment})"), trace) for moment in chosen) > 20
    copies = [i for i, event in enumerate(trace.events) if event.kind == "copy"]
    for i in (copies[0], copies[-1]):
        page.state(f"view.goMoment({i + 1})")
        assert page.text("#why p") == trace.document["why"][str(i)]
    page.state(f"view.goMoment({copies[0] - 1})")
    assert page.press("c")["moment"] == copies[0] + 1
    i = next(i for i, event in enumerate(trace.events) if event.kind == "launch" and trace.document["kernels"][event.name]["source"])
    page.state(f"view.goMoment({i + 1})")
    row = page.text("#events [aria-selected=true]")
    assert row.startswith(f"kernel{trace.events[i].name}, ") and " blocks of " in row
    assert page.text("#source pre") == trace.document["kernels"][trace.events[i].name]["source"]
    page.state("view.goMoment(1)")
    assert page.browser.execute_script("return document.querySelector('#source').hidden")


def test_clicks_and_keys(page, trace):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    first = page.state("view.go(3)")
    assert first["moment"] == trace.steps[3]["last"]
    page.browser.find_element(By.ID, "next").click()
    assert page.state()["step"] == 4 and trace.steps[4]["layer"] in page.text("#where-what")
    assert page.press(Keys.ARROW_LEFT)["step"] == 3
    assert page.press(Keys.END)["step"] == len(trace.steps) - 1
    assert page.press(Keys.HOME)["step"] == 0
    forward = next(i for i, step in enumerate(trace.steps) if step["layer"] == "conv2" and step["kind"] == "forward")
    node = page.browser.find_element(By.CSS_SELECTOR, f"#net [data-node='{trace.steps[forward]['node']}']")
    node.click()
    drawn_as_recorded(page.state(), trace)
    assert page.state()["step"] == forward and page.state()["lit"] == ["conv2"] and "scratch of conv2" in page.texts("#touched td:first-child")
    page.state("view.go(3)")
    assert page.state("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'}))")["step"] == 4
    page.state(f"view.goMoment({trace.steps[4]['first'] + 1}); document.querySelector('#events').focus()")
    assert page.press(Keys.ARROW_DOWN)["moment"] == trace.steps[4]["first"] + 2
    assert page.press(Keys.ARROW_UP)["moment"] == trace.steps[4]["first"] + 1
    chosen = page.browser.execute_script("return document.getElementById(document.querySelector('#events').getAttribute('aria-activedescendant'))"
                                         ".getAttribute('aria-selected')")
    assert chosen == "true"
    page.browser.execute_async_script("addEventListener('hashchange', () => arguments[0](), {once: true}); location.hash = '#event=99999999999'")
    assert page.state()["moment"] == len(trace)
    opened = Page(page.browser, page.browser.current_url.partition("#")[0] + "#step=7")
    assert opened.state()["step"] == 7 and f"step 7 of {len(trace.steps)}" in opened.text("#where-more")


def test_events_and_places(browser, tmp_path):
    with record() as made:
        for i in range(200):
            memory.reporter.event("mark", name=f"mark {i}")
    html.write(made, tmp_path / "long.html")
    page = Page(browser, tmp_path / "long.html")
    page.state("view.goMoment(150)")
    shown = page.texts("#events .row")
    assert shown == ["…50 earlier events", *(f"markmark {i}" for i in range(50, 200))]
    assert page.text("#events [aria-selected=true]") == "markmark 149"
    assert page.state("document.querySelector('#events .row').click()")["moment"] == 50
    assert page.texts("#events .row") == [*(f"markmark {i}" for i in range(150)), "…50 more events"] and not page.errors()
    with record() as made:
        block = memory.Buffer(memory.SystemAllocator(), 1000, "block data")
    made.document["start"]["blocks"].append({"place": "CUDAPlace(0)", "address": 1 << 40, "bytes": 512, "name": "old data"})
    html.write(made, tmp_path / "place.html")
    page = Page(browser, tmp_path / "place.html")
    assert page.state()["place"] == repr(block.place) and not page.errors()
    html.write(Trace(None), tmp_path / "none.html")
    page = Page(browser, tmp_path / "none.html")
    assert page.state()["steps"] == 0 and page.browser.execute_script("return document.querySelector('#next').disabled")
    assert page.press("c", "+")["moment"] == 0 and not page.errors()


def test_legends_and_simulated_times(browser, page, trace, tmp_path):
    assert page.texts("#step-legend li") == ["forward", "backward", "update", "between layers"]
    colours = page.browser.execute_script("""return ["forward", "backward", "update", "between"].map((name, i) => [
        getComputedStyle(document.querySelectorAll("#step-legend i")[i]).backgroundColor, colours[name]])""")
    assert all(shown == drawn for shown, drawn in colours) and len({shown for shown, _ in colours}) == 4
    assert page.texts("#side-legend li") == ["host", "device", "recycled: used by other blobs"]
    hatched = "return getComputedStyle(document.querySelector('#side-legend .hatched')).backgroundImage"
    assert "gradient" in page.browser.execute_script(hatched)
    html.write(Trace(json.loads(trace.to_json().replace("HEAD_AT_GPU", "HEAD_AT_GPU_PRIVATE"))), tmp_path / "private.html")
    private = Page(browser, tmp_path / "private.html")
    assert "private: in an engine's own layout" in private.texts("#side-legend li")
    ip1 = next(i for i, step in enumerate(trace.steps) if step["layer"] == "ip1")
    private.state(f"view.go({ip1})")
    assert "private on device" in private.texts("#touched tr:last-child td")[-1] and not private.errors()
    def looks(page):
        page.state("view.go(6)")
        return page.browser.execute_script("""const colour = e => getComputedStyle(e).color, timed = document.querySelectorAll("#step-lines p:nth-child(2)");
            return [new Set([...timed].map(colour)).size, colour(timed[0]) === colours.soft,
                    getComputedStyle(document.querySelector("#step-panel .sim-note")).display !== "none"]""")
    assert looks(page) == [1, True, True] and "simulated device, which is not a GPU" in page.text("#step-panel .sim-note")
    launch = next(i for i, event in enumerate(trace.events) if event.kind == "launch")
    page.state(f"view.goMoment({launch + 1})")
    assert "simulated: " in page.text("#events [aria-selected=true]")
    document = json.loads(trace.to_json())
    document["device"]["kind"] = "gpu"
    html.write(Trace(document), tmp_path / "gpu.html")
    assert looks(Page(browser, tmp_path / "gpu.html")) == [1, False, False]


def test_scale_of_live_memory(browser, trace, tmp_path):
    """What the allocator holds, here 16 times as much, is a line above it."""
    document = json.loads(trace.to_json())
    kinds = [document["strings"][kind] for kind in document["events"]["kind"]]
    last = max(i for i, kind in enumerate(kinds) if kind == "segment taken")
    document["events"]["bytes"][last] += 1 << 28
    html.write(Trace(document), tmp_path / "held.html")
    page = Page(browser, tmp_path / "held.html")
    state = page.state(f"view.goMoment({len(trace)})")
    peak, _ = table.peaks(trace)[state["place"]]
    assert peak < state["scale"] < 1.3 * peak and state["reserved"] > 1 << 28
    assert any(text.startswith("held") and "live and cache" in text for text in page.texts("#legend li")) and not page.errors()


@pytest.mark.parametrize("width, scheme", [(390, "light"), (1440, "dark")])
def test_small_and_dark_screens(page, screen, width, scheme):
    screen(width, scheme)
    page.state("view.go(5)")
    wide, background = page.browser.execute_script(
        "return [document.documentElement.scrollWidth, getComputedStyle(document.documentElement).backgroundColor]")
    assert wide <= width and (background == "rgb(15, 18, 21)") == (scheme == "dark")


def test_a_hostile_name_is_only_text(browser, trace, tmp_path):
    document = json.loads(trace.to_json())
    evil = "</script><img src=x onerror=document.title='broken'>"
    document["net"]["name"] = evil * 4
    document["net"]["nodes"][1]["name"] = evil * 4
    for step in document["steps"]:
        if step["node"] == 1:
            step["layer"] = evil * 4
    html.write(Trace(document), tmp_path / "evil.html")
    page = Page(browser, tmp_path / "evil.html")
    page.state(f"view.go({next(i for i, step in enumerate(document['steps']) if step['node'] == 1)})")
    assert page.text("#net-name") == evil * 4 and "broken" != browser.title and not page.errors()
    assert page.text("#where-what").startswith(evil * 4)
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")


def test_the_buddy_allocators_tree(browser, tmp_path):
    with record() as made:
        buddy = memory.make_allocator("buddy:first_pool_size=64KiB", memory.SystemAllocator())
        blocks = [memory.Buffer(buddy, nbytes, f"block {i} data") for i, nbytes in enumerate((1000, 3000, 100, 30000, 200))]
        del blocks[1:3]
    html.write(made, tmp_path / "buddy.html")
    page = Page(browser, tmp_path / "buddy.html")
    page.state(CHOOSE_HOST)      # what an earlier test left may be freed since, at another place
    for moment in range(len(made) + 1):
        drawn_as_recorded(page.state(f"view.goMoment({moment})"), made)
    state = page.state()
    address, nbytes = next((event.address, event.nbytes) for event in made.events if event.kind == "pool taken")
    cells = [cell for cell in state["blocks"] if address <= cell["address"] < address + nbytes]
    top = min(cell["y"] - 17 * (nbytes // cell["size"]).bit_length() for cell in cells)
    assert all(cell["y"] - 17 * (nbytes // cell["size"]).bit_length() == top for cell in cells)     # a level for each halving
    assert sum(cell["size"] for cell in cells) == nbytes and not page.errors()


def test_a_hundred_thousand_events_stay_usable(browser, tmp_path):
    pool = memory.make_allocator("caching", memory.SystemAllocator())
    with record() as trace:
        for i in range(9000):   # layers that take blocks from one segment, and release them by threes
            memory.reporter.event("begin", name=f"layer{i % 40}", detail="forward")
            blocks = [memory.Buffer(pool, 4096, f"b{i % 40} data") for _ in range(3)]
            blobs = [memory.SyncedMemory(64, name=f"b{i % 40} data")]
            blobs[0].mutable_cpu_data()
            memory.reporter.event("end", name=f"layer{i % 40}", detail="forward")
            del blocks, blobs
    html.write(trace, tmp_path / "busy.html")
    page = Page(browser, tmp_path / "busy.html")
    state = page.state()
    assert state["events"] >= 100_000 and state["ready"] < 1000 * SLOW
    took = page.browser.execute_script("""
        const took = [], steps = view.state().steps;
        for (let i = 0; i < 30; i++) { const begun = performance.now(); view.go(i * 7919 % steps); took.push(performance.now() - begun); }
        return took.sort((a, b) => a - b);""")
    assert took[len(took) // 2] < 100 and took[-1] < 100 * SLOW, took
    drawn_as_recorded(page.state(f"{CHOOSE_HOST}; view.goMoment({len(trace) - 1000})"), trace)
    assert not page.errors()
