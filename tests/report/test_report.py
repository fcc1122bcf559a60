"""The page: complete without scripts, needs nothing from elsewhere, and shows text as text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import expect

from helpers.browser import open_page
from helpers.report_cases import NAMES, report_case, volume_rows
from perturb_mpm.report.colours import label_styles
from perturb_mpm.report.data import Provenance, ReportData, Snapshot
from perturb_mpm.report.locations import uncertain_locations
from perturb_mpm.report.pictures import Studio, outline_path
from perturb_mpm.report.report import render_report, write_report

NARROW = "reflects voxel noise alone and is far too narrow"
SECTIONS = [
    "slices",
    "rating",
    "locations",
    "volumes",
    "convergence",
    "truth",
    "viewer",
    "provenance",
    "glossary",
]


def full_case(**changes: Any) -> ReportData:
    data = report_case(**changes)
    return replace(data, truth=np.roll(data.labels, 1, axis=0), warnings=("Look twice.",))


def page(data: ReportData) -> str:
    return render_report(data, viewer=False)[1]


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html))


def test_sections_stand_in_the_order_a_reader_needs_them() -> None:
    html = render_report(full_case())[1]
    found = re.findall(r'<section id="(\w+)"', html)
    assert found == SECTIONS
    text = text_of(html)
    assert text.index("Check first:") < text.index("Look twice.") < text.index("Where the doubt is")


def test_the_head_says_volumes_uncertain_voxels_samples_and_seed() -> None:
    labels = np.zeros((10, 10, 10), dtype=np.uint8)
    labels[0] = 2  # 100 voxels of 12 mm³
    volumes = np.zeros((40, 4))
    volumes[:, 2] = np.linspace(1000.0, 2000.0, 40)
    classes = np.zeros((10, 10, 10), dtype=np.uint8)
    classes[0, :5], classes[1, 0] = 2, 1  # 50 and 10 voxels
    rows = volume_rows((0, 1, 2, 4), NAMES, np.array([10.8, 0.0, 1.2, 0.0]), volumes)
    changed = {"volumes": rows, "uncertainty": classes, "intervals": "assumed"}
    text = text_of(page(report_case((10, 10, 10), labels=labels, **changed)))
    assert "Oedema about 1.5 ml (1.0–2.0; label map 1.2)" in text
    assert "0.60 ml are uncertain, 0.12 ml undecided: too few samples" in text
    assert "40 samples, seed 11" in text


def test_only_independent_noise_is_called_too_narrow() -> None:
    assert text_of(page(report_case())).count(NARROW) == 1
    learned = report_case(intervals="learned", perturbation="noise over 20 mm")
    text = text_of(page(learned))
    assert NARROW not in text
    assert "too narrow" not in text
    assert "perturbed by noise over 20 mm" in text


def test_the_page_says_what_it_rests_on() -> None:
    provenance = Provenance(
        version="1.2.3",
        date="2026-03-31",
        inputs={"t1.nii.gz": "ab" * 32},
        kernels="a spatial kernel (3 mm)",
        convergence="The last iteration changed the label of 0.01 % of the voxels at most.",
        maps="the samples' votes",
        software={"numpy": "2.4"},
    )
    data = report_case(
        provenance=provenance, perturbation="noise over 20 mm", intervals="learned", learned_cases=7
    )
    text = text_of(page(replace(data, parameters={"what the settings rest on": "7 cases"})))
    for words in (
        "perturb-mpm 1.2.3, run on 2026-03-31",
        f"t1.nii.gz {'ab' * 32}",
        "what the settings rest on 7 cases",
        "numpy 2.4",
        "implemented in perturb-mpm, version 1.2.3. 40 segmentations were sampled from a dense",
        "conditional random field with a spatial kernel (3 mm), perturbed by noise over 20 mm.",
        "mm. The last iteration changed the label of 0.01 % of the voxels at most. Labels and",
        "learned from 7 labelled cases",
        "arXiv:1703.00312",
    ):
        assert words in text, words


def test_without_an_orientation_no_side_is_marked() -> None:
    oriented, not_oriented = page(report_case()), page(report_case(oriented=False))
    assert '<span class="side on-left">R</span>' in oriented
    assert 'class="side' not in not_oriented
    assert "no sides are marked" in text_of(not_oriented)


def test_the_truth_is_marked_in_every_histogram_and_labels_have_their_colours() -> None:
    rows = tuple(replace(row, truth_ml=row.volume_ml * 1.1) for row in report_case().volumes)
    html = page(full_case(volumes=rows))
    assert html.count('<i class="true"') == html.count('<div class="histogram">') > 0
    assert '<i class="true"' not in page(report_case())
    for style in label_styles(NAMES):
        assert f'class="swatch" style="background: {style.colour}"' in html


def test_rows_of_locations_tell_the_viewer_where_to_go() -> None:
    data = report_case()
    rows = re.findall(
        r'class="location-row(?: plain)?" data-rank="(\d+)" data-mm="(.*?)" data-voxel="(.*?)"',
        page(data),
    )
    locations = uncertain_locations(data)
    assert locations
    assert rows == [
        (str(r.rank), str(list(r.centre_mm)), str(list(r.centre_voxel))) for r in locations
    ]
    borders = re.findall(r'<tr [^>]*row plain"[^>]*>(.*?)</tr>', page(data), re.DOTALL)
    assert len(borders) == sum(each.kind == "border" for each in locations) > 0
    assert all("to each side" in row and "<img" not in row for row in borders)


def test_nothing_comes_from_elsewhere() -> None:
    html = page(full_case())
    assert "http:" not in html
    assert "https:" not in html
    for whole in (html, render_report(full_case())[1]):
        addresses = re.findall(r"""\b(?:src|href|action|poster)\s*=\s*["']?([^"'\s>]+)""", whole)
        assert addresses
        assert [a for a in addresses if not a.startswith(("data:", "#"))] == []
        assert re.findall(r"(?:url\(|@import)", whole.split("</style>")[0]) == []
        assert "default-src 'none'" in whole.replace("&#39;", "'")


HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)>"


def test_text_is_shown_as_text() -> None:
    data = full_case(
        title=HOSTILE,
        label_names=("a", HOSTILE, "b", '"><b>'),
        images={HOSTILE: np.zeros((20, 24, 16), dtype=np.float32)},
        perturbation=HOSTILE,
        parameters={HOSTILE: HOSTILE, "list": [HOSTILE]},
    )
    data = replace(data, warnings=(HOSTILE,))
    for html in (page(data), render_report(data)[1]):
        assert "<script>alert" not in html
        assert "<img src=x" not in html
        assert '"><b>' not in html
    assert page(data).count("&lt;script&gt;alert") >= 8


@pytest.mark.parametrize("shape", [(20, 24, 1), (20, 24), (1, 1, 1), (3, 1, 4)])
def test_flat_volumes_have_a_page(shape: tuple[int, ...]) -> None:
    html = render_report(full_case(shape=shape))[1]
    assert 'class="slice ' in html


def test_a_page_without_anything_uncertain_says_so() -> None:
    blank = np.zeros((20, 24, 16), dtype=np.float32)
    data = report_case(
        entropy=blank,
        uncertainty=blank.astype(np.uint8),
        snapshots=(Snapshot(40, blank),),
        samples=0,
        volumes=volume_rows((0, 1, 2, 4), NAMES, np.zeros(4), np.zeros((0, 4))),
        sampled_labels=np.zeros((0, 20, 24, 16), dtype=np.uint8),
        images={},
        parameters={},
    )
    html = page(data)
    assert "No voxel is uncertain" in html
    assert 'id="convergence"' not in html
    assert 'id="truth"' not in html


def test_an_empty_mask_has_a_page() -> None:
    blank = np.zeros((20, 24, 16), dtype=np.uint8)
    empty = {"mask": blank > 0, "labels": blank, "uncertainty": blank}
    html = page(full_case(**empty, entropy=blank.astype(np.float32)))
    assert "No voxel inside the mask has a wrong label" in html


def test_a_single_label_is_not_added_up() -> None:
    two = report_case()
    two = replace(
        two,
        labels=(two.labels > 0).astype(np.uint8),
        marginals=np.stack([two.marginals[0], two.marginals[1:].sum(axis=0)]),
        label_names=("background", "lesion"),
        label_values=(0, 1),
        volumes=two.volumes[:2],
    )
    text = text_of(page(two))
    assert "all labels" not in text
    assert "scale of entropy from 0 to 1 bits" in page(two)


def test_parts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    wrong = {
        "entropy must have the mask's shape": {"entropy": np.zeros((2, 2, 2), dtype=np.float32)},
        "image 'T2' must have": {"images": {"T2": np.zeros((20, 24, 15), dtype=np.float32)}},
        "label_values must hold the 4 labels": {"label_values": (0, 1)},
        "colour_map must be one of": {"colour_map": "rainbow"},
        "affine must be": {"affine": np.zeros((4, 4))},
        "mask must have two or three axes": {"mask": np.ones(4, dtype=bool)},
    }
    for message, change in wrong.items():
        with pytest.raises(ValueError, match=message):
            write_report(tmp_path / "report.html", replace(report_case(), **change))
    assert list(tmp_path.iterdir()) == []


def test_the_same_data_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one.html", "two.html"):
        write_report(tmp_path / name, full_case())
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.html", "two.html"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(path, full_case(title=HOSTILE))
    return path


def test_the_browser_would_see_a_request_and_an_error(tmp_path: Path) -> None:
    leaky = tmp_path / "leaky.html"
    leaky.write_text('<img src="http://example.org/a.png"><script>throw Error("oh")</script>')
    with open_page(leaky) as opened:
        assert opened.requests == ["http://example.org/a.png"]
        assert any("oh" in error for error in opened.errors)


def test_the_page_reads_without_scripts(written: Path) -> None:
    with open_page(written, javascript=False) as opened:
        pictures = opened.page.evaluate(
            "Array.from(document.images, i => [i.complete, i.naturalWidth, i.naturalHeight])"
        )
        assert len(pictures) > 20
        assert all(done and w > 0 and h > 0 for done, w, h in pictures)
        assert opened.page.inner_text("h1") == HOSTILE
        for width in (1280, 800, 400):
            opened.page.set_viewport_size({"width": width, "height": 900})
            assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
            slices = opened.page.locator("#slices .slice")
            boxes = [each.bounding_box() for each in slices.all()]
            assert len(boxes) >= 3
            assert all(box is not None and box["width"] > 150 for box in boxes)
        assert opened.requests == []
        assert opened.errors == []


def test_layers_are_chosen_without_scripts(written: Path) -> None:
    with open_page(written, javascript=False) as opened:
        place = opened.page.locator("#slices .slice:not(.bare)").first

        def shown() -> list[bool]:
            names = (".sequence-0", ".sequence-1", ".overlay", ".outlines")
            return [place.locator(name).is_visible() for name in names]

        assert shown() == [True, False, True, True]
        opened.page.get_by_label("FLAIR").first.check()
        assert shown() == [False, True, True, True]
        opened.page.locator("#show-curves-0").check()
        assert shown() == [False, True, False, False]
        assert place.locator(".structure-0 path").count() == 2  # nothing has 95 %
        assert place.locator(".structure-0").is_visible()
        assert not place.locator(".structure-1").is_visible()
        opened.page.locator("#show-image").check()
        opened.page.locator("#show-outlines").uncheck()
        assert shown() == [False, True, False, False]
        assert not place.locator(".structure-0").is_visible()


def test_curves_enclose_what_may_be_and_what_surely_is_inside() -> None:
    data = report_case()  # a box that is labelled with 60 %, and a core in it with certainty
    studio = Studio(data, structures=((1, 2), (3,)))
    plane = studio.planes[0]
    labelled, absent = studio.location_picture(plane, (7, 9, 6)).curves
    found = dict(labelled.paths)
    cut = plane.cut(data.labels, 6, studio.box)
    assert found[5] == found[50] == outline_path(cut > 0)
    assert found[95] == outline_path(cut == 1)
    assert set(dict(absent.paths).values()) == {""}


RATED = {"rating": "fix", "note": "front rim", "initials": "AB"}


def test_a_rating_is_kept_in_the_browser_and_downloads(tmp_path: Path) -> None:
    path = tmp_path / "case" / "report.html"
    path.parent.mkdir()
    write_report(path, report_case(), viewer=False)
    with open_page(path) as opened:
        rating = opened.page.locator("#rating")
        rating.locator("[data-format=json]").click()
        assert "first" in rating.locator("output").inner_text()  # nothing is chosen yet
        rating.locator("[value=fix]").check()
        rating.locator("[name=note]").fill("front rim")
        rating.locator("[name=initials]").fill("AB")
        opened.page.reload()
        expect(rating.locator("[value=fix]")).to_be_checked()
        assert rating.locator("[name=note]").input_value() == "front rim"
        for ending in ("json", "tsv"):
            with opened.page.expect_download() as download:
                rating.locator(f"[data-format={ending}]").click()
            assert download.value.suggested_filename == f"A_patient_rating.{ending}"
            download.value.save_as(tmp_path / f"rating.{ending}")
        found = json.loads((tmp_path / "rating.json").read_text())
        assert RATED.items() <= found.items()
        assert found["case"] == "A patient"
        header, row = (tmp_path / "rating.tsv").read_text().splitlines()
        assert RATED.items() <= dict(zip(header.split("\t"), row.split("\t"))).items()
        # Another run of the same case does not take over the rating.
        write_report(path, report_case(samples=41), viewer=False)
        opened.page.reload()
        assert not rating.locator("[value=fix]").is_checked()
        assert "earlier run" in rating.locator("output").inner_text()
        assert opened.errors == []


def test_the_way_back_to_the_cohort(tmp_path: Path) -> None:
    write_report(tmp_path / "report.html", report_case(), viewer=False)
    address = (tmp_path / "report.html").as_uri()
    with open_page(f"{address}#back=../cohort.html") as opened:
        link = opened.page.locator("#back")
        assert link.is_visible()
        assert link.get_attribute("href") == "../cohort.html"
        opened.page.goto("about:blank")
        opened.page.goto(f"{address}#back=javascript:alert(1)")
        assert not link.is_visible()


def test_a_click_and_a_key_on_a_row_ask_for_its_location(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, full_case(), viewer=False)
    with open_page(path) as opened:
        opened.page.evaluate(
            "window.asked = []; window.addEventListener('pmpm:goto', e => asked.push(e.detail.mm))"
        )
        row = opened.page.locator("tr.location-row").first
        row.click()
        row.focus()
        opened.page.keyboard.press("Enter")
        centre = list(uncertain_locations(report_case())[0].centre_mm)
        assert opened.page.evaluate("window.asked") == [centre, centre]
        assert opened.requests == []
        assert opened.errors == []
