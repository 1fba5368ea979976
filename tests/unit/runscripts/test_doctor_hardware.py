"""The doctor's checks of GPUs, drivers, networks and Slurm, on nodes that are directories."""

import os
import shutil

import pytest
from pytorch_doctor import FAIL, NOT_APPLICABLE, OK, WARN
from pytorch_doctor.checks import device, network, slurm
from pytorch_doctor.checks.network import chosen_by_gloo, chosen_by_nccl
from pytorch_doctor.surroundings import Outcome, Surroundings

# As NVIDIA's two kernel modules write their version (both seen in public reports of nvidia-bug-report.sh).
PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Fri Feb 10 05:34:29 UTC 2023\nGCC version:  gcc 12\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (x)  Thu Sep 25 2025\n"
IN_A_JOB = {"SLURM_JOB_ID": "7"}
FACTS = {"cuda": None, "hip": None, "xpu": None, "devices": [], "fault": None, "plugin": None}


@pytest.fixture
def at(tmp_path):
    """A function that makes the surroundings of a module for GPUs on a node, with what torch reports there."""

    def make(node, gpu, facts=None, **env):
        easybuild = tmp_path / "module" / "easybuild"
        easybuild.mkdir(parents=True, exist_ok=True)
        (easybuild / "PyTorch.eb").write_text(f"easyblock = 'EB_PyTorchVenv'\ngpu = {gpu!r}\n")
        here = Surroundings({"EBROOTPYTORCH": str(easybuild.parent), **env}, root=str(node))
        here._torch = ({**FACTS, **facts} if facts is not None else None), Outcome(0, "", "")
        return here

    return make


@pytest.fixture
def with_files(tmp_path):
    """A function that copies a node's tree and adds files to it, path to text."""

    def make(files, node=None):
        copy = tmp_path / "node"
        if node:
            # its CPUs are thousands of files, and not needed here
            shutil.copytree(node, copy, ignore=lambda place, _: ["cpu"] if place.endswith("devices/system") else [])
        for path, text in files.items():
            file = copy / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return copy

    return make


# GPUs


def test_a_module_for_cpus_has_no_gpus_to_check(at, dgx):
    assert device.check_gpu(at(dgx, None)).verdict == NOT_APPLICABLE
    assert device.check_driver(at(dgx, None)).verdict == NOT_APPLICABLE


def test_gpus_that_torch_sees_are_fine(at, dgx, lumi):
    found = device.check_gpu(at(dgx, "cuda", {"cuda": "13.0", "devices": ["A100"] * 8}))
    assert (found.verdict, found.finding) == (OK, "8 of 8: A100")
    found = device.check_gpu(at(lumi, "rocm", {"hip": "7.0", "devices": ["MI250X"]}, ROCR_VISIBLE_DEVICES="0"))
    assert (found.verdict, found.finding) == (OK, "1 of 8: MI250X")


def test_no_gpu_in_a_job_is_a_failure(at, laptop):
    found = device.check_gpu(at(laptop, "cuda", **IN_A_JOB))
    assert (found.verdict, found.finding) == (FAIL, "the module is for NVIDIA GPUs, but there are none here")
    assert "srun --gpus-per-node" in found.remedy


def test_no_gpu_on_a_workstation_is_a_failure_and_on_a_login_node_it_is_not(at, laptop, tmp_path):
    assert device.check_gpu(at(laptop, "cuda", PATH=str(tmp_path))).verdict == FAIL
    (tmp_path / "sbatch").write_text("#!/bin/sh\n")
    (tmp_path / "sbatch").chmod(0o755)
    found = device.check_gpu(at(laptop, "cuda", PATH=str(tmp_path)))
    assert found.verdict == NOT_APPLICABLE
    assert "srun pytorch-doctor" in found.finding


def test_gpus_of_the_other_vendor_are_a_failure(at, lumi):
    found = device.check_gpu(at(lumi, "cuda", **IN_A_JOB))
    assert (found.verdict, found.finding) == (FAIL, "the module is for NVIDIA GPUs, but those here are from AMD")


def test_gpus_that_torch_does_not_see_are_a_failure_that_names_what_may_hide_them(at, dgx):
    hidden = at(dgx, "cuda", {"cuda": "13.0"}, CUDA_VISIBLE_DEVICES="9")
    assert device.check_gpu(hidden).finding == "torch sees none of the 8 GPUs here"
    assert device.check_gpu(hidden).remedy == "correct or unset CUDA_VISIBLE_DEVICES=9"
    in_image = at(dgx, "cuda", {"cuda": "13.0"}, APPTAINER_CONTAINER="x.sif")
    assert "--nv" in device.check_gpu(in_image).remedy
    assert device.check_gpu(at(dgx, "cuda")).remedy == "see the check `torch`"


def test_fewer_gpus_than_the_node_shows_are_a_warning_unless_a_variable_hides_them(at, dgx):
    seven = {"cuda": "13.0", "devices": ["A100"] * 7}
    found = device.check_gpu(at(dgx, "cuda", seven))
    assert found.verdict == WARN
    assert found.finding == "7 of 8: A100, and no variable *_VISIBLE_DEVICES hides the others"
    assert device.check_gpu(at(dgx, "cuda", seven, CUDA_VISIBLE_DEVICES="0,1,2,3,4,5,6")).verdict == OK


# Drivers


@pytest.mark.parametrize("text", [PROPRIETARY, OPEN])
def test_a_driver_that_is_too_old_is_told_by_its_version(at, with_files, dgx, text):
    node = with_files({"/proc/driver/nvidia/version": text.format("470.57.02")}, dgx)
    found = device.check_driver(at(node, "cuda", {"cuda": "12.6"}))
    assert (found.verdict, found.finding) == (
        FAIL,
        "driver 470.57.02 is too old for CUDA 12.6, which needs 525 or newer",
    )
    assert "older CUDA" in found.remedy


def test_a_driver_with_which_torch_computes_is_fine_whatever_its_version(at, with_files, dgx):
    node = with_files({"/proc/driver/nvidia/version": PROPRIETARY.format("570.10")}, dgx)
    # with NVIDIA's compatibility libraries an older one serves
    found = device.check_driver(at(node, "cuda", {"cuda": "13.0", "devices": ["H100"]}))
    assert (found.verdict, found.finding) == (OK, "570.10, computes with CUDA 13.0")


def test_a_driver_with_which_torch_does_not_compute_is_a_failure_with_torchs_words(at, with_files, dgx):
    node = with_files({"/proc/driver/nvidia/version": OPEN.format("580.95.05")}, dgx)
    found = device.check_driver(at(node, "cuda", {"cuda": "13.0", "devices": ["H100"], "fault": "CUDA error: x"}))
    assert found.verdict == FAIL
    assert found.finding == "driver 580.95.05: CUDA 13.0 does not compute: CUDA error: x"


def test_amds_driver_is_checked_by_whether_torch_computes(at, with_files, lumi):
    node = with_files({"/sys/module/amdgpu/version": "6.12.12\n"}, lumi)
    assert device.check_driver(at(node, "rocm", {"hip": "6.4", "devices": ["MI250X"]})).verdict == OK
    found = device.check_driver(at(node, "rocm", {"hip": "6.4", "fault": "HIP error: invalid device function"}))
    assert (found.verdict, "HIP error" in found.finding) == (FAIL, True)


def test_no_driver_is_nothing_to_check(at, laptop):
    assert device.check_driver(at(laptop, "cuda")).verdict == NOT_APPLICABLE


# What AMD's wheels write: https://download.pytorch.org/whl/rocm6.0
ROCM_6_0 = {"hip": "6.0.32830-d62f6a171", "devices": ["MI250X"]}


def test_a_rocm_that_the_sites_driver_no_longer_supports_is_a_warning_even_if_it_computes(at, with_files, lumi):
    node = with_files({"/sys/module/amdgpu/version": "6.10.5"}, lumi)
    found = device.check_driver(at(node, "rocm", ROCM_6_0, PYTORCH_DRIVER_ROCM="6.1-7.0"))
    assert found.verdict == WARN
    assert found.finding == (
        "6.10.5, computes with ROCm 6.0.32830-d62f6a171; torch is built for ROCm 6.0, and the site's driver supports "
        "6.1 to 7.0 (PYTORCH_DRIVER_ROCM)"
    )
    assert found.remedy == "load a module for a supported ROCm: module avail PyTorch"


def test_a_login_node_without_a_driver_reports_it_too(at, laptop):
    found = device.check_driver(at(laptop, "rocm", {"hip": "5.4.2"}, PYTORCH_DRIVER_ROCM="6.1-7.0"))
    assert found.verdict == WARN
    assert "torch is built for ROCm 5.4" in found.finding


def test_it_is_a_failure_where_torch_does_not_compute(at, with_files, lumi):
    node = with_files({"/sys/module/amdgpu/version": "6.10.5"}, lumi)
    found = device.check_driver(at(node, "rocm", {**ROCM_6_0, "fault": "HIP error: x"}, PYTORCH_DRIVER_ROCM="6.1-7.0"))
    assert found.verdict == FAIL
    assert "HIP error: x; torch is built for ROCm 6.0" in found.finding


@pytest.mark.parametrize("supported", ["6.0-7.0", "6-7", "5.7-6.0", "", "yes", None])
def test_a_rocm_within_the_range_and_a_profile_without_one_change_nothing(at, with_files, lumi, supported):
    node = with_files({"/sys/module/amdgpu/version": "6.10.5"}, lumi)
    env = {} if supported is None else {"PYTORCH_DRIVER_ROCM": supported}
    assert device.check_driver(at(node, "rocm", ROCM_6_0, **env)).verdict == OK


def test_the_range_is_that_of_the_modules_kind(at, with_files, dgx):
    node = with_files({"/proc/driver/nvidia/version": PROPRIETARY.format("580.105.08")}, dgx)
    env = {"PYTORCH_DRIVER_ROCM": "6.1-7.0", "PYTORCH_DRIVER_CUDA": "11-13"}
    assert device.check_driver(at(node, "cuda", {"cuda": "13.2", "devices": ["A100"]}, **env)).verdict == OK
    found = device.check_driver(at(node, "cuda", {"cuda": "14.0", "devices": ["A100"]}, **env))
    assert "torch is built for CUDA 14.0, and the site's driver supports 11 to 13" in found.finding


@pytest.mark.parametrize(
    ("version", "oldest", "newest", "expected"),
    [
        ("6.0", "6.1", "7.0", False), ("6.1", "6.1", "7.0", True), ("7.0.2", "6.1", "7.0", True),
        ("7.1", "6.1", "7.0", False), ("6.10", "6.2", "7", True), ("13.2", "11", "13", True),
        ("10.2", "11", "13", False),
    ],
)  # fmt: skip
def test_versions_are_numbers_and_an_end_counts_as_far_as_it_goes(version, oldest, newest, expected):
    assert device.is_within(version, oldest, newest) is expected


# Interfaces


@pytest.mark.parametrize(
    ("value", "chosen"),
    [
        ("hsn", ["hsn0", "hsn1"]),
        ("eth,hsn0", ["eth0", "hsn0"]),
        ("=hsn", []),
        ("=hsn1,lo", ["hsn1", "lo"]),
        ("^hsn", ["eth0", "lo"]),
        ("^=hsn0,lo", ["eth0", "hsn1"]),
        ("ib", []),
    ],
)
def test_interfaces_are_chosen_as_nccl_chooses_them(value, chosen):
    assert chosen_by_nccl(value, ["eth0", "hsn0", "hsn1", "lo"]) == chosen


def test_gloo_wants_all_of_the_names_and_whole():
    assert chosen_by_gloo("eth0,lo", ["eth0", "lo"]) == ["eth0", "lo"]
    assert chosen_by_gloo("eth", ["eth0", "lo"]) == []


@pytest.fixture
def hsn(with_files):
    """A node with two interfaces of the fabric, one of which is down."""
    states = {"eth0": "up", "hsn0": "up", "hsn1": "down", "lo": "unknown"}
    return with_files({f"/sys/class/net/{name}/operstate": state for name, state in states.items()})


def test_interfaces_that_are_there_are_fine(at, hsn):
    assert network.check_interfaces(at(hsn, None, NCCL_SOCKET_IFNAME="hsn0", GLOO_SOCKET_IFNAME="eth0")).verdict == OK
    assert network.check_interfaces(at(hsn, None)).verdict == NOT_APPLICABLE


@pytest.mark.parametrize("variable", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"])
def test_an_interface_that_is_not_there_is_a_failure_that_lists_those_that_are(at, hsn, variable):
    found = network.check_interfaces(at(hsn, None, **{variable: "ib0"}, **IN_A_JOB))
    assert found.verdict == FAIL
    assert found.finding == f"{variable}=ib0 matches no interface: here are eth0 hsn0 hsn1 lo"
    assert f"export {variable}=" in found.remedy


def test_an_interface_that_is_down_is_a_warning(at, hsn):
    found = network.check_interfaces(at(hsn, None, NCCL_SOCKET_IFNAME="hsn"))
    assert (found.verdict, found.finding) == (WARN, "NCCL_SOCKET_IFNAME=hsn: hsn1 is down")


def test_of_the_interfaces_that_a_list_leaves_over_one_may_be_down(at, hsn):
    assert network.check_interfaces(at(hsn, None, NCCL_SOCKET_IFNAME="^lo,docker")).verdict == OK
    found = network.check_interfaces(at(hsn, None, NCCL_SOCKET_IFNAME="^lo,eth,hsn0"))
    assert (found.verdict, found.finding) == (WARN, "NCCL_SOCKET_IFNAME=^lo,eth,hsn0: hsn1 is down")


# The fast network


def test_without_a_name_there_is_no_fast_network_to_check(at, laptop):
    assert network.check(at(laptop, "cuda")).verdict == NOT_APPLICABLE


def test_a_module_for_cpus_does_without_the_fast_network(at, laptop):
    found = network.check(at(laptop, None, PYTORCH_FAST_NETWORK="cxi", **IN_A_JOB))
    assert (found.verdict, found.finding) == (NOT_APPLICABLE, "only NCCL uses cxi, and the module is for CPUs")


def test_slingshots_cards_need_the_plugin_too(at, with_files):
    node = with_files({"/sys/class/cxi/cxi0/x": "", "/sys/class/cxi/cxi1/x": ""})
    env = {"PYTORCH_FAST_NETWORK": "cxi", **IN_A_JOB}
    found = network.check(at(node, "rocm", {"hip": "7.0", "plugin": "librccl-net.so"}, **env))
    assert (found.verdict, found.finding) == (OK, "cxi: cxi0, cxi1")
    found = network.check(at(node, "rocm", {"hip": "7.0"}, **env))
    assert found.verdict == FAIL
    assert "plugin for libfabric does not" in found.finding
    assert "aws-ofi-rccl" in found.remedy
    found = network.check(at(node, "rocm", {"hip": "7.0"}, NCCL_NET_PLUGIN="x", **env))
    assert (found.verdict, "no NCCL_NET_PLUGIN=x" in found.finding) == (FAIL, True)
    found = network.check(at(node, "rocm", {"hip": "7.0"}, NCCL_NET_PLUGIN="none", **env))
    assert (found.verdict, found.remedy) == (FAIL, "unset NCCL_NET_PLUGIN")


def test_no_card_is_a_failure_in_a_job_alone(at, laptop, tmp_path):
    assert network.check(at(laptop, "cuda", PYTORCH_FAST_NETWORK="IB", **IN_A_JOB)).verdict == FAIL
    (tmp_path / "sbatch").write_text("#!/bin/sh\n")
    (tmp_path / "sbatch").chmod(0o755)
    assert network.check(at(laptop, "cuda", PYTORCH_FAST_NETWORK="IB", PATH=str(tmp_path))).verdict == NOT_APPLICABLE


@pytest.mark.parametrize(
    ("states", "verdict", "message"),
    [
        (("4: ACTIVE", "4: ACTIVE"), OK, "IB: mlx5_0, mlx5_1"),
        (("4: ACTIVE", "1: DOWN"), WARN, "1 of 2 cards have no active port: mlx5_1"),
        (("2: INIT", "1: DOWN"), FAIL, "no port of mlx5_0, mlx5_1 is active"),
    ],
)
def test_infinibands_ports_must_be_active(at, with_files, states, verdict, message):
    node = with_files(
        {f"/sys/class/infiniband/mlx5_{card}/ports/1/state": f"{state}\n" for card, state in enumerate(states)}
    )
    found = network.check(at(node, "cuda", PYTORCH_FAST_NETWORK="IB", **IN_A_JOB))
    assert (found.verdict, found.finding) == (verdict, message)


@pytest.mark.parametrize("setting", [("NCCL_NET", "Socket"), ("NCCL_IB_DISABLE", "1")])
def test_a_variable_that_turns_the_fast_network_off_is_a_failure(at, laptop, setting):
    found = network.check(at(laptop, "cuda", PYTORCH_FAST_NETWORK="IB", **dict([setting])))
    assert found.verdict == FAIL
    assert found.remedy == f"unset {setting[0]}"


# Slurm


def test_outside_of_slurm_there_is_nothing_to_check(tmp_path):
    assert slurm.check(Surroundings({"PATH": str(tmp_path)})).verdict == NOT_APPLICABLE


@pytest.fixture
def here(step):
    """The surroundings of a task whose nodes are all this host."""

    def make(**changes):
        nodes = {"SLURM_STEP_NODELIST": "localhost", "SLURMD_NODENAME": "localhost", "SLURM_STEP_NUM_TASKS": "2"}
        one_node = {"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
        cpus = {"SLURM_CPUS_ON_NODE": str(max(2, len(os.sched_getaffinity(0))))}
        return Surroundings({**step, **nodes, **one_node, **cpus, **changes})

    return make


def test_a_step_whose_nodes_are_known_is_fine(here):
    found = slurm.check(here(SLURM_STEP_NUM_TASKS="1", SLURM_STEP_TASKS_PER_NODE="1"))
    assert found.verdict == OK
    assert found.finding.startswith("Slurm step 7.0, 1 node, CPUs ")


@pytest.mark.parametrize(
    ("changes", "message", "remedy"),
    [
        ({"SLURM_STEP_NODELIST": "nid[001-"}, "unclosed bracket", "unset SLURM_STEP_NODELIST"),
        (
            {"SLURM_STEP_NODELIST": "no-such-host.invalid"},
            "no-such-host.invalid of this job has no address",
            "MASTER_ADDR",
        ),
        ({"SLURM_PROCID": "5"}, "SLURM_PROCID=5 is outside 0 to 1", "look for a stray export"),
        ({"RANK": "1"}, "RANK=1 is exported, but SLURM_PROCID=0", "unset RANK"),
    ],
)
def test_a_step_that_makes_no_sense_is_a_failure_with_its_remedy(here, changes, message, remedy):
    found = slurm.check(here(**changes))
    assert found.verdict == FAIL
    assert message in found.finding
    assert remedy in found.remedy


def test_fewer_cores_than_tasks_is_a_warning(here):
    crowd = str(len(os.sched_getaffinity(0)) + 1)
    found = slurm.check(
        here(SLURM_STEP_NUM_TASKS=crowd, SLURM_STEP_TASKS_PER_NODE=crowd, SLURM_CPUS_ON_NODE=str(int(crowd) - 1))
    )
    assert found.verdict == WARN
    assert f"{crowd} ranks share " in found.finding
    assert "srun -c" in found.remedy
