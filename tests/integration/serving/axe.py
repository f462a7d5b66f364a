"""axe-core on a page: which of its rules about accessibility the page breaks."""

from __future__ import annotations

from importlib.resources import files

from pageant.scripts.chromium import Page

BAD = ("serious", "critical")
RUN = """
axe.run(document, {resultTypes: ["violations"]}).then(({violations, passes}) => ({
    passed: passes.length,
    broken: violations.flatMap(({id, impact, nodes}) => nodes.map((node) => ({
        id, impact, where: node.target.flat().join(" "), why: node.failureSummary,
    }))),
}))
"""


async def broken_rules(page: Page) -> list[dict[str, str]]:
    """Return the places of a page that break a rule of serious or critical impact, as the page is now."""
    if not await page.run("'axe' in globalThis"):
        await page.run((files("axe_playwright_python") / "axe.min.js").read_text() + ";0")
    found = await page.run(RUN)
    assert found["passed"] > 10, "axe looked at nothing"
    return [one for one in found["broken"] if one["impact"] in BAD]
