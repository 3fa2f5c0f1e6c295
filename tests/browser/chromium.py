"""Chromium as the tests start it: one that is at hand, with a profile of its own, and nothing that calls home."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--window-size=1200,900",
)  # fmt: skip
WAY_OUT = (
    "the browser tests need Chromium and its driver: apt-get install chromium chromium-driver (as .ci/run does), or go "
    "without on this machine: SHARDWISE_NO_BROWSER=1"
)


def start(profile: Path) -> webdriver.Chrome:
    """A browser without a window; where there is none the test fails, unless it was said that one goes without."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    driver = shutil.which("chromedriver")
    if os.environ.get("SHARDWISE_NO_BROWSER") == "1":
        pytest.skip("SHARDWISE_NO_BROWSER=1: the pages are not tried in a browser on this machine")
    if found is None or driver is None:
        pytest.fail(f"there is no {'Chromium' if found is None else 'chromedriver'}: {WAY_OUT}", pytrace=False)
    options = webdriver.ChromeOptions()
    options.binary_location = found
    for argument in (*ARGUMENTS, f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(driver))


def emulate(browser: webdriver.Chrome, *, width: int = 1200, media: str = "", **features: str) -> None:
    """A screen so wide (pixels) that prefers what is said, as `color_scheme="dark"`; or paper, with `media="print"`."""
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    told = {"color_scheme": "light", "reduced_motion": "no-preference", **features}
    listed = [{"name": f"prefers-{name.replace('_', '-')}", "value": value} for name, value in told.items()]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": listed})


def complaints(browser: webdriver.Chrome) -> list[Any]:
    """What the console has said since it was last asked."""
    return browser.get_log("browser")
