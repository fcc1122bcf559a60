"""The benchmark of edits on a small made-up case: what it measures is there, and right."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.viewer_run import SETTINGS, make_case
from lab.benchmarks.edit import BEGIN, END, PAGE, RADIUS_MM, apart, ball, measure, rendered
from perturb_mpm import Grid, Posterior


def test_a_row_holds_what_the_page_says() -> None:
    row = measure(make_case(), "the paper", SETTINGS, 8)
    assert row.samples == 8
    assert row.edited > 3
    assert row.kept_bytes > 0
    assert 0 < row.solved_share <= 1
    assert row.wrong_votes < 0.3 * row.moved_votes
    assert row.times_less == pytest.approx(row.again_s / (row.first_s + row.votes_s))
    text = rendered({"machine": {"cpu": "a processor"}}, [row])
    assert "a processor" in text
    assert f"| {row.wrong_labels} |" in text


def test_a_ball_lies_where_most_is_uncertain() -> None:
    grid = Grid((21, 21, 21), 2.0)
    entropy = np.zeros(grid.shape)
    entropy[6, 10, 12] = 1.0
    given = grid.scatter(ball(grid, grid.gather(entropy), 3), -1)
    places = np.argwhere(given == 3)
    assert places.mean(axis=0) == pytest.approx([6, 10, 12])
    assert np.linalg.norm(2.0 * (places - [6, 10, 12]), axis=1).max() <= RADIUS_MM
    assert set(np.unique(given)) == {-1, 3}


def test_votes_apart_are_counted_once() -> None:
    one, other = (
        Posterior(
            grid=Grid((2,)),
            counts=np.array(counts),
            sample_index=range(4),
            volumes=np.array(volumes, dtype=float),
            problem="p",
            parameters={},
        )
        for counts, volumes in (
            ([[4, 2], [0, 2]], [[2, 0], [2, 0], [1, 1], [1, 1]]),
            ([[3, 2], [1, 2]], [[2, 0], [1, 1], [1, 1], [1, 1]]),
        )
    )
    assert apart(one, other) == 1 / 8


def test_the_page_has_a_place_for_the_figures() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.index(BEGIN) < text.index(END)
