"""What pictures are computed from; the command-line tests draw them."""

import numpy as np
import pytest
import trimesh

from swing_gp.io.meshes import Mesh
from swing_gp.io.pictures import angles_between, view_directions


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
