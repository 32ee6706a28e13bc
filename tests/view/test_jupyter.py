"""The page in a real JupyterLab, driven in a real browser: run, viewed, saved, opened again."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Browser, FrameLocator, Page

pytestmark = pytest.mark.slow
pytest.importorskip("jupyterlab", reason="JupyterLab is not installed: make test-all installs it")

LOAD_MODEL = 'import pellucid\nmodel = pellucid.load("all-MiniLM-L6-v2")'
PAIR = 'pellucid.view(model.trace("time flies like an arrow", "fruit flies like a banana"), layer=0, heads=[8])'
CURVES = "pellucid.curves([{'step': 1, 'loss': 2.0}, {'step': 2, 'loss': 1.0}])"
SEARCH_PAGE = """index = pellucid.Index.build(model, ["Coca-Cola", "green tea"])
index.why("soft drinks", index.search("soft drinks", k=1)[0])"""
TEN_VIEWS = [f"pellucid.view(model.trace('text number {i}'), layer={i % 6}, heads=[{i}])" for i in range(10)]
SETTINGS = {"notification": {"fetchNews": "false"}, "themes": {"theme": "JupyterLab Light"}}
SERVER_OPTIONS = ["--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0", "--LabApp.expose_app_in_browser=True"]
OpenNotebook = Callable[[str], Page]
PAINTED_PIXELS = """(canvas) => canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data
    .filter((value, place) => place % 4 === 3 && value > 0).length"""
OVERFLOW = (
    "() => [document.documentElement.scrollHeight - innerHeight, document.documentElement.scrollWidth - innerWidth]"
)
KERNEL = """async () => {
  const notebook = window.jupyterapp.shell.currentWidget;
  await notebook.sessionContext.ready;
  await notebook.sessionContext.session.kernel.info;
}"""
CELLS = """() => {
  const { content } = window.jupyterapp.shell.currentWidget;
  return [content.mode, content.activeCellIndex, ...content.widgets.map((cell) => cell.model.sharedModel.source)];
}"""
SETTLED = "() => new Promise((done) => setTimeout(() => requestAnimationFrame(done), 300))"
PANEL = ".jp-WindowedPanel-outer"


class Lab:
    """A separate JupyterLab, with notebooks, settings and signatures in one folder, and no checks for updates."""

    def __init__(self, folder: Path) -> None:
        self.books, self.settings, self._runtime = (folder / name for name in ("books", "settings", "runtime"))
        self.books.mkdir()
        self.write_settings()
        environment = {f"JUPYTER_{name.upper()}_DIR": str(folder / name) for name in ("data", "config", "runtime")}
        environment |= {
            "JUPYTERLAB_SETTINGS_DIR": str(self.settings),
            "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
        }
        no_update_check = "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"
        self._log = (folder / "log").open("w")
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "jupyterlab",
                *SERVER_OPTIONS,
                no_update_check,
                f"--ServerApp.root_dir={self.books}",
            ],
            env={**os.environ, **environment, "IPYTHONDIR": str(folder / "ipython")},
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def write_settings(self, **changes: dict[str, str]) -> None:
        """Writes the user's settings."""
        for name, values in {**SETTINGS, **changes}.items():
            file = self.settings / "@jupyterlab" / "apputils-extension" / f"{name}.jupyterlab-settings"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(values), encoding="utf-8")

    def write(self, name: str, *sources: str, words: int = 8) -> None:
        """Writes a notebook of code cells that have not run, followed by paragraphs."""
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        cells += [nbformat.v4.new_markdown_cell("These words stand behind the view. " * 40) for _ in range(words)]
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), self.books / f"{name}.ipynb")

    def read(self, name: str) -> nbformat.NotebookNode:
        return nbformat.read(self.books / f"{name}.ipynb", as_version=4)

    def address(self, name: str) -> str:
        """The address of a notebook, as soon as the server has written its own."""
        for _ in range(300):
            for file in self._runtime.glob("jpserver-*.json"):
                facts = json.loads(file.read_text(encoding="utf-8"))
                return f"{facts['url']}lab/tree/{name}.ipynb?token={facts['token']}&reset"
            assert self._process.poll() is None, "JupyterLab has ended"
            time.sleep(0.1)
        raise AssertionError("JupyterLab has not started in 30 seconds")

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)
        self._log.close()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    running = Lab(tmp_path_factory.mktemp("lab"))
    yield running
    running.stop()


@pytest.fixture
def open_notebook(lab: Lab, browser: Browser) -> Iterator[OpenNotebook]:
    """Opens a notebook. Console errors, requests of the frames and requests to other machines are failures."""
    errors: list[str] = []

    def open_tab(name: str) -> Page:
        tab = browser.new_page(viewport={"width": 1400, "height": 1000})
        tab.set_default_timeout(60_000)
        tab.on("console", lambda message: message.type in ("error", "warning") and errors.append(message.text))
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("request", lambda r: r.frame.parent_frame and errors.append(f"a frame requested {r.url[:80]}"))
        tab.on(
            "request",
            lambda r: (
                r.url.startswith(("http://127.0.0.1", "http://localhost", "data:", "blob:")) or errors.append(r.url)
            ),
        )
        tab.goto(lab.address(name))
        tab.locator(".jp-Notebook .jp-Cell").first.wait_for()
        return tab

    yield open_tab
    for context in browser.contexts:
        context.close()
    assert errors == []


def execute_commands(tab: Page, *commands: str) -> None:
    """Executes JupyterLab's own commands by name, and waits for each."""
    for command in commands:
        tab.evaluate("(command) => window.jupyterapp.commands.execute(command)", command)


def run_all(tab: Page) -> None:
    tab.evaluate(KERNEL)
    execute_commands(tab, "notebook:run-all-cells", "docmanager:save")
    tab.locator(PANEL).evaluate("(panel) => panel.scrollTop = 0")


def frame(tab: Page, index: int = 0) -> FrameLocator:
    """One view, scrolled into sight and drawn."""
    iframe = tab.locator(".jp-OutputArea iframe").nth(index)
    iframe.scroll_into_view_if_needed()
    iframe.content_frame.locator(".stage[aria-busy=false] canvas").first.wait_for()
    return iframe.content_frame


@pytest.fixture
def executed_notebook(lab: Lab, open_notebook: OpenNotebook) -> str:
    """The name of a notebook that JupyterLab ran and saved, with a view, and one with a dark theme."""
    if not (lab.books / "pair.ipynb").exists():
        lab.write("pair", LOAD_MODEL, PAIR, PAIR.replace("heads=[8]", "theme='dark'"), CURVES, SEARCH_PAGE)
        tab = open_notebook("pair")
        run_all(tab)
        assert_drawn(frame(tab))
        tab.close()
    return "pair"


def assert_drawn(inside: FrameLocator) -> None:
    """Asserts that the canvas is painted, and that the page fits its frame in height and width."""
    assert inside.locator(".stage canvas").first.evaluate(PAINTED_PIXELS) > 1000
    inside.locator("html").evaluate(SETTLED)
    assert inside.locator("html").evaluate(OVERFLOW) == [0, 0]


def test_saved_view_is_drawn(executed_notebook: str, open_notebook: OpenNotebook) -> None:
    tab = open_notebook(executed_notebook)
    inside = frame(tab)
    assert_drawn(inside)
    assert "banana" in inside.locator(".stage").inner_text()
    assert not tab.locator(".pellucid-still").first.is_visible()


def test_untrusted_notebook_shows_static_pictures(
    executed_notebook: str, lab: Lab, open_notebook: OpenNotebook
) -> None:
    untrusted = lab.read(executed_notebook)
    for cell in untrusted.cells[1:5]:
        cell.outputs[0].data["text/html"] += "<script>document.title = 'reached'</script>"  # not as signed
    nbformat.write(untrusted, lab.books / "sent.ipynb")
    tab = open_notebook("sent")
    still = tab.locator(".pellucid-still").first
    still.wait_for()
    assert tab.locator(".jp-OutputArea iframe").count() == 0 and tab.title() != "reached"
    for image in (still.locator("img"), tab.locator(".jp-OutputArea img[alt^='Training curves. 2 steps']")):
        assert image.evaluate("(image) => image.decode().then(() => image.naturalWidth)") > 300
    assert tab.locator(".jp-OutputArea tbody td").first.inner_text().removeprefix("−").startswith("0.")
    assert "This is a static picture" in still.inner_text()
    assert "strongest links" in still.locator("img").get_attribute("alt")


def test_wheel_over_a_view_scrolls_the_notebook(executed_notebook: str, open_notebook: OpenNotebook) -> None:
    tab = open_notebook(executed_notebook)
    assert_drawn(frame(tab))
    for share in (0.1, 0.6, 0.95):
        tab.locator(PANEL).evaluate("(panel) => panel.scrollTop = 0")
        box = tab.locator(".jp-OutputArea iframe").first.bounding_box()
        tab.mouse.move(box["x"] + box["width"] / 2, min(box["y"] + share * box["height"], 960))
        for _ in range(4):
            tab.mouse.wheel(0, 120)
            tab.wait_for_timeout(100)
        assert tab.locator(PANEL).evaluate("(panel) => panel.scrollTop") >= 400, f"stopped at {share} of the frame"


def test_keys_in_the_page_do_not_reach_the_notebook(executed_notebook: str, open_notebook: OpenNotebook) -> None:
    tab = open_notebook(executed_notebook)
    inside = frame(tab)
    inside.locator(".stage canvas").first.click(position={"x": 20, "y": 20})
    cells = tab.evaluate(CELLS)
    tab.keyboard.type("jkxaddm")
    inside.locator(".matrix").wait_for()
    assert tab.evaluate(CELLS) == cells
    tab.keyboard.press("?")
    inside.locator("dialog[open]").wait_for()


@pytest.mark.parametrize(("theme", "expected_theme"), [("JupyterLab Dark", "dark"), ("JupyterLab Light", "light")])
def test_page_has_the_theme_of_the_notebook(
    executed_notebook: str, lab: Lab, open_notebook: OpenNotebook, theme: str, expected_theme: str
) -> None:
    lab.write_settings(themes={"theme": theme})
    tab = open_notebook(executed_notebook)
    for index, expected in enumerate((expected_theme, "dark")):
        frame(tab, index).locator(f".pellucid[data-host][data-theme={expected}]").wait_for()


def test_ten_views_are_independent(lab: Lab, open_notebook: OpenNotebook) -> None:
    lab.write("ten", LOAD_MODEL, *TEN_VIEWS)
    tab = open_notebook("ten")
    run_all(tab)
    for index in range(10):
        inside = frame(tab, index)
        assert_drawn(inside)
        assert f"number {index}" in inside.locator("h1").inner_text()
        assert inside.locator("[aria-current=true]").inner_text() == str(index)
        if index % 2:
            inside.get_by_role("button", name="Matrix").click()
            inside.locator(".matrix canvas").first.wait_for()
    for index in range(10):
        assert frame(tab, index).locator(".matrix").count() == index % 2
