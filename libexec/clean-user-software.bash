# Deletes the directory or the packed file, whichever is no longer in use; `make-squashfs --clean` sources it.
# shellcheck shell=bash disable=SC2154 # variables of user-software.bash

old=$packed
! is_packed || old=$directory
[ -e "$old" ] || die "nothing to clean: there is no $old"
[ ! "$mounted" -ef "$old" ] || die "this shell still mounts $old: unload and load the module, then try again"
if is_packed; then
  compare "$packed" "$directory" || die "$directory is not what was packed ($found): \
delete it yourself, or delete $packed to use the directory again"
  mv -T "$directory" "$work/directory"
else
  rm -f "$packed" # first, so that the directory is in use all the time
  rm -f "$directory/.unpacked"
fi
rm -rf "$work" || die "cannot remove all of $work: remove it when no job uses it"
exit
