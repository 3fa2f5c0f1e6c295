"""A report in a real browser: it opens at once, steps, plays, zooms, copies, turns dark, and fetches nothing."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from browser.accessible import needs_axe, violations
from browser.chromium import complaints, emulate, start
from pictures.hostile import HOSTILE, plan_with
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

import shardwise as sw
from shardwise.compiled.audit import audit_text
from shardwise.mesh import Mesh

GOLDEN = Path(__file__).parents[1] / "golden" / "texts" / "jax-0.12" / "v5e-2x4" / "planned_gather.txt.gz"
SIZES = {"I": 16384, "J": 1024, "K": 2048}
CONTROLS = "button, input, summary, a[href], [tabindex='0']"
MOST_BYTES, MOST_SECONDS = 1_000_000, 1.0
pytestmark = pytest.mark.needs("browser")


def compiled() -> str:
    """A report with what the TPU compiler made of the plan, as the corpus keeps it."""
    plan = sw.plan("A[I_x, J] · B[J, K] -> C[I_x, K] -> C[I, K]", sizes=SIZES, mesh="x=8", hardware="tpu-v5e", overlap=False)
    text = gzip.decompress(GOLDEN.read_bytes()).decode()
    audit = audit_text(text, name="matmul", target="v5e:2x4", mesh=Mesh.parse("x=8"), hardware=sw.hardware("tpu-v5e"))
    return sw.report(plan, audit).html


def hostile(name: str) -> str:
    return sw.report(plan_with(name)).html


def four_axes() -> str:
    mesh = "x=2, y=2, z=2, w=2"
    return sw.report(sw.plan("A[I_x, J_y] · B[J_z, K_w] -> C[I_w, K_x]", sizes=SIZES, mesh=mesh, hardware="tpu-v5p")).html


def headline() -> str:
    return sw.report(sw.plan("A[I_x, J] · B[J, K] -> C[I, K]", sizes=SIZES, mesh="x=4", hardware="tpu-v5e")).html


def nothing_moves() -> str:
    return sw.report(sw.plan("A[I, J_x] -> A[I, J_x]", sizes={"I": 8, "J": 8}, mesh="x=4", hardware="cpu")).html


def what_changed() -> str:
    equation = "A[I_x, J] · B[J, K] -> C[I, K]"
    before, now = (sw.plan(equation, sizes=SIZES, mesh=mesh, hardware="tpu-v5e") for mesh in ("x=8", "x=4"))
    return sw.report(now, against=before).html


MADE = {"headline": headline, "four axes": four_axes, "compiled": compiled, "nothing moves": nothing_moves}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Any]:
    driver = start(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


@pytest.fixture
def opened(browser, folder) -> Iterator[Callable[..., Any]]:
    """Opens a report, once made, on a screen as told; in the end the console must have been silent."""

    def open_(name: str = "headline", make: Callable[[], str] | None = None, **screen: Any) -> Any:
        path = folder / f"{name}.html"
        if not path.exists():
            path.write_text((make or MADE[name])(), encoding="utf-8")
        emulate(browser, **screen)
        browser.get(path.as_uri())
        return browser

    complaints(browser)
    yield open_
    assert complaints(browser) == []


def by_id(browser: Any, name: str) -> WebElement:
    return browser.find_element(By.ID, name)


def scene(browser: Any) -> int:
    """Which scene is seen, by its place from 1; exactly one is."""
    script = "return [...document.querySelectorAll('.scene')].map(e => getComputedStyle(e).visibility)"
    seen = [n for n, visibility in enumerate(browser.execute_script(script), 1) if visibility == "visible"]
    assert len(seen) == 1
    return seen[0]


def wait(browser: Any, happened: Callable[[Any], Any]) -> None:
    WebDriverWait(browser, 8, poll_frequency=0.05).until(happened)


# Opening.


@pytest.mark.parametrize("name", MADE)
def test_a_report_is_small_opens_at_once_and_fetches_nothing(opened, folder, name):
    browser = opened(name)
    browser.get_log("performance")
    browser.refresh()
    loaded = browser.execute_script("return performance.getEntriesByType('navigation')[0].loadEventEnd")
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]

    assert (folder / f"{name}.html").stat().st_size < MOST_BYTES
    assert 0 < loaded < MOST_SECONDS * 1000
    assert {url.split(":")[0] for url in asked} <= {"file", "data"}
    assert len([url for url in asked if url.startswith("file")]) == 1
    assert browser.execute_script("return performance.getEntriesByType('resource').map(e => e.name)") in ([], ["data:,"])


@pytest.mark.parametrize("name", MADE)
def test_every_control_has_a_name_and_no_name_is_used_twice(opened, name):
    browser = opened(name)
    controls = [control for control in browser.find_elements(By.CSS_SELECTOR, CONTROLS) if control.is_displayed()]
    names = [control.accessible_name for control in controls]
    ids = browser.execute_script("return [...document.querySelectorAll('[id]')].map(e => e.id)")
    pictures = browser.find_elements(By.CSS_SELECTOR, "svg[role=img]")

    assert len(controls) > 8
    assert all(names), [control.get_attribute("outerHTML")[:80] for control in controls if not control.accessible_name]
    assert len(ids) == len(set(ids))
    assert all(picture.accessible_name for picture in pictures if picture.is_displayed())
    headings = browser.execute_script("return [...document.querySelectorAll('h1,h2,h3')].map(e => Number(e.tagName[1]))")
    assert headings[0] == 1
    assert all(b - a <= 1 for a, b in pairwise(headings))


@pytest.mark.parametrize("name", MADE)
def test_a_narrow_screen_scrolls_no_page_sideways(opened, name):
    browser = opened(name, width=360)

    assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
    assert browser.execute_script("return innerWidth") == 360


# The player.


def test_slider_buttons_and_keys_step_through_the_program(opened):
    browser = opened(reduced_motion="reduce")
    slider, count = by_id(browser, "slider"), by_id(browser, "count")
    last = int(slider.get_attribute("max"))
    assert (scene(browser), last) == (1, 4)
    assert not by_id(browser, "back").is_enabled()

    slider.send_keys(Keys.ARROW_RIGHT)
    assert (scene(browser), count.text) == (2, "2 / 4")
    assert slider.get_attribute("aria-valuetext") == "2 of 4: Step 1 of 1: all-gather A over x (I)"
    slider.send_keys(Keys.END)
    assert scene(browser) == last
    assert not by_id(browser, "next").is_enabled()
    by_id(browser, "back").click()
    assert scene(browser) == last - 1
    by_id(browser, "next").click()
    assert scene(browser) == last

    player = by_id(browser, "player")
    for key, where in ((Keys.HOME, 1), (Keys.ARROW_RIGHT, 2), (Keys.ARROW_DOWN, 3), (Keys.ARROW_LEFT, 2), (Keys.END, last)):
        player.send_keys(key)
        assert scene(browser) == where
    assert "Now there is C[I, K]" in by_id(browser, "status").get_attribute("textContent")
    browser.execute_script("arguments[0].value = 2; arguments[0].dispatchEvent(new Event('input'))", slider)  # as dragged
    assert scene(browser) == 2


STAGE = """
const scene = document.querySelector(".scene.on"), svg = scene.querySelector("svg"), list = document.querySelector(".scenes")
const ends = [...svg.querySelectorAll("[data-card] rect, text")].map(drawn => drawn.getBoundingClientRect().bottom)
return [svg.getBoundingClientRect().bottom - Math.max(...ends), list.offsetHeight - scene.offsetHeight, scene.offsetHeight]
"""


@pytest.mark.parametrize("name", ["headline", "four axes"])
def test_the_stage_is_as_high_as_what_is_in_it(opened, name):
    browser = opened(name, reduced_motion="reduce")
    heights = set()
    for _ in range(int(by_id(browser, "slider").get_attribute("max"))):
        below, around, height = browser.execute_script(STAGE)
        assert 0 < below < 60  # the room in which wires bend
        assert around == 0
        heights.add(height)
        browser.execute_script("document.getElementById('next').click()")
    assert len(heights) > 1


def test_keys_elsewhere_are_left_to_the_page(opened):
    browser = opened(reduced_motion="reduce")
    by_id(browser, "copy").send_keys(Keys.ARROW_RIGHT)
    by_id(browser, "theme").send_keys(Keys.END)
    assert scene(browser) == 1
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.ARROW_RIGHT)  # where nothing else is chosen it steps
    assert scene(browser) == 2


def test_space_plays_and_pauses_and_what_is_sent_flies(opened):
    browser = opened()
    play, player = by_id(browser, "play"), by_id(browser, "player")
    player.send_keys(Keys.SPACE)
    assert play.text == "Pause"
    wait(browser, lambda b: scene(b) == 2)
    wait(browser, lambda b: len(b.find_elements(By.CSS_SELECTOR, ".scene.on .token")) == 12)  # each of 4 sends to 3
    first = browser.find_element(By.CSS_SELECTOR, ".token").get_attribute("transform")
    wait(browser, lambda b: b.find_element(By.CSS_SELECTOR, ".token").get_attribute("transform") != first)
    player.send_keys(Keys.SPACE)
    assert play.text == "Play"
    wait(browser, lambda b: not b.find_elements(By.CSS_SELECTOR, ".token"))
    assert scene(browser) == 2  # it stays where it was paused
    by_id(browser, "slider").send_keys(Keys.END)
    play.click()  # at the end it begins anew
    assert scene(browser) == 1
    play.click()
    assert play.text == "Play"


def test_who_wants_no_motion_sees_none(opened):
    browser = opened(reduced_motion="reduce")
    by_id(browser, "next").click()
    time.sleep(0.1)

    assert not browser.find_elements(By.CSS_SELECTOR, ".token")
    assert len(browser.find_elements(By.CSS_SELECTOR, ".scene.on .wires path")) == 12
    style = "return getComputedStyle(document.querySelector('.scene.on')).transitionDuration"
    assert browser.execute_script(style) == "0s"


def test_without_scripts_every_scene_is_listed_and_no_dead_button_shown(opened, browser):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        opened()
        scenes = browser.find_elements(By.CSS_SELECTOR, ".scene")
        assert len(scenes) == 4
        assert all(one.is_displayed() for one in scenes)
        assert not any(button.is_displayed() for button in browser.find_elements(By.CSS_SELECTOR, "button, input"))
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
        complaints(browser)  # that scripts are blocked, which is meant here


def test_paper_shows_every_scene_and_no_control(opened):
    browser = opened(media="print")

    assert all(one.is_displayed() for one in browser.find_elements(By.CSS_SELECTOR, ".scene"))
    assert not any(button.is_displayed() for button in browser.find_elements(By.CSS_SELECTOR, "button, input"))


# Timeline, code, looks.


def test_the_timeline_zooms_by_buttons_and_keys(opened):
    browser = opened("compiled")
    charts = browser.find_elements(By.CSS_SELECTOR, ".chart")
    assert [chart.find_element(By.TAG_NAME, "h3").text for chart in charts] == [
        "The estimate", "The compiled program on tpu-v5e",
    ]  # fmt: skip
    frame, field = (charts[1].find_element(By.CSS_SELECTOR, name) for name in (".lanes", ".field"))
    into, out, whole = (charts[1].find_element(By.CSS_SELECTOR, f"[data-do={name}]") for name in ("in", "out", "all"))
    start_width = field.size["width"]

    def ticks() -> int:
        return len([t for t in charts[1].find_elements(By.CSS_SELECTOR, ".scale span") if t.is_displayed()])

    few = ticks()
    assert (out.is_enabled(), whole.is_enabled()) == (False, False)
    into.click()
    into.click()
    assert field.size["width"] == pytest.approx(4 * start_width, abs=4)
    assert charts[1].find_element(By.TAG_NAME, "output").text == "4×"
    assert ticks() > 2 * few
    middle = browser.execute_script("return (arguments[0].scrollLeft + arguments[0].clientWidth / 2) / 4", frame)
    assert middle == pytest.approx(start_width / 2, abs=3)  # what was in the middle is still there
    frame.send_keys("+")
    assert field.size["width"] == pytest.approx(8 * start_width, abs=8)
    frame.send_keys("0")
    assert field.size["width"] == pytest.approx(start_width, abs=2)
    for _ in range(9):
        if into.is_enabled():
            into.click()
    assert charts[1].find_element(By.TAG_NAME, "output").text == "32×"
    assert charts[0].find_element(By.TAG_NAME, "output").text == "1×"  # the other chart is as it was
    out.click()
    assert charts[1].find_element(By.TAG_NAME, "output").text == "16×"


def test_the_code_is_copied_and_it_says_so(opened):
    browser = opened()
    browser.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]})
    button = by_id(browser, "copy")
    button.click()
    wait(browser, lambda b: button.text == "Copied")
    assert by_id(browser, "copied").get_attribute("textContent") == "The code is copied."
    read = "navigator.clipboard.readText().then(arguments[0], (e) => arguments[0]('refused: ' + e))"
    copied = browser.execute_async_script(read)
    plan = sw.plan("A[I_x, J] · B[J, K] -> C[I, K]", sizes=SIZES, mesh="x=4", hardware="tpu-v5e")
    assert copied == plan.code()
    wait(browser, lambda b: button.text == "Copy")


def test_where_the_clipboard_is_closed_it_copies_in_the_old_way(opened):
    browser = opened()
    browser.execute_script(
        "navigator.clipboard.writeText = () => Promise.reject(new Error('closed'));"
        "document.execCommand = (what) => { window.told = [what, document.activeElement.value]; return true; };"
    )
    button = by_id(browser, "copy")
    button.click()
    wait(browser, lambda b: button.text == "Copied")
    what, text = browser.execute_script("return window.told")
    assert what == "copy"
    assert text == by_id(browser, "source").get_attribute("textContent")
    assert browser.switch_to.active_element == button


def colours(browser: Any) -> tuple[str, str, str]:
    """Of the page, of a board's text, of what stands behind a device."""
    script = "const c = (s, p) => getComputedStyle(document.querySelector(s))[p];"
    return tuple(browser.execute_script(
        script + "return [c('body', 'backgroundColor'), c('.places text', 'fill'), c('.device', 'fill')]"
    ))  # fmt: skip


def test_the_look_follows_the_system_until_it_is_chosen(opened):
    light, dark = colours(opened(color_scheme="light")), colours(opened(color_scheme="dark"))
    assert all(a != b for a, b in zip(light, dark, strict=True))

    browser = opened(color_scheme="light")
    button = by_id(browser, "theme")
    assert (button.accessible_name, button.get_attribute("aria-pressed")) == ("Dark look", "false")
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert colours(browser) == dark
    emulate(browser, color_scheme="dark")
    button.click()
    assert colours(browser) == light
    emulate(browser, media="print", color_scheme="dark")
    assert colours(browser)[1:] == light[1:]


# What is shown.


def test_a_compiled_report_says_that_it_is_as_planned(opened):
    browser = opened("compiled")
    said = browser.find_element(By.TAG_NAME, "main").text

    assert "✓ compiled as planned" in said
    assert "matmul on v5e:2x4, mesh x=8: 1 collective, each device sends 58.7 MB a call" in said
    assert "programs.py:127" in said


def test_the_ranking_opens_by_keyboard(opened):
    browser = opened()
    summary = browser.find_element(By.CSS_SELECTOR, ".ranks summary")
    assert summary.accessible_name == "Steps of program 1"
    steps = browser.find_element(By.CSS_SELECTOR, ".ranks .steps")
    assert not steps.is_displayed()
    summary.send_keys(Keys.ENTER)
    assert steps.is_displayed()


@pytest.mark.parametrize("name", HOSTILE, ids=[ascii(name[:12]) for name in HOSTILE])
def test_hostile_names_show_as_text(opened, name):
    browser = opened(f"hostile{HOSTILE.index(name)}", lambda: hostile(name), width=360)
    shown = "".join(character if character.isprintable() else " " for character in name)
    heading = browser.execute_script("return document.querySelector('h1').textContent")

    assert f"{shown}[{shown}I" in heading
    assert browser.execute_script("return document.title") == " ".join(heading.split())
    assert browser.execute_script("return document.scripts.length") == 2
    assert not browser.find_elements(By.CSS_SELECTOR, "img, [onload], [onerror]")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
    by_id(browser, "slider").send_keys(Keys.END)
    assert scene(browser) == int(by_id(browser, "slider").get_attribute("max"))


@pytest.mark.parametrize("name", ["שלום", "مرحبا"])
def test_names_from_right_to_left_turn_nothing_around_them(opened, name):
    browser = opened(f"turned{ord(name[0])}", lambda: hostile(name))
    script = """
        const places = (root, wanted) => {  // where characters of a text are drawn, from the left
            const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT), found = [];
            for (let node; (node = walker.nextNode()); ) for (let at = 0; at < node.length; at++) {
                const range = document.createRange();
                range.setStart(node, at); range.setEnd(node, at + 1);
                if (wanted.includes(node.data[at])) found.push(range.getBoundingClientRect().left);
            }
            return found;
        };
        const told = [...document.querySelectorAll(arguments[0])].find((each) => each.textContent.includes("["));
        return places(told, arguments[1]);"""
    for where in ("h1", ".places h3", ".device ~ g text"):
        placed = browser.execute_script(script, where, f"{name[0]}[")[:2]  # the array's name, and its bracket
        assert len(placed) == 2
        assert placed[0] < placed[1]


def test_in_a_notebook_it_works_within_its_frame(opened):
    plan = sw.plan("A[I, J_x] · B[J_x, K] -> C[I, K]", sizes=SIZES, mesh="x=4", hardware="tpu-v5e")
    browser = opened("notebook", lambda: f"<!DOCTYPE html><title>n</title>{sw.report(plan)._repr_html_()}")
    frame = browser.find_element(By.TAG_NAME, "iframe")
    assert frame.accessible_name == "Report on A[I, J_x] · B[J_x, K] -> C[I, K]"
    browser.switch_to.frame(frame)
    try:
        by_id(browser, "slider").send_keys(Keys.END)
        assert scene(browser) == int(by_id(browser, "slider").get_attribute("max"))
    finally:
        browser.switch_to.default_content()


# Everybody reads it: axe's rules.


@needs_axe
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", [*MADE, "what changed"])
def test_axe_finds_no_fault(opened, name, scheme):
    for width in (360, 1280):
        page = opened(name, MADE.get(name, what_changed), width=width, color_scheme=scheme)
        assert violations(page) == [], f"{width} pixels"


@needs_axe
def test_axe_finds_a_fault(opened):
    fault = '<!DOCTYPE html><html lang="en"><title>x</title><main><h1>x</h1><img src="data:,"></main></html>'
    assert violations(opened("fault", lambda: fault)) == ['image-alt: <img src="data:,">']
