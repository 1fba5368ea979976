"""What is compared."""

from benchmarks.measurements import COMPARISONS, LOCK, TREE, recipe


def test_names_are_unique():
    names = [each.name for each in COMPARISONS]
    assert len(set(names)) == len(names)


def test_medians_are_of_at_least_7_pairs():
    assert min(each.pairs for each in COMPARISONS) >= 7


def test_every_module_that_is_measured_has_a_recipe():
    modules = {module for each in COMPARISONS for module in each.modules}
    assert modules
    for module in modules:
        assert (TREE / "easyconfigs" / "p" / "PyTorch" / recipe(module)).is_file()
    assert LOCK.is_file()
