"""Reads how the ranks of a step ended, in their logs (PYTORCH_LAUNCH_LOG_DIR)."""

from pathlib import Path

from pytorch_doctor.job import COMPLETE, kind, read_ranks

#: What a rank prints if its GPU or the connection between GPUs is defective. Errors that a program can cause as well
#: are not here: an illegal memory access, a launch failure, a GPU hang, a bus error of a full /dev/shm.
MESSAGES = (
    # cudaGetErrorString of cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable and cudaErrorContained
    # (https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html); the first also of
    # hipErrorECCNotCorrectable (https://rocm.docs.amd.com/projects/HIP/en/latest/reference/error_codes.html)
    "uncorrectable ECC error encountered",
    "uncorrectable NVLink error detected",
    "Invalid access of peer GPU memory over nvlink or a hardware error",
    # Xid 79 and what NVML returns afterwards (https://docs.nvidia.com/deploy/xid-errors/)
    "GPU has fallen off the bus",
    "GPU is lost",
)
SHOWN_CHARACTERS = 120


def launches(log_dir, job):
    """The directories of the job's launches in a directory of logs."""
    return {path for path in Path(log_dir).glob(f"{job}.*") if path.is_dir()} if log_dir else set()


def is_complete(directories):
    """Whether all ranks recorded that they ended with status 0."""
    worlds = [read_ranks(directory) for directory in directories]
    return bool(worlds) and all(
        len(ranks) == size and all(kind(rank) == COMPLETE for rank in ranks.values()) for size, ranks in worlds
    )


def nodes_with_hardware_errors(directories):
    """What the first such rank of each node printed, by the node, in the logs in `directories`."""
    found = {}
    for directory in sorted(directories):
        for rank in read_ranks(directory)[1].values():
            line = hardware_error(rank.lines)
            if line and kind(rank) != COMPLETE and rank.start.get("node"):
                found.setdefault(rank.start["node"], f"rank {rank.number}: {line} ({rank.path})")
    return found


def hardware_error(lines):
    """The first of the lines with one of MESSAGES, None without one."""
    for line in lines:
        if any(message in line for message in MESSAGES):
            return line.strip()[:SHOWN_CHARACTERS]
    return None
