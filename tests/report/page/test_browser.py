"""The page in a real browser: what parsing it cannot tell."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import axe_playwright_python
import pytest
from pages import entry
from playwright.sync_api import Browser, sync_playwright

pytestmark = pytest.mark.slow

JENKINS = "sandbox allow-same-origin; default-src 'none'; img-src 'self'; style-src 'self';"
"""The policy under which Jenkins shows files of a build unless told otherwise."""

AXE = Path(axe_playwright_python.__file__).parent / "axe.min.js"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium; the driver's own builds are not on any package registry."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("needs chromium, which is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(make) -> Path:
    """Three failing cells of two reasons, and some that passed."""
    broken = entry("error", 8) | {"reason": "rank 1 died", "details": ["its traceback"]}
    kinds = ("fail", "pass", "fail", "pass", "skip", "pass")
    return make(*(entry(kind, n) for n, kind in enumerate(kinds)), broken)


def test_a_file_is_shown_with_filters(browser, page):
    """From disk and without a word on the console; a filter needs no more than style."""
    tab = browser.new_page(java_script_enabled=False)
    said: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.goto(page.as_uri())
    passed, skipped = tab.locator("td.s-pass").first, tab.locator("td.s-skip").first
    pale = "element => getComputedStyle(element).opacity"
    assert (passed.evaluate(pale), said) == ("1", [])
    tab.get_by_text("Filter", exact=True).click()
    tab.get_by_role("checkbox", name="failed").check()
    assert (passed.evaluate(pale), skipped.evaluate(pale)) == ("0.15", "0.15")
    tab.get_by_role("checkbox", name="passed").check()
    assert (passed.evaluate(pale), skipped.evaluate(pale)) == ("1", "0.15")


def test_search(browser, page):
    """The script, which the policy lets run, hides failures without the words."""
    tab = browser.new_page()
    tab.goto(page.as_uri())
    failures = tab.locator("details.failure")
    assert failures.count() == 2
    tab.get_by_text("Filter", exact=True).click()
    tab.get_by_label("Find in").fill("RANK 1")
    assert [failure.is_visible() for failure in failures.all()].count(True) == 1


def test_a_filter_chooses_the_example_and_has_an_address(browser, page):
    """The card shows a cell that the filters leave, and counts those; the address says which."""
    tab = browser.new_page()
    tab.goto(page.as_uri())
    failure, shown = tab.locator("#r1"), tab.locator("#r1 .example:visible > p code")
    assert (failure.locator(".times").inner_text(), shown.inner_text()[-3:]) == ("2×", "-0]")
    tab.get_by_text("Filter", exact=True).click()
    tab.get_by_role("group", name="seed").get_by_label("1", exact=True).check()
    assert (failure.locator(".times").inner_text(), shown.inner_text()[-3:]) == ("1 of 2×", "-2]")
    assert not tab.locator("#r2").is_visible()
    (row,) = tab.locator("table.reasons tr:has(a):visible").all()
    assert row.locator(".times").inner_text() == "1"
    assert tab.locator("table.grid tbody tr:visible").count() == 2
    assert tab.url.endswith("#seed=1")
    other = browser.new_page()
    other.goto(f"{page.as_uri()}#seed=1,2&outcome=failed")
    assert shown.inner_text() == other.locator("#r1 .example:visible > p code").inner_text()
    assert other.get_by_role("group", name="seed").get_by_label("2", exact=True).is_checked()


def test_under_the_policy_of_jenkins(browser, page):
    """Without style and script all is there to be read, and no filter that would do nothing."""
    tab = browser.new_page()
    headers = {"Content-Security-Policy": JENKINS}
    body = page.read_text()
    tab.route("**/*", lambda r: r.fulfill(body=body, content_type="text/html", headers=headers))
    tab.goto("http://report.test/")
    assert tab.get_by_role("heading", level=1).inner_text() == "3 of 7 cells failed"
    assert tab.get_by_text("param differs at step 2").first.is_visible()
    assert tab.locator("svg[role=img]").first.is_visible()
    assert not tab.locator("details.filters").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility(browser, page, scheme):
    """Axe finds nothing in either theme: contrast, labels, headings, what the keyboard reaches.

    A theme changes colours alone, so in the second one those are looked at.
    """
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)
    tab = context.new_page()
    tab.goto(page.as_uri())
    tab.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
    tab.evaluate(AXE.read_text())
    whole = scheme == "light"
    found = tab.evaluate("axe.run()" if whole else "axe.run({runOnly: ['color-contrast']})")
    assert len(found["passes"]) >= (21 if whole else 1)
    assert [(v["id"], [n["html"] for n in v["nodes"]]) for v in found["violations"]] == []


def test_one_comparison(browser, make):
    """The headings of a page without a matrix follow each other; its command can be copied."""
    recorded = {"script": "train.py", "arguments": ["--lr", "1"], "revision": "ab" * 20}
    sides = {
        side: recorded | {"date": "2026-01-02T03:04:05"} for side in ("candidate", "reference")
    }
    changes = {"recorded": sides, "hunk": "@@ -1 +1 @@\n-a\n+b", "axes": {}}
    page = make(entry("fail", nodeid="a against b", **changes))
    context = browser.new_context(bypass_csp=True)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab = context.new_page()
    tab.goto(page.as_uri())
    tab.evaluate(AXE.read_text())
    assert [v["id"] for v in tab.evaluate("axe.run()")["violations"]] == []
    assert tab.get_by_text("reference: train.py --lr 1 · commit abababababab · 2026").is_visible()
    tab.get_by_role("button", name="Copy").first.click()
    tab.get_by_role("button", name="Copied").wait_for()
    assert tab.evaluate("navigator.clipboard.readText()") == "pytest x"


def test_dark(browser, page):
    """The page follows the reader's theme."""
    colour = "getComputedStyle(document.body).backgroundColor"
    shades = {}
    for scheme in ("light", "dark"):
        tab = browser.new_context(color_scheme=scheme).new_page()
        tab.goto(page.as_uri())
        shades[scheme] = tab.evaluate(colour)
    assert shades == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}


def test_a_narrow_screen(browser, page):
    """On a phone no table pushes the page open: what is wide scrolls in its own box."""
    tab = browser.new_context(viewport={"width": 400, "height": 800}).new_page()
    tab.goto(page.as_uri())
    tab.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
    assert tab.locator(".culprit mark").first.is_visible()
    assert tab.evaluate("document.documentElement.scrollWidth") == 400


def test_print(browser, page):
    """On paper nothing is folded away."""
    tab = browser.new_page()
    tab.goto(page.as_uri())
    figures = tab.locator("figure details table").first
    assert not figures.is_visible()
    tab.emulate_media(media="print")
    assert figures.is_visible()
