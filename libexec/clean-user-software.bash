# SPDX-License-Identifier: BSD-3-Clause
# Deletes the form of user-software that is no longer in use: the directory or the packed file.
# shellcheck shell=bash disable=SC2154 # variables of user-software.bash

old=$packed
! is_packed || old=$directory
[ -e "$old" ] || die "nothing to clean: $old does not exist"
[ ! "$mounted" -ef "$old" ] || die "this shell still mounts $old. Unload and load the module, then try again"
if is_packed; then
  compare "$packed" "$directory" || die "$directory differs from the packed file ($found). \
Delete it yourself, or delete $packed to use the directory again"
  mv -T "$directory" "$work/directory"
else
  rm -f "$packed" # first: a module that is loaded meanwhile uses the directory
  rm -f "$directory/.unpacked"
fi
rm -rf "$work" || die "cannot delete all of $work. Delete it when no job uses it"
exit
