"""What is compared."""

from benchmarks.measurements import COMPARISONS, LOCK, TREE


def test_names_are_unique():
    names = [each.name for each in COMPARISONS]
    assert len(set(names)) == len(names)


def test_medians_are_of_at_least_7_pairs():
    assert min(each.pairs for each in COMPARISONS) >= 7


def test_every_recipe_that_is_measured_is_in_the_tree():
    recipes = {recipe for each in COMPARISONS for recipe in each.recipes}
    assert recipes
    for recipe in recipes:
        assert (TREE / "easyconfigs" / "p" / "PyTorch" / f"{recipe}.eb").is_file()
    assert LOCK.is_file()
