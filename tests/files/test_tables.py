"""Tables and the BIDS sidecars."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest

from perturb_mpm.files import InputError, LabelScheme, Source
from perturb_mpm.files.conversion import bids_names, write_bids_sidecars
from perturb_mpm.files.tables import MOST_ROWS, read_table, write_table, write_volumes

SCHEME = LabelScheme((0, 4), ("background", 'tumour, "core"'))


def test_volumes_come_back_exactly(tmp_path: Path) -> None:
    volumes = np.array([[1 / 3, 2e9], [0.0, 1234.5]])
    write_volumes(tmp_path / "v.csv", volumes, SCHEME, sample_index=[5, 9])
    with (tmp_path / "v.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["sample", "label", "name", "volume_mm3", "volume_ml"]
    assert [(r["sample"], r["label"]) for r in rows] == [
        ("5", "0"),
        ("5", "4"),
        ("9", "0"),
        ("9", "4"),
    ]
    assert [float(r["volume_mm3"]) for r in rows] == volumes.ravel().tolist()
    assert [float(r["volume_ml"]) for r in rows] == (volumes.ravel() / 1000).tolist()
    assert rows[1]["name"] == 'tumour, "core"'
    assert b"\r" not in (tmp_path / "v.csv").read_bytes()


def test_volumes_must_fit_the_labels(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"volumes must be \(samples, 2\), got shape \(3, 3\)"):
        write_volumes(tmp_path / "v.csv", np.zeros((3, 3)), SCHEME)
    with pytest.raises(ValueError, match="sample_index must have 3 numbers, got 1"):
        write_volumes(tmp_path / "v.csv", np.zeros((3, 2)), SCHEME, sample_index=[1])
    assert os.listdir(tmp_path) == []


def test_a_row_of_another_length_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a row must have 2 fields, got 1"):
        write_table(tmp_path / "t.csv", ("a", "b"), [(1, 2), (3,)])
    assert os.listdir(tmp_path) == []


def test_numbers_have_one_form(tmp_path: Path) -> None:
    rows = [(0.1, np.float32(0.1), np.float64(2), 3, None)]
    write_table(tmp_path / "t.csv", "abcde", rows)
    assert (tmp_path / "t.csv").read_text() == "a,b,c,d,e\n0.1,0.10000000149011612,2.0,3,\n"


FORMULAS = ("=SUM(A1)*2", "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\uff1d1+1")


@pytest.mark.parametrize("text", FORMULAS)
def test_no_text_is_a_formula_to_a_spreadsheet(tmp_path: Path, text: str) -> None:
    write_table(tmp_path / "t.csv", ("name", "x"), [(text, -1.5)])
    with (tmp_path / "t.csv").open(encoding="utf-8", newline="") as file:
        _, (name, number) = csv.reader(file)
    assert name == f"'{text}"
    assert float(number) == -1.5
    write_volumes(tmp_path / "v.csv", [[1.0]], LabelScheme((1,), ("=SUM(A1)*2",)))
    assert ",'=SUM(A1)*2," in (tmp_path / "v.csv").read_text("utf-8")


@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_control_characters_begin_no_cell_and_no_row(tmp_path: Path, delimiter: str) -> None:
    texts = ["\t=1", "\r=1", "a\n=1", "\x1b[2J", "caf\udce9"]
    write_table(tmp_path / "t.csv", ("name", "x"), [(t, 1) for t in texts], delimiter=delimiter)
    lines = (tmp_path / "t.csv").read_bytes().decode().split("\n")
    names = ["\\x09=1", "\\x0d=1", "a\\x0a=1", "\\x1b[2J", "caf\\udce9"]
    assert lines[1:-1] == [f"{name}{delimiter}1" for name in names]


def test_texts_like_formulas_come_back_and_numbers_stay_numbers(tmp_path: Path) -> None:
    texts = ["=SUM(A1)*2", "'=1", "''-x", "'quoted'", "-", "a=b", "-1.5", "+3e2", "plain"]
    write_table(tmp_path / "t.csv", ("name",), [(text,) for text in texts])
    rows = read_table(Source("table", tmp_path / "t.csv"), ("name",))
    assert [row.fields["name"] for row in rows] == texts
    assert "\n-1.5\n+3e2\nplain\n" in (tmp_path / "t.csv").read_text("utf-8")


def source_of(folder: Path, content: bytes) -> Source:
    (folder / "t.csv").write_bytes(content)
    return Source("table", folder / "t.csv")


def test_a_table_of_a_spreadsheet(tmp_path: Path) -> None:
    """It begins with a byte-order mark, ends its lines with \\r\\n and may leave fields empty."""
    content = '\ufeffcase , truth,rater_1\r\n\r\n"a, b", seg.nii ,\r\nÖ,,r.nii\r\n'.encode()
    rows = read_table(
        source_of(tmp_path, content), ["case"], ["truth"], prefix="rater", unique="case"
    )
    assert [(row.line, row.fields) for row in rows] == [
        (3, {"case": "a, b", "truth": "seg.nii"}),
        (4, {"case": "Ö", "rater_1": "r.nii"}),
    ]
    assert [row.path("truth") for row in rows] == [tmp_path / "seg.nii", None]
    assert str(rows[1].error("is odd")) == f"`table` {tmp_path}/t.csv: line 4 is odd"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "must have the columns case, labels and may have mask, got none"),
        (b"case,mask\na,b\n", "must have the columns case, labels .*, got case, mask"),
        (b"case,labels,colour\na,b,c\n", "must have the columns case, labels .*, got .*colour"),
        (b"case,labels,labels\na,b,c\n", "must name every column once, got case, labels, labels"),
        (b"case,labels\n", "must hold at least one row below its heading, got none"),
        (b"case,labels\na,b\nc\n", "line 3 must give case and labels, got no labels"),
        (b"case,labels\na,b\n\na,c\n", "line 4 must name another case than line 2, got a"),
        (b"case,labels\na,b,c\n", "line 2 must have 2 fields like the heading, got 3"),
        (b"case,labels\na,\xff\n", r"must be text in UTF-8 \(invalid start byte\)"),
        (b'case,labels\na,"b\n', r"line 2 is no CSV \(unexpected end of data\)"),
        (b"case,labels\na,b\0c\n", "line 2 must have fields of printable text in one line"),
        (b"case,labels\na," + 5000 * b"b", "line 2 must have fields of at most 4096 characters"),
        (b"case,labels\na," + 200_000 * b"b", r"line 2 is no CSV \(field larger than"),
        (b"case,labels\n" + (MOST_ROWS + 1) * b"a,b\n", "must hold at most 100000 rows"),
    ],
)
def test_a_bad_table_is_refused_in_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(InputError, match=f"`table` .*t.csv: {words}") as caught:
        read_table(source_of(tmp_path, content), ["case", "labels"], ["mask"], unique="case")
    assert "\n" not in str(caught.value)


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        read_table(Source("table", tmp_path / "t.csv"), ["case"])


def test_bids_names() -> None:
    names = bids_names("07", "pre")
    assert set(names) == {
        *("labels", "marginals", "entropy", "uncertainty", "volumes", "summary", "report"),
        "mutual_information",
    }
    start = "sub-07/ses-pre/anat/sub-07_ses-pre_space-orig_seg-pmpm"
    assert names["labels"] == f"{start}_dseg.nii.gz"
    assert names["marginals"] == f"{start}_probseg.nii.gz"
    assert names["entropy"] == f"{start}_desc-entropy_map.nii.gz"
    assert bids_names("07")["labels"] == "sub-07/anat/sub-07_space-orig_seg-pmpm_dseg.nii.gz"


@pytest.mark.parametrize(("subject", "session"), [("sub-07", None), ("", None), ("7", "a_b")])
def test_bids_labels_are_letters_and_digits(subject: str, session: str | None) -> None:
    with pytest.raises(InputError, match=r"`bids` must name the s.* by letters and digits only"):
        bids_names(subject, session)


def test_bids_sidecars(tmp_path: Path) -> None:
    names = bids_names("07")
    written = write_bids_sidecars(tmp_path, names, SCHEME, 1.0, "1.2.3")
    assert sorted(written) == sorted(path for path in tmp_path.rglob("*") if path.is_file())
    start = tmp_path / "sub-07/anat/sub-07_space-orig_seg-pmpm"
    table = Path(f"{start}_dseg.tsv").read_text()
    assert table == 'index\tname\n0\tbackground\n4\ttumour, "core"\n'
    marginals = json.loads(Path(f"{start}_probseg.json").read_text())
    assert marginals["LabelMap"] == list(SCHEME.names)
    entropy = json.loads(Path(f"{start}_desc-entropy_map.json").read_text())
    assert (entropy["Units"], entropy["Maximum"]) == ("bits", 1.0)
    about = json.loads((tmp_path / "dataset_description.json").read_text())
    assert about["DatasetType"] == "derivative"
    assert about["GeneratedBy"] == [{"Name": "perturb-mpm", "Version": "1.2.3"}]
    assert {"Name", "BIDSVersion"} <= set(about)


def test_every_name_that_bids_does_not_know_is_ignored(tmp_path: Path) -> None:
    names = bids_names("07")
    write_bids_sidecars(tmp_path, names, SCHEME, 1.0, "1.2.3")
    patterns = (tmp_path / ".bidsignore").read_text().splitlines()
    files = [Path(name) for name in names.values()]
    files += [path.relative_to(tmp_path) for path in tmp_path.rglob("*.[jt]s*")]
    known = {file for file in files if not any(Path(file.name).match(p) for p in patterns)}
    suffixes = {file.name.partition(".")[0].rpartition("_")[2] for file in known}
    assert suffixes == {"dseg", "probseg", "description"}


def test_a_second_subject_leaves_the_dataset_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "dataset_description.json").write_text('{"Name": "ours"}')
    (tmp_path / ".bidsignore").write_text("mine.txt\n*_map.json\n")
    write_bids_sidecars(tmp_path, bids_names("07"), SCHEME, 1.0, "1")
    once = (tmp_path / ".bidsignore").read_text()
    second = write_bids_sidecars(tmp_path, bids_names("08"), SCHEME, 1.0, "1")
    assert (tmp_path / "dataset_description.json").read_text() == '{"Name": "ours"}'
    assert once.startswith("mine.txt\n*_map.json\n*_map.nii.gz\n")
    assert (tmp_path / ".bidsignore").read_text() == once
    assert all("sub-08" in str(path) for path in second)
