# SPDX-License-Identifier: GPL-2.0-only
"""
All that the PyTorch easyblocks change in EasyBuild's engine, as one mixin: installations as transactions.

The easyblocks override steps, as EasyBuild intends. The methods here replace what it does not intend to be overridden;
each docstring states what EasyBuild 5 does instead.
"""
import os
import stat

from easybuild.framework.easyblock import StopException
from easybuild.tools.build_log import print_msg
from easybuild.tools.config import build_option
from easybuild.tools.filetools import adjust_permissions, change_dir, remove_file

from pytorch_install.engine.preconditions import check_path
from pytorch_install.engine.transaction import Installation


class EngineMixin:
    """
    For classes that are derived from it first, and then from EasyBlock.

    They have check_host (whether this host can run what is installed, also with --extended-dry-run) and
    check_preconditions (for what would make a late step fail).
    """

    def __init__(self, *args, **kwargs):
        """
        Check the paths, and prepare the transaction.

        EasyBuild takes any path; binds of containers, search paths and scripts do not.
        """
        super().__init__(*args, **kwargs)
        for path in (self.installdir, self.mod_filepath):
            check_path(path)
        self.installation = Installation(self.installdir, self.mod_filepath)

    def post_init(self):
        """
        Clean up after an `eb` that was killed, and check the preconditions.

        EasyBuild has no step between taking its lock and fetching sources; this method is the only place.
        """
        self.check_host()
        super().post_init()
        if not (self.dry_run or build_option('ignore_locks')):
            self.installation.recover()
        if not self.dry_run:
            self.check_preconditions()

    def run_step(self, step, step_methods):
        """
        Run one step; after an error, Ctrl-C or --stop, installation and module are as they were before.

        EasyBuild installs in place, as most build systems write the final path into files: it has removed the previous
        installation by then, and keeps the incomplete one for debugging.
        """
        try:
            super().run_step(step, step_methods)
        except StopException:
            if self.installation.has_module and self.roll_back():
                print_msg("stopped after the %s step: %s is as it was before, what this step installed is removed",
                          step, self.full_mod_name)
            raise
        except BaseException:
            self.roll_back()
            raise

    def roll_back(self):
        """Restore the previous installation; return whether it had been put aside."""
        begun = self.installation.begun
        if begun:
            change_dir(self.orig_workdir)
            self.installation.roll_back()
        return begun

    def remove_module_file(self):
        """
        Keep the module that --rebuild replaces until make_installdir.

        EasyBuild removes it in its first step, as the installation directory goes next: during a build of minutes,
        users would find no module. The module of another installation directory is left to EasyBuild.
        """
        present = os.path.exists(self.mod_filepath)
        if present and self.module_generator.det_installdir(self.mod_filepath) != self.installdir:
            super().remove_module_file()

    def make_installdir(self, *args, **kwargs):
        """
        Put the installed directory aside, and make a new one.

        EasyBuild removes it, so that a failure leaves nothing. It also tries for seconds to remove a link, with which
        a site moves an installation to another file system.
        """
        if not self.dry_run:
            self.installation.begin()
            if self.installation.is_link:
                return  # `begin` made an empty directory
        super().make_installdir(*args, **kwargs)

    def make_module_step(self, fake=False):
        """
        Write the module file, which appears atomically, and make the installation final.

        EasyBuild has removed the previous module by then, and writes to the final path, where users can load half a
        module. It takes the path from mod_filepath and not as a parameter, so mod_filepath is a hidden file until the
        module is complete. The sanity check's module gets the user's umask, with which Lmod may hide it from root.
        """
        if fake or self.dry_run:
            modules = super().make_module_step(fake=fake)
            if not self.dry_run:
                # the directory around them is private
                adjust_permissions(modules, stat.S_IROTH)
            return modules
        module_file = self.mod_filepath
        self.mod_filepath = self.installation.part(module_file)
        try:
            modules = super().make_module_step()
            self.installation.finish()
            self.complete()
            os.replace(self.mod_filepath, module_file)
        finally:
            remove_file(self.mod_filepath)
            self.mod_filepath = module_file
        self.installation.discard()
        # EasyBuild did this before the file had its name
        self.invalidate_module_caches(modules)
        self.modules_tool.update()
        return modules

    def complete(self):
        """Subclasses do what needs a final installation; the module appears after this."""
