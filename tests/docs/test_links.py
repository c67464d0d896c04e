"""Links: what a page points at exists, and every page can be found."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from documents import FENCE, PAGES, ROOT, named, prose

LLMS = ROOT / "docs" / "llms.txt"
FILES = "https://raw.githubusercontent.com/pytest-precision/pytest-precision/main/"
SITE = "https://pytest-precision.github.io/pytest-precision/"
LINK = re.compile(r"\]\(([^)\s]+)\)")
OTHERS = sorted(
    {*ROOT.glob("*.md"), *ROOT.glob("guides/*.md"), *ROOT.glob("fixtures/*/README.md")} - {*PAGES}
)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#{1,6} (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return found


def dangling(page: Path, text: str) -> list[str]:
    """Return the links of a text that lead nowhere; those to other sites are not followed."""
    wrong = []
    for link in LINK.findall(text):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if "://" in link:
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    """A relative link has a file, and its anchor a heading in it."""
    assert not dangling(page, prose(page))


def test_a_dangling_link_is_found(tmp_path: Path) -> None:
    """A file that is missing, and an anchor that is: both are told from those that exist."""
    page = tmp_path / "page.md"
    page.write_text("# One `two`, three\n\n```text\n# no heading\n```\n")
    text = "[a](page.md#one-two-three) [b](#one-two-three) [c](#no-heading) [d](other.md)"
    assert dangling(page, text) == ["#no-heading", "other.md"]


def test_the_index_has_every_page() -> None:
    """A page that nothing leads to is not read."""
    index = ROOT / "docs" / "index.md"
    links = LINK.findall(index.read_text())
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in links}
    assert {*PAGES[1:]} - {index} <= linked


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("rollout", "how-to/trainer-and-rollout.md"),
        ("resume", "how-to/restart-a-trainer.md"),
        ("data collator", "how-to/hf-trainer.md"),
        ("upgrade", "how-to/upgrade-a-dependency.md"),
        ("false alarm", "troubleshooting.md"),
        ("progress", "reference/report.md"),
    ],
)
def test_a_search_finds_its_page_first(words: str, page: str) -> None:
    """The site's search shows pages first of which a heading has the words: there is one alone."""
    docs = ROOT / "docs"
    headings = {
        named(file).removeprefix("docs/"): " ".join(anchors(file)).split()
        for file in PAGES
        if docs in file.parents
    }
    alone = [
        name
        for name, titles in headings.items()
        if any({*words.split()} <= {*heading.split("-")} for heading in titles)
    ]
    assert alone == [page]


def test_llms_txt_follows_the_convention() -> None:
    """A title, a summary, and lists of links with a line each, of which all pages are in one."""
    title, summary, *rest = (line for line in LLMS.read_text().splitlines() if line)
    assert title == "# pytest-precision"
    assert summary.startswith("> ")
    entries = [line for line in rest if line.startswith("- ")]
    assert all(re.fullmatch(r"- \[[^]]+\]\([^)]+\): \S.+", line) for line in entries)
    assert all(line.startswith(("- ", "## ")) for line in rest)
    links = LINK.findall(LLMS.read_text())
    assert links.count(f"{SITE}dev/llms-full.txt") == 1
    files = [link for link in links if not link.startswith(SITE)]
    assert all(link.startswith(FILES) for link in files), "of use outside the repository too"
    assert {ROOT / link.removeprefix(FILES) for link in files} >= {*PAGES}
    assert all((ROOT / link.removeprefix(FILES)).is_file() for link in files)


def test_the_sample_is_linked_where_a_browser_shows_it() -> None:
    """GitHub shows the source of a file; the site has the page, for which `docs/sample` is."""
    for page in ("README.md", "docs/index.md", "docs/reference/report.md"):
        links = LINK.findall((ROOT / page).read_text())
        assert links.count(f"{SITE}dev/sample/report.html") == 1
        assert not any(link.endswith("sample/report.html") for link in links if "://" not in link)


def test_the_readme_is_short() -> None:
    """Who looks for more is led to a page."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_readme_counts_the_findings() -> None:
    """As many as the first table of their page has."""
    (count,) = re.findall(
        r"\[(\d+) defects\]\(docs/evidence/findings\.md\)", (ROOT / "README.md").read_text()
    )
    table = (ROOT / "docs" / "evidence" / "findings.md").read_text().partition("\n| --- ")[2]
    assert int(count) == len(table.partition("\n\n")[0].splitlines()) - 1
