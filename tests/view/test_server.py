"""The local server: who is let in, what is given out, and what an update leaves on disk."""

from __future__ import annotations

import http.client
import io
import json
import os
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from helpers.viewer_run import NAMES, SETTINGS, SHAPE, VALUES, copy_run, make_case
from perturb_mpm.cli.console import UsageError
from perturb_mpm.cli.view import is_remote, view
from perturb_mpm.engines.cpu import store
from perturb_mpm.files import Geometry, LabelScheme
from perturb_mpm.measures import OWN_ERRORS
from perturb_mpm.progress import Silent
from perturb_mpm.report import ReportData
from perturb_mpm.run import (
    OutputError,
    RunSettings,
    load_run,
    report_data,
    run_case,
    volume_rows,
)
from perturb_mpm.storage import LockedError
from perturb_mpm.view import Corrector
from perturb_mpm.view import correction as saving
from perturb_mpm.view import session as session_module
from perturb_mpm.view.server import (
    MOST_BODY_BYTES,
    MOST_EDITED_VOXELS,
    TOKEN_HEADER,
    ViewServer,
    Volumes,
)
from perturb_mpm.view.session import Session, open_session

CORE = 2


@dataclass
class Client:
    """Asks the server as a browser's page would, unless told otherwise."""

    server: ViewServer

    def ask(
        self,
        path: str,
        body: object = None,
        *,
        method: str | None = None,
        without: str = "",
        **headers: str,
    ) -> tuple[int, bytes, dict[str, str]]:
        gate = self.server.gate
        sent = {"Host": f"127.0.0.1:{gate.port}", TOKEN_HEADER: gate.token}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            sent |= {"Origin": f"http://127.0.0.1:{gate.port}", "Content-Type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        sent.pop(without, None)
        connection = http.client.HTTPConnection("127.0.0.1", gate.port, timeout=120)
        try:
            kind = method or ("GET" if body is None else "POST")
            connection.putrequest(kind, path, skip_host=True, skip_accept_encoding=True)
            if data is not None and "Content-Length" not in sent:
                sent["Content-Length"] = str(len(data))
            for name, value in sent.items():
                connection.putheader(name, value)
            connection.endheaders(data)
            answer = connection.getresponse()
            return answer.status, answer.read(), dict(answer.getheaders())
        finally:
            connection.close()

    def update(self, runs: list[list[int]], revision: int | None = None) -> tuple[int, Any]:
        """Post edits that begin at a revision, the latest one by default."""
        number = self.server.session.shown.number if revision is None else revision
        status, answer, _ = self.ask("/update", {"runs": runs, "revision": number})
        return status, json.loads(answer)

    def revert(self) -> int:
        return self.status_of("/revert", {"revision": self.server.session.shown.number})

    def status_of(self, path: str, body: object = None, **options: Any) -> int:
        return self.ask(path, body, **options)[0]

    def volume(self, name: str) -> nib.Nifti1Image:
        status, content, _ = self.ask(f"/volumes/{name}")
        assert status == 200
        return nib.Nifti1Image.from_bytes(content)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copy_run(tmp_path / "case")


@pytest.fixture
def client(folder: Path) -> Iterator[Client]:
    with ViewServer(open_session(folder)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield Client(server)
        server.session.wait()
        server.shutdown()
        thread.join()


def turned(volume: np.ndarray) -> np.ndarray:
    """Return a volume of the run, whose x runs to the left, as the browser gets it."""
    return volume[::-1]


def test_it_listens_on_the_loopback_address_alone(client: Client) -> None:
    assert client.server.server_address[0] == "127.0.0.1"
    assert client.server.address.startswith(f"http://127.0.0.1:{client.server.gate.port}/?token=")
    assert len(client.server.gate.token) >= 32


def test_the_page_needs_the_token_in_its_address(client: Client) -> None:
    gate = client.server.gate
    status, page, headers = client.ask(f"/?token={gate.token}", without=TOKEN_HEADER)
    assert status == 200
    assert b"Made-up patient" in page
    nonce = client.server.nonce
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'nonce-{nonce}';" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "Set-Cookie" not in headers
    assert client.status_of("/") == 403  # even with the header: the page takes it from its address
    assert client.status_of(f"/?token={gate.token[:-1]}") == 403
    assert client.status_of("/?token=") == 403


@pytest.mark.parametrize(
    "path",
    [
        *("/volumes/labels", "/status", "/edits", "/changes", "/volumes-ml", "/locations"),
        *("/draft", "/archive", "/nothing"),
    ],
)
def test_everything_else_needs_the_token_in_a_header(client: Client, path: str) -> None:
    token = client.server.gate.token
    assert client.status_of(path, without=TOKEN_HEADER) == 403
    assert client.status_of(f"{path}?token={token}", without=TOKEN_HEADER) == 403
    assert client.status_of(path, **{TOKEN_HEADER: "x" * len(token)}) == 403
    assert client.status_of(path, **{TOKEN_HEADER: "é"}) == 403


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost", ""])
def test_other_hosts_are_refused(client: Client, host: str) -> None:
    assert client.status_of("/status") == 200
    assert client.status_of("/status", Host=f"localhost:{client.server.gate.port}") == 200
    status, body, _ = client.ask("/status", Host=host)
    assert status == 403
    assert b"does not answer for the host" in body
    assert client.status_of("/status", without="Host") == 403


@pytest.mark.parametrize(
    "path",
    [
        "/volumes/../state/run.json",
        "/../../../../etc/passwd",
        "/volumes/%2e%2e%2fstate%2frun.json",
        "/volumes//etc/passwd",
        "//etc/passwd",
        "//evil.example/status",
        "/volumes/..%5c..%5cetc",
        "/volumes/labels.nii.gz",
        "/volumes/link",
        "/link.nii.gz",
        "/state/run.json",
        "/summary.json",
        "/volumes/",
        "/volumes/image-2",
    ],
)
def test_no_path_is_ever_looked_up(client: Client, folder: Path, path: str) -> None:
    (folder / "link.nii.gz").symlink_to("/etc/passwd")
    status, body, _ = client.ask(path)
    assert status == 404
    assert b"root" not in body


@pytest.mark.parametrize(
    "target",
    [
        "file:///etc/passwd",
        "file:///status",
        "http://evil.example/status",
        "https://127.0.0.1/status",
    ],
)
def test_a_foreign_address_as_target_is_refused(client: Client, target: str) -> None:
    status, body, _ = client.ask(target)
    assert status == 400
    assert b"not this server's" in body
    assert client.status_of(f"http://127.0.0.1:{client.server.gate.port}/status") == 200


@pytest.mark.parametrize("link", ["labels.nii.gz", "state/case.npz", "state", "sub"])
def test_a_folder_with_a_link_that_leads_out_is_refused(
    folder: Path, tmp_path: Path, link: str
) -> None:
    path = folder / link
    if path.exists():
        path.rename(tmp_path / "elsewhere")
    else:
        (tmp_path / "elsewhere").mkdir()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a link that leads out of the folder"):
        open_session(folder)


def test_changes_come_from_the_own_page_alone(client: Client, folder: Path) -> None:
    body = {"runs": [[1, 0, 1]]}
    assert client.status_of("/update", body, Origin="http://evil.example") == 403
    assert client.status_of("/update", body, without="Origin") == 403
    assert client.status_of("/update", body, Origin="null") == 403
    assert client.status_of("/update", body, Content_Type="text/plain") == 415
    assert client.status_of("/update", body, without=TOKEN_HEADER) == 403
    assert client.status_of("/nothing", body) == 404
    assert client.status_of("/update", method="PUT") == 501
    assert client.status_of("/update", method="OPTIONS") == 501
    assert not (folder / "edits.json").exists()


def test_bodies_have_a_limit_and_a_length(client: Client) -> None:
    too_much = str(MOST_BODY_BYTES + 1)
    status, body, _ = client.ask("/update", {}, Content_Length=too_much)
    assert status == 413
    assert b"8 MiB" in body
    assert client.status_of("/update", {}, Content_Length="-1") == 411
    assert client.status_of("/update", {}, Content_Length="1e9") == 411


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([1], b"list of runs"),
        ({}, b"list of runs"),
        ({"runs": 3}, b"list of runs"),
        ({"runs": [[1, 2]]}, b"three whole numbers"),
        ({"runs": [[1, 2, 1.5]]}, b"three whole numbers"),
        ({"runs": [[True, 2, 1]]}, b"three whole numbers"),
        ({"runs": [[3, 0, 1]]}, b"outside"),
        ({"runs": [[-1, 0, 1]]}, b"outside"),
        ({"runs": [[0, -1, 1]]}, b"outside"),
        ({"runs": [[0, 5, 0]]}, b"outside"),
        ({"runs": [[0, int(np.prod(SHAPE)), 1]]}, b"outside"),
        ({"runs": [[0, 0, int(np.prod(SHAPE))]] * 9}, b"at most"),
        ({"runs": [[1, 0, 1]]}, b"number of a revision"),
        ({"runs": [[1, 0, 1]], "revision": "0"}, b"number of a revision"),
    ],
)
def test_edits_that_make_no_sense_are_refused_in_words(
    client: Client, body: object, words: bytes
) -> None:
    assert 9 * int(np.prod(SHAPE)) > MOST_EDITED_VOXELS
    status, answer, _ = client.ask("/update", body)
    assert status == 400
    assert words in answer


def test_volumes_are_the_runs_own_in_full_in_the_browsers_order(client: Client) -> None:
    run = client.server.session.run
    labels = client.volume("labels")
    assert nib.aff2axcodes(labels.affine) == ("R", "A", "S")
    assert np.array_equal(np.asarray(labels.dataobj), turned(run.posterior.labels))
    assert labels.header["intent_code"] == 1002
    bits = np.asarray(client.volume("entropy").dataobj)
    assert np.array_equal(bits, turned(run.posterior.entropy.astype(np.float32)))
    image = client.volume("image-1")
    assert np.array_equal(np.asarray(image.dataobj), turned(run.case.images["FLAIR"]))
    corner = image.affine @ [0, 0, 0, 1]
    assert corner == pytest.approx(run.case.geometry.affine @ [SHAPE[0] - 1, 0, 0, 1])
    shares = [client.volume(f"share-{label}").get_fdata() for label in range(3)]
    assert sum(shares) == pytest.approx(1, abs=0.01)
    assert shares[1] == pytest.approx(turned(run.posterior.marginals[1]), abs=0.003)
    sample = np.asarray(client.volume("sample-3").dataobj)
    assert np.array_equal(sample, turned(run.sampled_labels[3]))


def test_volumes_end_around_the_mask_and_edits_find_their_voxels() -> None:
    shape = (40, 30, 25)
    mask = np.zeros(shape, dtype=bool)
    mask[15:20, 12:14, 12] = True
    geometry = Geometry(shape, np.diag([-1.0, 2.0, 1.0, 1.0]), (1.0, 2.0, 1.0), None)
    labels = LabelScheme((0, 1), ("a", "b"))
    case = SimpleNamespace(mask=mask, geometry=geometry, labels=labels, images={})
    edits = {int(np.ravel_multi_index((16, 13, 12), shape)): 1}
    session = SimpleNamespace(
        run=SimpleNamespace(case=case, sampled_labels=[], labels=mask.astype(np.uint8))
    )
    volumes = Volumes(session)  # type: ignore[arg-type]
    image = nib.Nifti1Image.from_bytes(volumes.get("image-0") or b"")
    assert image.shape == (25, 22, 21)
    assert image.affine @ [0, 0, 0, 1] == pytest.approx([-29, 4, 2, 1])
    run = 29 - 16 + 25 * (13 - 2 + 22 * (12 - 2))
    assert volumes.runs(edits) == [(1, run, 1)]
    assert volumes.parse_runs([(1, run, 1)]) == edits
    assert len(volumes.file_index) == 25 * 22 * 21


def edit_some(client: Client, label: int = CORE, count: int = 6) -> np.ndarray:
    """Set the most uncertain voxels to a label; return which, in the file's order."""
    session = client.server.session
    chosen = np.argsort(session.run.entropy, axis=None)[-count:]
    starts = np.argsort(client.server.volumes.file_index)[chosen]
    runs = [[label, int(start), 1] for start in starts]
    assert client.update(runs)[0] == 202
    session.wait()
    assert session.status.error == ""
    return chosen


def test_an_update_changes_the_maps_on_disk_and_lists_the_edits(
    client: Client, folder: Path
) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    chosen = edit_some(client)
    assert {path: path.read_bytes() for path in before} == before
    own, corrected = (nib.load(folder / f"{n}.nii.gz") for n in ("labels", "labels-corrected"))
    assert np.array_equal(own.affine, corrected.affine)
    assert own.header["sform_code"] == corrected.header["sform_code"]
    old, new = np.asarray(own.dataobj), np.asarray(corrected.dataobj)
    assert (new.flat[chosen] == VALUES[CORE]).all()
    bits = np.asarray(nib.load(folder / "entropy-corrected.nii.gz").dataobj)
    assert (bits.flat[chosen] == 0).all()
    status = json.loads(client.ask("/status")[1])
    moved = set(np.flatnonzero(old != new)) - set(chosen.tolist())
    assert status["edited_voxels"] == 6
    assert status["moved_voxels"] == len(moved)
    assert status["revision"] >= 2  # the mean field first, then the samples
    assert status["final"]
    assert (client.server.session.run.entropy.flat[sorted(moved)] > 0).all()
    listed = json.loads((folder / "edits.json").read_text())["edits"]
    assert [entry["order"] for entry in listed] == [1, 2, 3, 4, 5, 6]
    for entry in listed:
        voxel = tuple(entry["voxel"])
        assert entry["old_label"] == old[voxel]
        assert entry["new_label"] == VALUES[CORE]
        assert entry["position_mm"] == pytest.approx((own.affine @ [*voxel, 1])[:3])
    assert {tuple(e["voxel"]) for e in listed} == {
        tuple(map(int, np.unravel_index(v, SHAPE))) for v in chosen
    }
    assert np.array_equal(
        np.asarray(client.volume("labels").dataobj), turned(np.searchsorted(VALUES, old))
    )
    labels, entropy, shares = patched(client)
    assert np.array_equal(labels, turned(np.searchsorted(VALUES, new)))
    assert np.array_equal(entropy, turned(bits))
    assert shares.sum(axis=0) == pytest.approx(1, abs=0.02)
    assert (shares[CORE][labels == CORE] > 0.3).all()


def patched(client: Client) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The run's labels, entropy and shares with the changes that the page gets."""
    answer = client.ask("/changes")[1]
    (count,) = np.frombuffer(answer, "<u4", 1)
    positions = np.frombuffer(answer, "<u4", count, 4)
    bits = np.frombuffer(answer, "<f4", count, 4 + 4 * count)
    labels = np.frombuffer(answer, "u1", count, 4 + 8 * count)
    shares = np.frombuffer(answer, "u1", offset=4 + 9 * count).reshape(3, count) / 255
    names = ("labels", "entropy", *(f"share-{label}" for label in range(3)))
    found = [client.volume(name).get_fdata() for name in names]
    for volume, values in zip(found, (labels, bits, *shares), strict=True):
        flat = volume.ravel(order="F")
        flat[positions] = values
        volume[...] = flat.reshape(volume.shape, order="F")
    return found[0], found[1].astype(np.float32), np.stack(found[2:])


def test_what_changes_is_shown_in_ml_and_in_locations(client: Client, folder: Path) -> None:
    before = json.loads(client.ask("/locations")[1])["locations"]
    assert all(each["before_ml"] == each["after_ml"] for each in shown_volumes(client))
    edit_some(client, count=300)
    core = next(each for each in shown_volumes(client) if each["name"] == "core")
    assert core["after_ml"] > core["before_ml"]
    after = json.loads(client.ask("/locations")[1])["locations"]
    assert after != before
    assert len(after[0]["mm"]) == 3
    assert (folder / "report-corrected.html").is_file()
    summary = json.loads((folder / "summary-corrected.json").read_text())
    assert core in summary["corrected"]["volumes"]
    sample = np.asarray(client.volume("sample-3").dataobj)
    assert client.server.session.shown.corrected is not None
    assert np.array_equal(sample, turned(client.server.session.shown.corrected.sampled_labels[3]))


def test_locations_of_an_older_revision_are_not_given_for_a_newer_one(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit_some(client, count=10)
    asked, go = threading.Event(), threading.Event()
    find = session_module.uncertain_locations

    def slow(data: ReportData, limit: int) -> Any:
        if not asked.is_set():
            asked.set()
            go.wait(120)
        return find(data, limit)

    monkeypatch.setattr(session_module, "uncertain_locations", slow)
    older = threading.Thread(target=client.ask, args=("/locations",))
    older.start()
    assert asked.wait(120)
    edit_some(client, count=300)
    go.set()
    older.join()
    corrected = client.server.session.shown.corrected
    assert corrected is not None
    wanted = [list(each.centre_mm) for each in find(report_data(corrected), 12)]
    found = json.loads(client.ask("/locations")[1])["locations"]
    assert [each["mm"] for each in found] == wanted


def shown_volumes(client: Client) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = json.loads(client.ask("/volumes-ml")[1])["volumes"]
    return volumes


def test_edits_are_there_again_when_the_run_is_opened_again(client: Client, folder: Path) -> None:
    edit_some(client)
    first = client.server.session
    first.close()
    again = open_session(folder)
    assert list(again.shown.edits.items()) == list(first.shown.edits.items())
    assert np.array_equal(again.shown.labels, first.shown.labels)
    assert np.array_equal(again.shown.correction.marginals, first.shown.correction.marginals)
    assert not again.shown.stale
    runs = json.loads(client.ask("/edits")[1])
    assert not runs["stale"]
    assert client.server.volumes.parse_runs(runs["runs"]) == first.shown.edits
    again.close()
    (folder / "state" / "correction.npz").unlink()
    with closing(open_session(folder)) as stale:
        assert stale.shown.stale


DRAFT = {"base": [], "runs": [[1, 5, 2]], "strokes": [[[5, 2, 0, 2]], [[9, 1, 0, 3]]], "done": 1}


def test_strokes_that_are_not_saved_come_back_until_the_run_begins_anew(
    client: Client, folder: Path
) -> None:
    assert json.loads(client.ask("/draft")[1]) == {"draft": None}
    assert client.status_of("/draft", {"draft": DRAFT}) == 202
    assert json.loads(client.ask("/draft")[1]) == {"draft": DRAFT}
    listed = json.loads((folder / "state" / "files.json").read_text())["files"]
    assert "state/draft.json" in listed
    client.server.session.close()
    with closing(open_session(folder)) as again:
        assert again.files.read_draft() == DRAFT
    (folder / "state" / "draft.json").write_text("{")
    with closing(open_session(folder)) as again:
        assert again.files.read_draft() is None
    run_case(make_case(), SETTINGS.changed(samples=2), folder, title="anew", overwrite=True)
    assert not (folder / "state" / "draft.json").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"done": 3},
        {"done": "1"},
        {"runs": [[3, 5, 2]]},
        {"strokes": [[[5, 2, 0, 9]]]},
        {"strokes": [[[-1, 2, 0, 1]]]},
        {"strokes": [[[5, 10**9, 0, 1]]]},
        {"strokes": [[[5, 10**30, 0, 1]]]},
        {"strokes": [[[5, 2, 0]]]},
        {"strokes": [[[5, 2, 0.5, 1]]]},
        {"strokes": [5]},
    ],
)
def test_strokes_that_make_no_sense_are_refused(client: Client, change: dict[str, Any]) -> None:
    assert client.status_of("/draft", {"draft": {**DRAFT, **change}}) == 400
    assert json.loads(client.ask("/draft")[1]) == {"draft": None}


def test_a_correction_is_one_file(client: Client, folder: Path) -> None:
    assert client.status_of("/archive") == 404
    edit_some(client)
    status, content, headers = client.ask("/archive")
    assert (status, headers["Content-Type"]) == (200, "application/zip")
    with zipfile.ZipFile(io.BytesIO(content)) as pack:
        assert pack.testzip() is None
        assert {each: (folder / each).read_bytes() for each in pack.namelist()} == {
            each: pack.read(each) for each in pack.namelist()
        }
        assert "labels-corrected.nii.gz" in pack.namelist()
    assert client.ask("/archive")[1] == content


def test_the_next_stroke_is_where_most_of_the_variance_is_explained(tmp_path: Path) -> None:
    settings = RunSettings().changed(samples=24, seed=5, strength=0.0, kernels=SETTINGS.kernels)
    run = load_run(copy_run(tmp_path / "case", settings))
    corrector = Corrector(run)
    corrector.draw_samples(Silent())
    samples = corrector.sampled_labels()
    assert samples is not None
    voxels, labels = samples
    grid = run.posterior.grid
    found = session_module.rank_strokes(run, grid, voxels, labels)
    row = max(
        (row for row in volume_rows(run) if row.kind == "label"),
        key=lambda row: row.interval_ml[1] - row.interval_ml[0],
    )
    assert row.name in found.title
    indices = np.stack(np.unravel_index(grid.index[voxels], grid.shape), axis=1)
    squares, owner = np.unique(indices // (3, 3, 1), axis=0, return_inverse=True)  # 12 mm of 4
    best, counts = 0.0, []
    for square in range(len(squares)):
        here = (labels[:, owner.ravel() == square] == VALUES.index(row.values[0])).sum(axis=1)
        counts.append(here * float(np.prod(grid.spacing)) / 1000)  # ml
    own = sum(each.var() for each in counts)
    mean = own / sum(each.var() > 0 for each in counts)
    for ml in counts:
        if ml.std() > 0:
            shared = np.cov(ml, row.samples_ml, bias=True)[0, 1]
            gains = [(shared + t * mean) ** 2 / (ml.var() + t * mean) for t in OWN_ERRORS]
            total = row.samples_ml.var() + np.mean(OWN_ERRORS) * own
            best = max(best, float(np.mean(gains)) / total)
    first = found.locations[0].words
    assert f": {100 * best:.0f} %" in first
    shares = [int(each.words.split(": ")[1].split(" %")[0]) for each in found.locations]
    assert sum(shares) <= 101
    assert all(share >= 2 for share in shares)


def test_reverting_leaves_the_run_as_it_was(client: Client, folder: Path) -> None:
    names = sorted(path.name for path in folder.rglob("*"))
    edit_some(client)
    assert client.revert() == 202
    client.server.session.wait()
    assert sorted(path.name for path in folder.rglob("*")) == names
    assert client.ask("/changes")[1] == bytes(4)
    edit_some(client)
    assert client.update([])[0] == 202
    client.server.session.wait()
    assert not (folder / "edits.json").exists()


def test_earlier_edits_keep_their_place_in_the_list(folder: Path) -> None:
    session = open_session(folder)
    inside = np.flatnonzero(session.run.case.mask)
    a, b, c = (int(voxel) for voxel in inside[[100, 200, 300]])
    for edits in ({b: 1, a: 1}, {a: 1, b: 2, c: 1}):
        session.update(edits, session.shown.number)
        session.wait()
    assert list(session.shown.edits.items()) == [(a, 1), (b, 2), (c, 1)]


def test_one_update_at_a_time(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    def slow(self: Session, edits: dict[int, int]) -> None:
        self._progress(1, 4)
        go.wait(120)  # and then ends by itself, where an assertion fails before

    monkeypatch.setattr(Session, "_solve", slow)
    assert client.update([[1, 0, 1]])[0] == 202
    status, answer = client.update([[1, 0, 1]])
    assert status == 409
    assert "under way" in answer["error"]
    assert not answer["conflict"]
    assert client.revert() == 409
    assert json.loads(client.ask("/status")[1])["busy"]
    go.set()
    client.server.session.wait()
    assert not json.loads(client.ask("/status")[1])["busy"]


def test_what_goes_wrong_is_said_and_nothing_is_lost(
    client: Client, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = edit_some(client)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    changes = client.ask("/changes")[1]

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving, "write_page", full)
    runs = [[CORE, int(np.prod(SHAPE)) // 2, 1]]
    assert client.update(runs)[0] == 202
    client.server.session.wait()
    status = json.loads(client.ask("/status")[1])
    assert not status["busy"]
    assert "No space left" in status["error"]
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert set(client.server.session.shown.edits) == set(chosen.tolist())
    assert client.ask("/changes")[1] == changes


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_was_not_foreseen_does_not_block_the_next_update(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_session(folder)
    voxel = int(np.flatnonzero(session.run.case.mask)[50])
    with monkeypatch.context() as patch:
        patch.setattr(Session, "_solve", lambda *_: 1 // 0)
        session.update({voxel: 1}, session.shown.number)
        session.wait()
    assert not session.status.busy
    assert "not foreseen" in session.status.error
    session.update({voxel: 1}, session.shown.number)
    session.wait()
    assert session.status.error == ""
    assert session.status.edited_voxels == 1


def test_edits_of_another_run_are_refused(folder: Path) -> None:
    (folder / "edits.json").write_text('{"format": 1, "run": "other", "edits": []}')
    with pytest.raises(ValueError, match="another run"):
        open_session(folder)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"port": -1}, "--port must be between 0 and 65535, got -1"),
        ({"port": 65536}, "--port must be between 0 and 65535"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, arguments: dict[str, int], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        view(tmp_path, **arguments)


def test_wrong_folders_and_taken_ports_are_refused(client: Client, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="OUTPUT must be the folder of a run"):
        view(tmp_path / "missing")
    with pytest.raises(UsageError, match="holds no run"):
        view(tmp_path)
    folder = copy_run(tmp_path / "other")
    with pytest.raises(UsageError, match="--port must be free"):
        view(folder, port=client.server.gate.port)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="`kernel_cache` must be a folder"):
        view(folder, kernel_cache=tmp_path / "file")


def test_a_run_that_is_open_is_neither_replaced_nor_opened_twice(
    client: Client, folder: Path
) -> None:
    other = replace(make_case(), images={}, mask=np.ones(SHAPE, dtype=bool))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(LockedError, match="a run or viewer is using"):
        run_case(other, SETTINGS, folder, title="Another patient", overwrite=True)
    with pytest.raises(UsageError, match="which a run or another viewer is using"):
        view(folder)
    assert {path: path.read_bytes() for path in before} == before
    edit_some(client)
    client.server.session.close()
    with closing(open_session(folder)) as again:
        assert len(again.shown.edits) == 6


def test_a_session_that_was_closed_saves_nothing(folder: Path) -> None:
    session = open_session(folder)
    session.close()
    session.update({int(np.flatnonzero(session.run.case.mask)[50]): 1}, 0)
    session.wait()
    assert "open it again" in session.status.error
    assert not (folder / "edits.json").exists()


def test_a_folder_that_may_only_be_read_can_be_looked_at(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("perturb_mpm.run.folder.open_lock", refuse)
    with pytest.raises(OutputError, match=r"cannot be locked: .*Permission denied"):
        open_session(folder)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert open_session(folder).shown.number == 0


def test_a_page_that_has_not_seen_an_update_does_not_undo_it(client: Client, folder: Path) -> None:
    seen = json.loads(client.ask("/edits")[1])["revision"]
    edit_some(client)
    saved = (folder / "edits.json").read_bytes()
    for path in ("/update", "/revert"):
        body = {"runs": [[CORE, 5000, 1]], "revision": seen}
        status, answer, _ = client.ask(path, body)
        assert status == 409
        assert json.loads(answer)["conflict"]
        assert b"in another window or tab" in answer
    client.server.session.wait()
    assert (folder / "edits.json").read_bytes() == saved
    now = json.loads(client.ask("/edits")[1])
    assert client.update([*now["runs"], [CORE, 5000, 1]], now["revision"])[0] == 202
    client.server.session.wait()
    assert len(client.server.session.shown.edits) == 7


def test_corrections_keep_their_kernels_where_they_are_told(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "WORTH_KEEPING", 0)
    state = (folder / "state" / "run.json").read_bytes()
    session = open_session(folder, tmp_path / "kernels")
    session.update({int(np.flatnonzero(session.run.case.mask)[0]): 1}, 0)
    session.wait()
    assert any((tmp_path / "kernels").iterdir())
    assert (folder / "state" / "run.json").read_bytes() == state


def test_the_command_prints_its_address_and_ends_with_ctrl_c(folder: Path) -> None:
    code = "from perturb_mpm.cli import main; main()"
    command = [sys.executable, "-c", code, "view", str(folder), "--no-browser"]
    away = {**os.environ, "SSH_CONNECTION": "10.0.0.1 50000 10.0.0.2 22"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=away
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            host, path = address.removeprefix("http://").split("/")
            connection = http.client.HTTPConnection(host, timeout=120)
            connection.request("GET", f"/{path}")
            page = connection.getresponse()
            assert page.status == 200
            assert NAMES[1] in page.read().decode()
            connection.close()
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=120)
        finally:
            process.kill()  # leaving Popen waits for its end, however long
    assert process.returncode == 0
    assert "Traceback" not in errors
    assert "Ctrl-C ends it" in errors
    port = host.split(":")[1]
    assert f"ssh -L {port}:127.0.0.1:{port} USER@HOST" in errors


@pytest.mark.parametrize(
    ("environment", "remote"),
    [
        ({"DISPLAY": ":0"}, False),
        ({"WAYLAND_DISPLAY": "wayland-0"}, False),
        ({"DISPLAY": ":0", "SSH_CONNECTION": "10.0.0.1"}, True),
        ({}, sys.platform == "linux"),
    ],
)
def test_a_machine_without_a_screen_is_told_how_to_forward_the_port(
    environment: dict[str, str], remote: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert is_remote() == remote
