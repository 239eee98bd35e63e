"""The table of ``make mutants`` follows the package."""

from mutants import MUTANTS, located


def test_every_text_to_be_broken_stands_once_and_its_tests_exist():
    assert len(located(MUTANTS)) == len(MUTANTS) > 40
