"""Programs whose ranks meet as torch's do, without torch's import of 2 CPU seconds, and what they print."""

#: Rank 0 listens at MASTER_ADDR and MASTER_PORT, as torch's does, and counts the different ranks that arrive.
MEET = """
import importlib.util, os, runpy, socket, sys, time
rank, size, port = (int(os.environ[name]) for name in ('RANK', 'WORLD_SIZE', 'MASTER_PORT'))
if rank == 0:
    with socket.create_server(('', port)) as server:
        others = [server.accept()[0] for _ in range(size - 1)]
        found = len({0} | {ord(other.recv(1)) for other in others})
        time.sleep(1)  # all worlds at the same time
        for other in others:
            other.sendall(bytes([found]))
else:
    end = time.monotonic() + 600
    while True:
        try:
            meeting = socket.create_connection((os.environ['MASTER_ADDR'], port), timeout=600)
            break
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
    meeting.sendall(bytes([rank]))
    found = ord(meeting.recv(1))
"""
#: Prints in one write, as launchers mix the partial writes of ranks.
PRINT = """
address = os.environ['MASTER_ADDR']
line = f"{os.environ.get('WHICH', 'world')} {found} of {size} {address} {port} on {socket.gethostname()} {version}\\n"
os.write(1, line.encode())
"""
PROBE = f"""{MEET}
(torch,) = importlib.util.find_spec('torch').submodule_search_locations
version = runpy.run_path(torch + '/version.py')['__version__']
{PRINT}"""
#: The same with torch itself.
TORCH_PROBE = f"""
import os, socket, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
dist.destroy_process_group()
time.sleep(0.1)  # docs/troubleshooting.md: with gloo, a process that ends at once may abort
found, size, port = int(total), int(os.environ["WORLD_SIZE"]), os.environ["MASTER_PORT"]
version = torch.__version__
{PRINT}"""
#: Replaces mnist_ddp.py, whose trainings other tests run: rank 0 prints the world's size and the options.
TRAINING = f"""{MEET}
if rank == 0:
    print(f"world size {{found}}, on {{os.environ['SLURM_JOB_NUM_NODES']}} nodes, options:", *sys.argv[1:])
    print("MNIST in", os.environ.get("MNIST_ROOT"))
"""


def ranks(output, which="world"):
    """Return what the ranks of a world printed, without its name: the words of their lines."""
    return [line.split()[1:] for line in output.splitlines() if line.startswith(f"{which} ")]
