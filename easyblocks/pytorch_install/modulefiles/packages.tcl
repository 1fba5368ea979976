
# What a user installs goes into a directory of this user and this module; ~/.local stays out.
set userbase [file join [expr {[info exists env(HOME)] ? $env(HOME) : "/"}] "%(directory)s"]
pushenv PYTHONUSERBASE $userbase
