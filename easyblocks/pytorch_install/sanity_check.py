##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Commands of the sanity check: import torch, reduce over a world of one through the runscript, and start the payload.
"""

# Joins a world of one through the environment alone, as a user's script does.
ALLREDUCE = ("import torch, torch.distributed as dist; dist.init_process_group('gloo'); "
             "total = torch.ones(1); dist.all_reduce(total); dist.destroy_process_group(); "
             "assert total.item() == 1.0")


def sanity_commands(version, launch):
    """
    The commands, for the shell that EasyBuild runs them with.

    :param version: torch's version, without what follows the numbers: 2.3.1+rocm6.0, and NVIDIA's images have
                    2.1.0a0+b5021ba for 2.1.0
    :param launch: what stands before a command to run it with the module's Python
    """
    check = ("import re, torch; found = re.match('[0-9.]+', torch.__version__)[0]; "
             "assert found == '%s', torch.__version__" % version)
    return [
        launch + 'conda-python-distributed -c "%s; %s"' % (check, ALLREDUCE),  # torch is slow to import: once for both
        launch + 'conda-python-simple "$PAYLOAD"/mnist_ddp.py --help',
    ]
