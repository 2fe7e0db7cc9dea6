"""An automated accessibility check with axe-core, as packaged for Python: no network, no npm."""

from pathlib import Path

import pytest

#: What a reader with a disability cannot work around.
SERIOUS = ("serious", "critical")


def assert_accessible(page, selector: str):
    """Fail with axe-core's explanation if it finds anything serious below ``selector``."""
    packaged = pytest.importorskip("axe_playwright_python")
    if not page.evaluate("Boolean(window.axe)"):
        page.evaluate((Path(packaged.__file__).parent / "axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate("(selector) => axe.run(selector)", selector)["violations"]
    serious = [describe(rule) for rule in found if rule["impact"] in SERIOUS]
    assert not serious, "\n".join(serious)


def describe(rule) -> str:
    places = "; ".join(
        f"{node['target'][0]}: {node['failureSummary']}" for node in rule["nodes"][:3]
    )
    return f"{rule['id']} ({rule['impact']}): {rule['help']}. {places}"
