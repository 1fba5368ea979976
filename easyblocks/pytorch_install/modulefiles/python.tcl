
# EasyBuild's easyblocks for bundles of Python packages require a module with these names.
pushenv EBROOTPYTHON $root/venv
pushenv EBVERSIONPYTHON "%(version)s"
# That of another module replaces the standard library of each Python. (Python 3.6 does not start with an empty one.)
if {[info exists env(PYTHONHOME)]} {
    pushenv PYTHONHOME ""
}
