# SPDX-License-Identifier: BSD-3-Clause
"""
Lets the module's packages precede a user's site directory that has a torch: without PYTHONUSERBASE, that is ~/.local.

It is copied into the module's site-packages; keep_torch.pth imports it when Python starts, also in environments on top.
"""
import os
import site
import sys


def keep_torch(search, users, packages):
    """
    The search path; the user's directories follow the module's if one of them has a torch.

    :param search: the search path, a list
    :param users: the user's site directory, or None
    :param packages: directory of the module's packages
    """
    if users not in search or packages not in search:
        return search
    before = search[search.index(users):search.index(packages)]  # with those that its .pth files name
    if not any(os.path.exists(os.path.join(path, 'torch')) for path in before):
        return search
    return [path for path in search if path not in before] + before


sys.path[:] = keep_torch(sys.path, site.ENABLE_USER_SITE and site.getusersitepackages(), os.path.dirname(__file__))
