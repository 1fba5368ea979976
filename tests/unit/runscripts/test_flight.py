"""PyTorch's flight recorder: where the launcher lets it write, and under which names."""

import pytest
from pytorch_launch.flight import choose_dumps, make_dumps
from pytorch_launch.plan import make_plan
from pytorch_launch.topology import read_node
from tables import name, table
from variables import changed

#: Variables; the settings, with the new names or the old ones (torch before 2.8); and whether there is a directory.
SETTINGS = """
variables                                             | size | file | on time-out | directory
                                                      | new  | new  | 1           | yes
EBVERSIONPYTORCH=2.3.1                                | old  | old  | 1           | yes
EBVERSIONPYTORCH=2.7.1                                | old  | old  | 1           | yes
EBVERSIONPYTORCH=2.8.0                                | new  | new  | 1           | yes
EBVERSIONPYTORCH=2.15.0                               | new  | new  | 1           | yes
EBVERSIONPYTORCH=x                                    | new  | new  | 1           | yes
# what is exported takes precedence under either name
TORCH_NCCL_TRACE_BUFFER_SIZE=0                        |      | new  | 1           | yes
TORCH_FR_BUFFER_SIZE=0                                |      | new  | 1           | yes
TORCH_NCCL_DUMP_ON_TIMEOUT=0                          | new  | new  |             | yes
TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/own                  | new  |      | 1           |
TORCH_FR_DUMP_TEMP_FILE=/own                          | new  |      | 1           |
HOME=                                                 | new  |      | 1           |
# but not the file of a launch whose rank submitted this job
TORCH_FR_DUMP_TEMP_FILE={dumps}/6.0-rank_             | new  | new  | 1           | yes
TORCH_NCCL_DEBUG_INFO_TEMP_FILE={dumps}/6.0-rank_     | new  | new  | 1           | yes
"""
SIZES = {"new": "TORCH_FR_BUFFER_SIZE", "old": "TORCH_NCCL_TRACE_BUFFER_SIZE"}
FILES = {"new": "TORCH_FR_DUMP_TEMP_FILE", "old": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}


@pytest.mark.parametrize("row", table(SETTINGS), ids=name)
def test_what_is_not_exported_is_set_and_dumps_have_the_name_of_their_launch(tmp_path, row):
    directory = f"{tmp_path}/.cache/pytorch-dumps"
    dumps = choose_dumps(changed({"HOME": str(tmp_path)}, row["variables"].format(dumps=directory)), "7.0")
    expected = {}
    if row["size"]:
        expected[SIZES[row["size"]]] = "2000"
    if row["file"]:
        expected[FILES[row["file"]]] = f"{directory}/7.0-rank_"
    if row["on time-out"]:
        expected["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "1"
    assert dumps == (directory if row["directory"] else None, expected)
    assert not list(tmp_path.iterdir())  # a plan writes nothing


def test_the_directory_is_private_and_one_that_is_not_is_not_used(tmp_path):
    dumps = choose_dumps({"XDG_CACHE_HOME": f"{tmp_path}/cache"}, "7.0")
    for _ in range(2):  # the first rank makes it
        assert make_dumps(dumps) == ()
    assert (tmp_path / "cache/pytorch-dumps").stat().st_mode & 0o777 == 0o700
    (tmp_path / "cache/pytorch-dumps").chmod(0o755)
    unusable = [dumps, choose_dumps({"HOME": "/proc"}, "7.0")]  # or a home directory that cannot be written
    for each in unusable:
        assert "TORCH_FR_DUMP_TEMP_FILE" in make_dumps(each)


def test_several_ranks_with_gpus_get_the_settings(step, lumi, dgx, laptop, tmp_path):
    alone = "SLURM_STEP_NUM_TASKS=1 SLURM_NTASKS=1 SLURM_STEP_TASKS_PER_NODE=1 SLURM_STEP_NUM_NODES=1 SLURM_PROCID=0 "
    alone += "SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_STEP_NODELIST=nid001003"
    for root, more, count in ((lumi, "", 3), (dgx, "", 3), (laptop, "", 0), (lumi, alone, 0)):
        env = changed(step, more, HOME=str(tmp_path), TMPDIR=str(tmp_path))
        changes = make_plan(env, read_node(root)._replace(host="vm")).changes
        assert sum(name.startswith(("TORCH_FR", "TORCH_NCCL")) for name in changes) == count
