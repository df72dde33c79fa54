"""The page of a study in a browser without WebGL, which is another one than that of the other tests."""

from __future__ import annotations

from pathlib import Path

from tests.pages import browsers, studies

from trialplane.pages import content, page


def test_without_webgl_points_are_drawn_all_the_same(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page.page("many", [content.content(studies.study(5000, steps=1), studies.AROUND)]), encoding="utf-8")
    with browsers.browser(("--no-sandbox", "--disable-3d-apis")) as opened_without:
        shown = opened_without(file)
        shown.show("history")
        drawn = "document.querySelector('#history .chart')?.data?.every(trace => trace.type === 'scatter')"
        shown.page.wait_for_function(f"{drawn} && !document.querySelector('#history .no-webgl')")
        assert shown.errors == []
