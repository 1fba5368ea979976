
-- What a user installs goes into a directory of this user and this module; ~/.local stays out.
local userbase = pathJoin(os.getenv("HOME") or "/", "%(directory)s")
pushenv("PYTHONUSERBASE", userbase)
