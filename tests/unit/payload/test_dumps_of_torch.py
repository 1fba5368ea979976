"""`pytorch-stacks --dumps` reads what torch's flight recorder writes; gloo has the recorder since torch 2.8."""

import subprocess
from pathlib import Path

from launching import run_code

RUNSCRIPTS = Path(__file__).parents[3] / "runscripts"

#: Rank 1 of 3 skips the second all-reduce; then each rank writes its dump, as NCCL's watchdog does after a time-out.
SKIPS = """
import pickle

def dump():
    write, rank = torch._C._distributed_c10d._dump_fr_trace, dist.get_rank()
    def recorded():
        entries = pickle.loads(write())["entries"]
        return len(entries) == (1 if rank == 1 else 2) and entries[0]["retired"]
    while not recorded():
        time.sleep(0.01)
    Path(directory, f"part_{rank}").write_bytes(write())
    Path(directory, f"part_{rank}").rename(f"{directory}/nccl_rank_{rank}")
    while len(list(Path(directory).glob("nccl_rank_*"))) < 3:  # the end of a rank would end the collective of others
        time.sleep(0.01)
    os._exit(0)

def exchange():
    dist.all_reduce(torch.ones(4))

dist.init_process_group("gloo")
exchange()
threading.Thread(target=dump).start()
if dist.get_rank() != 1:
    exchange()
time.sleep(600)
"""


def test_the_rank_that_skipped_a_collective_is_named_from_torchs_own_dumps(tmp_path):
    run_code(3, f"directory = {str(tmp_path)!r}\n{SKIPS}")
    command, options = [RUNSCRIPTS / "pytorch-stacks", "--dumps", tmp_path], {"text": True, "timeout": 300}
    done = subprocess.run(command, capture_output=True, check=False, **options)
    lines = done.stdout.splitlines()
    assert lines[0] == f"{tmp_path}/nccl_rank_*: dumps of 3 ranks"
    assert lines[1].startswith("group default_pg: collective 2, all_reduce of Float [[4]], did not finish, called at")
    assert lines[2] == "    waiting: ranks 0,2"
    assert lines[3].startswith("    rank 1 did not start it: its last, all_reduce (1 of group default_pg), finished")
    assert (done.returncode, len(lines)) == (1, 4)
    (tmp_path / "nccl_rank_2").unlink()  # the dumps of the others have the size of the world
    done = subprocess.run(command, capture_output=True, check=False, **options)
    assert "no dump: rank 2. " in done.stdout and done.stdout.endswith("    rank 2: no dump\n")
