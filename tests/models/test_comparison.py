"""Tables of what was tried, and models that are no good and say so."""

import math

import numpy as np
import pytest
import torch
from oracles import cloud

from swing_gp import ModelWarning, interpolate
from swing_gp.models.comparison import Comparison, Row
from swing_gp.models.scores import Score, gain_over


def table(criterion, chosen, **scores):
    rows = tuple(Row(name, {}, score) for name, score in scores.items())
    return Comparison(rows, criterion, next(row for row in rows if row.family == chosen))


def test_rows_are_ranked_by_the_criterion():
    scores = {"a": 0.5, "mean": 0.9, "b": math.nan, "c": 0.1}
    assert [row.family for row in table("rmse", "a", **scores).ranked] == ["c", "a", "mean", "b"]
    assert [row.family for row in table("cosine", "a", **scores).ranked] == ["mean", "a", "c", "b"]
    found = table("rmse", "c", **scores)
    assert found.records()[0] == {"family": "c", "settings": {}, "score": 0.1, "seconds": 0.0, "chosen": True}
    assert found.records()[-1]["score"] is None
    assert str(found).splitlines()[1].startswith("*  c")


def test_rows_are_compared_by_what_is_expected_of_them():
    rows = (Row("a", {}, 0.2, expected=0.6), Row("b", {}, 0.3, 1.0), Row("mean", {}, 0.5))
    found = Comparison(rows, "rmse", rows[1])
    assert [row.family for row in found.ranked] == ["b", "mean", "a"]
    header, *lines = str(found).splitlines()
    assert header.split() == ["family", "settings", "rmse", "expected", "seconds"]
    assert lines[2].split() == ["a", "0.2", "0.6", "0.0"]
    assert [row.get("expected") for row in found.records()] == [None, None, 0.6]
    assert Comparison.restored(found.content()) == found
    older = {**found.content(), "rows": [row[:4] for row in found.content()["rows"]]}  # files that know no more
    assert [row.expected for row in Comparison.restored(older)] == [0.2, 0.3, 0.5]


@pytest.mark.parametrize(("criterion", "good"), [("rmse", 0.1), ("cosine", 0.9)])
def test_a_model_no_better_than_a_trivial_one_is_named(criterion, good, recwarn):
    table(criterion, "a", a=good, mean=0.5, nearest=0.5).warn_if_useless()
    assert not recwarn
    with pytest.warns(ModelWarning, match="no better than by the mean"):
        table(criterion, "a", a=0.5, mean=good, nearest=0.5).warn_if_useless()
    with pytest.warns(ModelWarning, match="no better than by the nearest known value"):
        table(criterion, "a", a=0.5, mean=1 - good, nearest=good).warn_if_useless()


@pytest.mark.parametrize("seed", range(3))
def test_pure_noise_is_said_to_be_noise(seed):
    points = cloud(300, 2, seed=seed)
    values = torch.randn(150, generator=torch.Generator().manual_seed(seed)).double()
    with pytest.warns(ModelWarning):
        found = interpolate(points, torch.arange(150), values)
    assert float(found.values[150:].std()) < 0.5  # and little is made of it


def test_values_that_have_nothing_to_do_with_the_points():
    # random signs of a checkerboard that is finer than the spacing of the points
    points = cloud(400, 2)
    values = torch.sign(torch.sin(4000 * points).prod(-1))
    with pytest.warns(ModelWarning):
        interpolate(points, torch.arange(200), values[:200])


def test_one_known_value_is_refused_by_name():
    with pytest.raises(ValueError, match="One known node is too few"):
        interpolate(cloud(50, 2), torch.tensor([3]), torch.ones(1).double())


def test_nodes_beyond_the_reach_of_every_known_one_are_counted():
    near, far = cloud(100, 2), cloud(300, 2, seed=1)
    points = torch.cat([near, far + 1000])
    values = torch.sin(6 * near[:, 0])
    with pytest.warns(ModelWarning, match="beyond the reach"):
        interpolate(points, torch.arange(0, 100, 2), values[::2], families=("coordinates",))


def test_arrays_integers_and_tables_are_taken():
    pandas = pytest.importorskip("pandas")
    points = cloud(200, 2)
    colours = (255 * points).round().int()
    known = np.arange(0, 200, 2)
    plain = interpolate(points, torch.from_numpy(known), colours[known].double())
    frame = pandas.DataFrame(points.numpy(), columns=["x", "y"])
    for nodes, values in ((points.numpy(), colours[known].numpy()), (frame, pandas.DataFrame(colours[known].numpy()))):
        other = interpolate(nodes, known.tolist(), values)
        torch.testing.assert_close(other.values, plain.values)
    assert other.values.dtype == torch.float64
    with pytest.raises(TypeError, match="known_values must hold numbers"):
        interpolate(points, known, ["red"] * 100)


@pytest.mark.parametrize("criterion", ["rmse", "cosine"])
def test_a_better_score_gains_standard_errors(criterion):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(400, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(400, 2, generator=generator, dtype=torch.float64)
    good, bad = Score(criterion), Score(criterion)
    for score, share in ((good, 0.1), (bad, 1.0)):
        score.add(values + share * noise, values, torch.ones(400, dtype=torch.float64))
    gains = (good.parts[0][0] - bad.parts[0][0]) * (1 if criterion == "cosine" else -1)
    wanted = float(gains.mean() / (gains.std(correction=0) / 20))
    assert wanted > 5
    assert gain_over(bad, good) == pytest.approx(wanted)
    assert gain_over(good, bad) == pytest.approx(-wanted)
