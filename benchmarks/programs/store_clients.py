"""Measures what the store of rank 0 serves while a world forms: `store_clients.py nccl|gloo CLIENTS...` prints JSON.

The store is torch's TCPStore in a process of its own. Each client is a thread with a TCPStore of its own, and does what
a rank does with the store in `init_process_group`. Bytes are those that the kernel counted on the clients' connections
(tcp(7), TCP_INFO).
"""

import json
import os
import socket
import struct
import sys
import threading
from datetime import timedelta
from pathlib import Path

from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore
from torch.distributed.distributed_c10d import _store_based_barrier

TIMEOUT = timedelta(seconds=300)
#: The identity that rank 0 gives all ranks (nccl.h, NCCL_UNIQUE_ID_BYTES).
IDENTITY = bytes(128)
#: tcpi_bytes_acked and tcpi_bytes_received in tcp_info (linux/tcp.h).
BYTES_AT, BYTES = 120, struct.Struct("QQ")


def serve(ready, done):
    """Be the process of the store; tell its port, and wait."""
    store = TCPStore("127.0.0.1", 0, None, True, TIMEOUT, wait_for_workers=False)
    os.write(ready, f"{store.port}\n".encode())
    os.read(done, 1)
    os._exit(0)


def join(backend, rank, size, store):
    """Use the store as a rank does until its process group is there; return what must live as long."""
    group = PrefixStore("default_pg", store)
    if backend == "gloo":
        made = ProcessGroupGloo(group, rank, size, TIMEOUT)  # connects each pair of ranks
    else:
        made = None  # without a GPU, only the use of the store
        if rank == 0:
            group.set("0", IDENTITY)
        group.get("0")
    _store_based_barrier(rank, group, "default_pg", size, TIMEOUT)
    return made


def bytes_to(port):
    """The bytes, sent and received, of each connection of this process to a port."""
    for name in os.listdir("/proc/self/fd"):
        try:
            found = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # not a socket
            continue
        with found:
            try:
                is_client = found.getpeername()[1] == port
            except OSError:
                continue
            if is_client:
                info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_AT + BYTES.size)
                yield sum(BYTES.unpack_from(info, BYTES_AT))


def resources(pid):
    """The open files and the bytes of memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return len(os.listdir(f"/proc/{pid}/fd")), pages * os.sysconf("SC_PAGE_SIZE")


def measure(backend, size):
    """What a store serves for so many clients."""
    (ready, is_ready), (done, is_done) = os.pipe(), os.pipe()
    server = os.fork()
    if server == 0:
        os.close(is_done)
        serve(is_ready, done)
    port = int(os.read(ready, 64))
    files, memory = resources(server)
    kept = []

    def run(rank):
        store = TCPStore("127.0.0.1", port, size, False, TIMEOUT)
        kept.append((store, join(backend, rank, size, store)))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    served = list(bytes_to(port))
    files_now, memory_now = resources(server)
    os.write(is_done, b".")
    os.waitpid(server, 0)
    return {
        "clients": size,
        "connections": len(served),
        "bytes": sum(served),
        "files": files_now - files,
        "memory": memory_now - memory,
    }


if __name__ == "__main__":
    for argument in sys.argv[2:]:
        print(json.dumps(measure(sys.argv[1], int(argument))), flush=True)
    sys.stdout.flush()
    os._exit(0)  # gloo's threads wait for the store
