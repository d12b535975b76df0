"""Opens the site of docs/ in headless Chromium: pages load, links hold, search finds what it should. Run by scripts/docs.

    check_site.py SITE [--screenshots FOLDER]

Exit 1 with a line for each thing that is wrong.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

HOME = "docs/index.html"
SEARCHED = {  # what a reader looks for: where it has to be found
    "all_gather_matmul": "docs/python.html",
    "AllGatherMatmul": "docs/reference/python/ops.html",
    "DeviceChain": "docs/reference/cpp/8_sync.html",
    "zigzag": "docs/attention.html",
}
SECONDS = 60


class Page(HTMLParser):
    """The links of a page, and what can be linked to in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def broken_links(site: Path) -> Iterator[str]:
    pages = {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue  # elsewhere: no test hangs on other people's machines
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                yield f"{path.relative_to(site)}: {link} leads nowhere"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{path.relative_to(site)}: {link} has no such place"


def browser() -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,1000"):
        options.add_argument(word)
    options.add_argument("--disable-dev-shm-usage")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.binary_location = "/usr/bin/chromium"
    return webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))


def wrong_in(driver: webdriver.Chrome, name: str) -> Iterator[str]:
    """What is wrong with the page that is open."""
    if not driver.find_elements(By.CSS_SELECTOR, "h1, #search-results"):
        yield f"{name}: no heading"
    for image in driver.find_elements(By.TAG_NAME, "img"):
        if not driver.execute_script("return arguments[0].naturalWidth", image):
            yield f"{name}: the picture {image.get_attribute('src')} is not shown"
    for line in driver.get_log("browser"):
        if line["level"] == "SEVERE" and "favicon" not in line["message"]:
            yield f"{name}: {line['message']}"


def found_by_search(driver: webdriver.Chrome, base: str, words: str) -> list[str]:
    """The pages that the site's search lists."""
    driver.get(f"{base}/{HOME}")
    box = driver.find_element(By.CSS_SELECTOR, "input[name=q]")
    box.send_keys(words)
    box.submit()
    WebDriverWait(driver, SECONDS).until(
        lambda _: (
            driver.find_elements(By.CSS_SELECTOR, "#search-results .search-summary")
            and "found" in driver.find_element(By.CSS_SELECTOR, "#search-results .search-summary").text
        )
    )
    links = driver.find_elements(By.CSS_SELECTOR, "#search-results ul.search li a")
    return [urlsplit(link.get_attribute("href")).path.lstrip("/") for link in links]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", type=Path)
    parser.add_argument("--screenshots", type=Path, help="where a picture of each page goes")
    options = parser.parse_args()
    site = options.site.resolve()
    wrong = list(broken_links(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}"
    driver = browser()
    try:
        pages = [str(path.relative_to(site)) for path in sorted(site.rglob("*.html"))]
        for name in pages:
            driver.get(f"{base}/{name}")
            wrong += wrong_in(driver, name)
            if options.screenshots:
                options.screenshots.mkdir(parents=True, exist_ok=True)
                driver.save_screenshot(str(options.screenshots / f"{name.replace('/', '_')}.png"))
        for words, place in SEARCHED.items():
            found = found_by_search(driver, base, words)
            if place not in found:
                wrong.append(f"search for {words}: expected {place}, found {', '.join(found) or 'nothing'}")
    finally:
        driver.quit()
        server.shutdown()
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    print(f"{len(pages)} pages opened, {len(SEARCHED)} searches, {len(wrong)} things wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
