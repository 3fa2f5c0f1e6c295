"""Chromium as the tests start it: one that is at hand, with a profile of its own, and nothing that calls home."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from lacking import chromium
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--window-size=1200,900",
)  # fmt: skip


def start(profile: Path) -> webdriver.Chrome:
    """A browser without a window, for tests that are marked as needing one."""
    options = webdriver.ChromeOptions()
    options.binary_location = chromium()
    for argument in (*ARGUMENTS, f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


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
