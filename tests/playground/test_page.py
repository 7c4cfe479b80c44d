"""The playground in a real browser: it compiles, tells a mistake, and a link shows what it was made of."""

import functools
import http.server
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from ssdsl.model.graph_file import write_graph
from tests.captured import graph_of
from tests.show.charts.test_timeline_html import CHROMEDRIVER, CHROMIUM, QUIET

BUILD = Path(__file__).parents[2] / "docs" / "playground" / "build.py"
MODEL = "gpt:tiny"
MISSING = 2  # the status of a build that cannot fetch what it needs
WAIT_S = 90  # for a page, on a machine that does other things

if not (CHROMIUM and CHROMEDRIVER) or shutil.which("npm") is None:
    pytest.skip("chromium, chromedriver and npm are what this needs", allow_module_level=True)


class Files(http.server.SimpleHTTPRequestHandler):
    """The files of a folder, without a line of output for each."""

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a playground is served, with the graph of one small model."""
    out = tmp_path_factory.mktemp("playground") / "page"
    command = [sys.executable, str(BUILD), str(out), "--models", MODEL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode == MISSING:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=out)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    assert CHROMIUM is not None and CHROMEDRIVER is not None
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in QUIET.split():
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(CHROMEDRIVER))
    driver.set_script_timeout(WAIT_S)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(browser: webdriver.Chrome, address: str) -> webdriver.Chrome:
    """The page, when its first timeline is drawn."""
    browser.get(address)
    _until(browser, proved)
    return browser


def _until(driver: webdriver.Chrome, is_so: Callable[[webdriver.Chrome], Any]) -> None:
    WebDriverWait(driver, WAIT_S, poll_frequency=0.05, ignored_exceptions=[Exception]).until(is_so)


def proved(driver: webdriver.Chrome) -> bool:
    """Whether the last plan is proved, and its timeline is the only one."""
    frames = driver.execute_script("return document.querySelectorAll('#timeline.drawn iframe').length")
    return frames == 1 and "busy" not in _classes(driver) and "proved in" in _text(driver, "messages")


def _classes(driver: webdriver.Chrome) -> str:
    return driver.find_element(By.TAG_NAME, "body").get_attribute("class") or ""


def _text(driver: webdriver.Chrome, name: str) -> str:
    return driver.find_element(By.ID, name).text


def _plan(driver: webdriver.Chrome) -> str:
    return str(driver.execute_script("return document.querySelector('textarea').value"))


def _shown(driver: webdriver.Chrome) -> dict[str, str]:
    """What the page says of the plan, but for how long anything took."""
    return {name: _text(driver, name) for name in ("figures", "memory", "communication")} | {"plan": _plan(driver)}


def _put(driver: webdriver.Chrome, old: str, new: str) -> None:
    """Selects the first place of a text in the editor, and types another."""
    script = """
        const area = document.querySelector("textarea");
        const start = area.value.indexOf(arguments[0]);
        area.focus();
        area.setSelectionRange(start, start + arguments[0].length);
    """
    driver.execute_script(script, old)
    driver.find_element(By.TAG_NAME, "textarea").send_keys(new)


def test_it_opens_with_a_plan_its_timeline_and_its_proof(page: webdriver.Chrome, address: str) -> None:
    assert "all_reduce" in _text(page, "communication") and "activations" in _text(page, "memory")
    frame = "return document.querySelector('iframe').contentWindow.ssdslTimeline.eventCount"
    assert page.execute_script(frame) > 1
    asked = page.execute_script("return performance.getEntriesByType('resource').map(({ name }) => name)")
    assert all(name.startswith(address) for name in asked)
    assert [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_a_mistake_is_told_where_it_is_and_goes_when_it_is_repaired(page: webdriver.Chrome) -> None:
    before = _shown(page)
    _put(page, "split model", "splt model")
    _until(page, lambda driver: "E0110" in _text(driver, "messages"))
    assert "did you mean split?" in _text(page, "messages") and "old" in _classes(page)
    assert [wave.text for wave in page.find_elements(By.CSS_SELECTOR, ".wave.error")] == ["splt"]
    assert _shown(page) == before | {"plan": before["plan"].replace("split model", "splt model", 1)}
    (button,) = page.find_elements(By.CSS_SELECTOR, "#messages .fixes button")
    assert button.text == "write split"
    button.click()
    _until(page, proved)
    assert _shown(page) == before and "old" not in _classes(page)
    assert not page.find_elements(By.CSS_SELECTOR, ".wave")


def test_the_pointer_finds_words_lines_and_events(page: webdriver.Chrome) -> None:
    line = page.find_elements(By.CSS_SELECTOR, "#editor .line.active")[0]
    text = line.text
    page.execute_script("document.activeElement.blur()")
    ActionChains(page).move_to_element(line.find_element(By.TAG_NAME, "span")).click().perform()
    caret = "const area = document.querySelector('textarea'); return area.value.slice(0, area.selectionStart)"
    assert page.execute_script("return document.activeElement.tagName") == "TEXTAREA"
    assert text.startswith(page.execute_script(caret).rpartition("\n")[2])
    timeline = "return document.querySelector('iframe').contentWindow.ssdslTimeline"
    ActionChains(page).move_to_element_with_offset(line, 20 - line.size["width"] // 2, 0).perform()
    _until(page, lambda driver: driver.execute_script(f"{timeline}.markedEvents().length"))
    ActionChains(page).move_to_element(page.find_element(By.ID, "figures")).perform()
    assert page.execute_script(f"{timeline}.markedEvents().length") == 0
    page.execute_script(f"{timeline}.hover(0)")
    _until(page, lambda driver: driver.find_elements(By.CSS_SELECTOR, "#editor .line.lit"))
    page.execute_script(f"{timeline}.hover(-1)")


def test_the_menus_write_the_header(page: webdriver.Chrome) -> None:
    field = page.find_element(By.CSS_SELECTOR, "#params input[name=T]")
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys("2", Keys.ENTER)
    _until(page, lambda driver: "--set T=2" in _plan(driver) and "devices\n2" in _text(driver, "figures"))
    _until(page, proved)
    choose = "const m = document.getElementById('clusters'); m.value = 'h100x8'; m.dispatchEvent(new Event('change'))"
    page.execute_script(choose)
    _until(page, lambda driver: "--cluster h100x8" in _plan(driver) and proved(driver))


def test_a_link_shows_the_same_elsewhere(page: webdriver.Chrome) -> None:
    _put(page, "# for:", "# a plan from a link\n# for:")
    _until(page, lambda driver: "a plan from a link" in _plan(driver) and proved(driver))
    shown, link, first = _shown(page), page.current_url, page.current_window_handle
    page.switch_to.new_window("tab")
    try:
        page.get(link)
        _until(page, proved)
        assert _shown(page) == shown
        assert "This link was made with" not in _text(page, "messages")
        page.execute_async_script(OTHER_VERSION)
        _until(page, lambda driver: "This link was made with ssdsl 0.0.1" in _text(driver, "messages"))
        page.execute_script("location.hash = location.hash.slice(0, -20)")
        _until(page, lambda driver: "its end may have been cut off" in _text(driver, "messages"))
    finally:
        page.close()
        page.switch_to.window(first)


OTHER_VERSION = """
    const [done] = arguments;
    import("./link.js").then(async ({ fragmentOf, shownBy }) => {
      const shown = await shownBy(location.hash);
      location.hash = await fragmentOf({ ...shown, version: "0.0.1" });
      done();
    });
"""


def test_a_graph_of_ones_own_is_compiled(page: webdriver.Chrome, tmp_path: Path) -> None:
    file = tmp_path / "mine.graph"
    file.write_bytes(write_graph(graph_of("bert:tiny"), {"model": "bert:tiny"}))
    page.find_element(By.ID, "file").send_keys(str(file))
    _until(page, lambda driver: "--model mine.graph" in _plan(driver) and proved(driver))
    assert "encoder.layer" in _text(page, "communication")
    file.write_bytes(file.read_bytes()[:-50])
    page.find_element(By.ID, "file").send_keys(str(file))
    _until(page, lambda driver: "mine.graph cannot be opened" in _text(driver, "messages"))


def test_a_model_without_a_graph_is_named(page: webdriver.Chrome) -> None:
    _put(page, "mine.graph", "gpt:70b")
    _until(page, lambda driver: "no graph of gpt:70b" in _text(driver, "messages"))
