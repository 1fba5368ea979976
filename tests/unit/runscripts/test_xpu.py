"""Intel's GPUs: what Level Zero finds, what a mask leaves visible, and the cores of each rank on Aurora."""

import node_trees
import pytest
from placements import choose_cores
from pytorch_launch.devices import choose_devices
from pytorch_launch.topology import Node, parse_cpu_list

COMPOSITE = {"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}
#: On Aurora jobs have all cores but the first of each socket.
JOB = set(range(208)) - {0, 52, 104, 156}


def chosen(env, root, rank=0, size=1):
    """The Devices of a rank."""
    return choose_devices(env, Node(root), rank, size)


def test_the_tiles_of_each_gpu_are_found_in_pci_order(aurora, tmp_path):
    found = Node(aurora).gpus
    assert [(gpu.vendor, gpu.pci) for gpu in found] == [("intel", pci) for pci in node_trees.AURORA for _ in (0, 1)]
    assert [gpu.numa_node for gpu in found] == [0] * 6 + [1] * 6
    assert len(Node(aurora).all_gpus) == 12
    # the newer driver has them in another place
    node_trees.write_intel_gpu(tmp_path, "0000:3a:00.0", 0, "xe", ["tile0", "tile1"])
    node_trees.write_intel_gpu(tmp_path, "0000:29:00.0", 0, "xe", ["tile0"])
    assert [gpu.pci for gpu in Node(str(tmp_path)).gpus] == ["0000:29:00.0", "0000:3a:00.0", "0000:3a:00.0"]
    (tmp_path / "dev/dri").rmdir()  # a container without the devices
    assert Node(str(tmp_path)).gpus == []


@pytest.mark.parametrize(("pci", "pci_class"), [("0000:00:02.0", "0x038000"), ("0000:03:00.0", "0x030000")])
def test_the_graphics_of_a_laptop_are_no_gpu_of_a_rank(tmp_path, pci, pci_class):
    node_trees.write_intel_gpu(tmp_path, pci, -1, "i915", ["drm/card0/gt/gt0"], pci_class)
    assert Node(str(tmp_path)).gpus == []


def test_ranks_take_one_tile_after_the_other_in_pci_order(aurora):
    for rank in range(12):
        devices = chosen({}, aurora, rank, 12)
        assert (devices.vendor, devices.count, devices.index, devices.warnings) == ("intel", 12, rank, [])
        assert devices.gpu.pci == list(node_trees.AURORA)[rank // 2]
        assert devices.changes == {"ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1"}
    # several may share one, as ALCF documents for the four engines of a tile
    devices = chosen({}, aurora, 47, 48)
    assert (devices.index, devices.claims.count(devices.gpu), devices.warnings) == (11, 4, [])


@pytest.mark.parametrize(
    ("env", "mask", "count", "buses"),
    [
        ({}, "3", 1, ["0000:42"]),
        ({}, "11,0", 2, ["0000:18", "0001:6c"]),  # a mask is a set: it does not change the order
        ({}, "0,99", 1, ["0000:18"]),
        ({}, "", 12, None),  # ignored
        ({"ZE_FLAT_DEVICE_HIERARCHY": "COMBINED"}, "0,1", 2, ["0000:18", "0000:18"]),
        (COMPOSITE, "0,1", 2, ["0000:18", "0000:42"]),
        (COMPOSITE, "0.0,0.1", 1, ["0000:18"]),  # both tiles of one GPU are one device
        (COMPOSITE, "3.1,5.0", 2, ["0001:18", "0001:6c"]),
        (COMPOSITE, "", 6, None),
        (COMPOSITE, "2.2,1.0", 1, ["0000:42"]),  # without tiles that do not exist
    ],
)
def test_a_mask_leaves_the_devices_that_the_hierarchy_makes_of_it(aurora, env, mask, count, buses):
    devices = chosen({**env, "ZE_AFFINITY_MASK": mask}, aurora)
    assert devices.count == count
    assert buses is None or [gpu.pci[:7] for gpu in devices.held] == buses
    assert devices.warnings == []


@pytest.mark.parametrize(
    ("env", "mask", "form"),
    [({}, "0.1", "<tile>"), (COMPOSITE, "6", "<GPU>.<tile>"), (COMPOSITE, "0.9", "<GPU>.<tile>")],
)
def test_a_mask_of_the_other_form_is_worth_a_warning(aurora, env, mask, form):
    devices = chosen({**env, "ZE_AFFINITY_MASK": mask}, aurora)
    assert devices.count == 0
    (warning,) = map(str, devices.warnings)
    assert f"ZE_AFFINITY_MASK={mask} matches none of the 12 GPUs" in warning and form in warning


def test_in_another_order_than_pcis_it_is_not_known_which_gpu_is_which(aurora):
    devices = chosen({"ZE_ENABLE_PCI_ID_DEVICE_ORDER": "0"}, aurora, 3, 12)
    assert (devices.count, devices.index, devices.gpu, devices.changes) == (12, 3, None, {})


@pytest.mark.parametrize(("env", "entry"), [({}, "5"), (COMPOSITE, "5")])
def test_a_rank_can_be_left_with_its_device_alone(aurora, env, entry):
    devices = chosen(env, aurora, 5, 6)
    assert devices.narrowed() == {"ZE_AFFINITY_MASK": entry}
    alone = chosen({**env, **devices.narrowed()}, aurora, 5, 6)
    assert (alone.count, alone.index, alone.gpu.pci) == (1, 0, devices.gpu.pci)


@pytest.mark.parametrize(
    ("env", "size", "published"),
    [({}, 12, node_trees.AURORA_TILES), (COMPOSITE, 6, node_trees.AURORA_GPUS)],
)
def test_unbound_ranks_get_the_cores_of_the_socket_that_alcf_binds_them_to(aurora, env, size, published):
    taken = set()
    for rank, cpus in enumerate(published.split(":")):
        devices = chosen(env, aurora, rank, size)
        bind = choose_cores(aurora, JOB, rank, size, len(JOB), None, devices).bind
        theirs = parse_cpu_list(cpus)
        assert len(bind) >= 2 * len(theirs)  # both threads of each core
        assert {cpu % 104 // 52 for cpu in bind} == {min(theirs) // 52}
        assert len(theirs & bind) > len(theirs) / 2
        assert not taken & bind
        taken |= bind
    assert taken == JOB


def test_a_mask_of_the_site_is_kept(aurora):
    for rank, cpus in enumerate(node_trees.AURORA_TILES.split(":")):
        placement = choose_cores(aurora, parse_cpu_list(cpus), rank, 12, None, None, chosen({}, aurora, rank, 12))
        assert (placement.bind, placement.threads) == (None, 8)


def test_ranks_that_a_wrapper_gives_a_tile_each_have_cores_of_their_own(aurora):
    """As gpu_tile_compact.sh and the script of ALCF's page for its module frameworks."""
    binds = []
    for rank in range(12):
        devices = chosen({"ZE_AFFINITY_MASK": str(rank)}, aurora, rank, 12)
        binds.append(choose_cores(aurora, JOB, rank, 12, len(JOB), None, devices).bind)
    assert sum(map(len, binds)) == len(set.union(*binds)) == len(JOB)
