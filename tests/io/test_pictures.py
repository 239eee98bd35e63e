"""What pictures are computed from; the command-line tests draw them."""

import numpy as np
import pytest
import trimesh

from swing_gp.io.meshes import Mesh
from swing_gp.io.pictures import angles_between, regression_picture, view_directions


def test_views_are_rotations():
    for size in ([1.0, 1, 1], [1, 3, 1], [5, 4, 0.2], [0.1, 2, 2]):
        box = trimesh.creation.box(extents=size)
        view = view_directions(Mesh(np.asarray(box.vertices), np.asarray(box.faces)))
        np.testing.assert_allclose(view @ view.T, np.eye(3), atol=1e-12)
        assert np.linalg.det(view) == pytest.approx(1)


def test_angles():
    one = np.array([[1.0, 0, 0], [0, 2, 0], [0, 0, 0]])
    two = np.array([[1.0, 1, 0], [0, -1, 0], [0, 0, 1]])
    np.testing.assert_allclose(angles_between(one, two), [45, 180, 90])


def test_calibrated_deviations_lie_on_the_diagonal(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    figures = []
    monkeypatch.setattr("swing_gp.io.pictures.save_figure", lambda figure, path: figures.append(figure))
    random = np.random.default_rng(0)
    mean, deviation = random.normal(size=4000), random.uniform(0.5, 2.0, 4000)
    true = mean + deviation * random.normal(size=4000)
    regression_picture(tmp_path / "none.png", "y", true, mean, deviation, [], title="")
    curve = figures[0].axes[1].get_lines()[-1]  # after the diagonal
    promised, kept = curve.get_data()
    assert np.abs(kept - promised).max() < 4 * 0.5 / 4000**0.5
