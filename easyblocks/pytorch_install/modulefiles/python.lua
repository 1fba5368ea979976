
-- EasyBuild's easyblocks for bundles of Python packages require a module with these names.
set("EBROOTPYTHON", pathJoin(root, "venv"))
set("EBVERSIONPYTHON", "%(version)s")
-- That of another module replaces the standard library of each Python. (Python 3.6 does not start with an empty one.)
if os.getenv("PYTHONHOME") then
    set("PYTHONHOME", "")
end
