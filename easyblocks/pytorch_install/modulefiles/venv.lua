
-- The standard library is the host's, or a copy that stays. (isFile of Lmod 8.6 does not follow a link.)
if mode() == "load" and not io.open(pathJoin(root, "venv/lib/python%(minor)s/os.py")) then
    LmodError("%(module)s was built with Python %(version)s at %(python)s, which cannot be read on this host. Load this "
              .. "module on a host that has that Python, or build again with `eb --force %(easyconfig)s`")
end
