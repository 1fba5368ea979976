# SPDX-License-Identifier: GPL-2.0-only
"""
Commands of the sanity check: import torch, reduce over a world of one through the runscript, and start the payload.
"""

# Initializes a process group of one rank from environment variables, as users' scripts do.
ALLREDUCE = ("import torch, torch.distributed as dist; dist.init_process_group('gloo'); "
             "total = torch.ones(1); dist.all_reduce(total); dist.destroy_process_group(); "
             "assert total.item() == 1.0")


def sanity_commands(version, launch):
    """
    The commands, for the shell that EasyBuild runs them with.

    :param version: torch's version, only its numbers: that of 2.3.1+rocm6.0 is 2.3.1, and NVIDIA's images have
                    2.1.0a0+b5021ba for 2.1.0
    :param launch: prefix of a command to run it with the module's Python
    """
    check = ("import re, torch; found = re.match('[0-9.]+', torch.__version__)[0]; "
             "assert found == '%s', torch.__version__" % version)
    return [
        # one command for both: importing torch is slow
        launch + 'conda-python-distributed -c "%s; %s"' % (check, ALLREDUCE),
        launch + 'conda-python-simple "$PAYLOAD"/mnist_ddp.py --help',
    ]
