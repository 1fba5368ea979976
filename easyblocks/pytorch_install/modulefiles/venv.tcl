
# The standard library is the host's, or a copy that stays.
if {[module-info mode load] && ![file readable [file join $root venv/lib/python%(minor)s/os.py]]} {
    # the third argument prevents a stack trace of Environment Modules
    error "%(module)s was built with Python %(version)s at %(python)s, which cannot be read on this host. Load this\
        module on a host that has that Python, or build again with `eb --force %(easyconfig)s`" {} MODULES_ERR_GLOBAL
}
