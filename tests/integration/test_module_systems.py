"""The generated modules under Lmod and Environment Modules, in Lua and Tcl: what loading sets and unloading undoes.

On modules that EasyBuild writes again for each module system, with an installation directory of their own around the
installed runtime.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from testbed.module_systems import SNAPSHOT, modulecmd, snapshot, values
from testbed.recipes import CONTAINER, VENV
from testbed.recipes import module as module_of

pytestmark = pytest.mark.testbed

SHIFTER = "PyTorch-2.1.0-ngc-23.07-shifter"
SYSTEMS = [("Lmod", "Lua"), ("Lmod", "Tcl"), ("Environment Modules", "Tcl")]

#: What stands before a command to run it with a module's Python, as its help says.
ENTER = {CONTAINER: "singularity exec $SIF ", VENV: "", SHIFTER: "shifter --image=$SHIFTER_IMAGE $RUNSCRIPTS/"}

#: What a site's recipe may add to the container's, in a directory `{site}` that has `there` and `elsewhere`.
PARAMETERS = """
central_images = ['{site}/not-there', '{site}/elsewhere']
binds = ['{site}/there', '{site}/not-there', '{site}/there:/mnt/there']
conda_activation = 'source /opt/conda/bin/activate pytorch'
gpu = 'cuda'
"""

NAMES = ["SIF", "RUNSCRIPTS", "PAYLOADPYTORCH", "PYTHONUSERBASE", "WITH_CONDA", "WITH_VENV", "SINGULARITY_NV",
         "SINGULARITYENV_VIRTUAL_ENV", "APPTAINERENV_VIRTUAL_ENV", "PIP_CONSTRAINT",
         "TORCH_EXTENSIONS_DIR"]  # fmt: skip
OWN = {
    "nothing": "",
    "lists": "export SINGULARITY_BIND=/opt:/mnt/opt:ro,/srv APPTAINER_BIND=/p SINGULARITYENV_PREPEND_PATH=/opt/bin",
    "signs": "; ".join(f"""export {name}='library://a/b:1,2&3;$x\\y "z"'""" for name in NAMES),
    "empty": f"export {'= '.join(NAMES)}=",
}


class Site:
    """A module in a directory of its own, and the module system that it was written for."""

    def __init__(self, system, root, recipe):
        self.system = system
        self.root = root
        self.recipe = recipe
        self.name = name = module_of(recipe)
        self.installation = root / "software" / name
        self.user_software = root / "software/PyTorch/.user-software" / self.installation.name

    @property
    def loads_once(self):
        """Whether loading what is loaded already does nothing."""
        return self.system.name != "Lmod"

    def run(self, script):
        """Run a bash script that must succeed, with these modules and no others; return its standard output."""
        return self.system.run(script, self.root / "modules/all")

    def run_unchecked(self, script):
        """Run a bash script with these modules and no others."""
        return self.system.run_unchecked(script, self.root / "modules/all")

    def keep_no_user_software(self):
        """Remove what a test put there."""
        shutil.rmtree(self.user_software.parent, ignore_errors=True)


def write_module(testbed, system, syntax, recipe, root):
    """Write a module as EasyBuild does for a module system, around what is installed of the recipe, if anything is."""
    repository = testbed.layout.repository
    installed = testbed.layout.easybuild / "software" / module_of(recipe)
    new = root / "software" / module_of(recipe)
    shutil.copytree(repository / "modulefiles/cluster", new / "modulefiles/cluster")
    for part in ("runscripts", "payload"):
        (new / part).symlink_to(repository / part)
    shutil.copytree((installed if installed.exists() else repository) / "bin", new / "bin", symlinks=True)
    if (installed / "venv").exists():
        shutil.copytree(installed / "venv/bin", new / "venv/bin", symlinks=True)
    (new / "constraints.txt").write_text("torch==2.13.0+cpu\n")
    for image in installed.glob("*.sif"):
        (new / image.name).symlink_to(image)
    text = (repository / f"easyconfigs/p/PyTorch/{recipe}.eb").read_text()
    (root / f"{recipe}.eb").write_text(text + (PARAMETERS.format(site=root) if recipe == CONTAINER else ""))
    tool = system.name.replace(" ", "")
    code = "" if tool == "Lmod" else f"export MODULES_CMD={modulecmd(testbed.layout)}\n"
    testbed.run(
        f"""{code}eb --modules-tool={tool} --allow-modules-tool-mismatch --module-syntax={syntax} --installpath={root} \
--module-only --force --skip-sanity-check {root}/{recipe}.eb"""
    )


@pytest.fixture(scope="module", params=SYSTEMS, ids="-".join)
def written(request, testbed, container, venv, module_system, tmp_path_factory):
    """The modules of all runtimes under one module system: recipe -> Site."""
    name, syntax = request.param
    system = module_system(name)
    root = tmp_path_factory.mktemp("site")
    for directory in ("there", "elsewhere"):
        (root / directory).mkdir()
    for recipe in ENTER:
        write_module(testbed, system, syntax, recipe, root)
    return {recipe: Site(system, root, recipe) for recipe in ENTER}


@pytest.fixture(params=[CONTAINER, VENV, SHIFTER], ids=["container", "venv", "shifter"])
def site(written, request):
    """One module under one module system."""
    return written[request.param]


@pytest.fixture
def image_site(written):
    """The container's module, and no user-software before or after the test."""
    site = written[CONTAINER]
    site.keep_no_user_software()
    yield site
    site.keep_no_user_software()


@pytest.mark.parametrize("own", OWN.values(), ids=OWN)
def test_unloading_brings_back_every_byte_and_loading_twice_changes_nothing(site, own, tmp_path):
    states = ["before", "loaded", "twice", "after", "again"]
    before, loaded, twice, after, again = (tmp_path / state for state in states)
    site.run(
        f"""{own}
{SNAPSHOT.format(before)}
module load {site.name}
{SNAPSHOT.format(loaded)}
module load {site.name}
{SNAPSHOT.format(twice)}
module unload {site.name}
{SNAPSHOT.format(after)}
module load {site.name}
module purge
{SNAPSHOT.format(again)}"""
    )
    # Lmod's pushenv brings back an empty value as none
    lost = {f"{name}=" for name, value in values(loaded).items() if value and site.system.name == "Lmod"}
    expected = [entry for entry in snapshot(before) if entry not in lost]
    assert snapshot(after) == expected
    assert snapshot(again) == expected
    assert values(twice) == values(loaded)
    assert values(loaded) != values(before)


def state(path, names=("SINGULARITY_BIND", "APPTAINER_BIND", "WITH_VENV", "SINGULARITYENV_VIRTUAL_ENV")):
    """Some variables of a snapshot, None where one is not set."""
    new = values(path)
    return [new.get(name) for name in names]


@pytest.mark.parametrize("there", ["nothing", "directory", "packed", "both", "unpacked"])
def test_the_module_mounts_the_user_software_that_exists_when_it_is_loaded(image_site, there, tmp_path):
    site, store = image_site, image_site.user_software
    if there in ("directory", "both", "unpacked"):
        (store / "venv").mkdir(parents=True)
    if there in ("packed", "both", "unpacked"):
        store.parent.mkdir(exist_ok=True)
        store.with_name(store.name + ".squashfs").touch()
    if there == "unpacked":
        (store / ".unpacked").touch()
    loaded, after = tmp_path / "loaded", tmp_path / "after"
    site.run(f"module load {site.name}\n{SNAPSHOT.format(loaded)}")
    singularity, apptainer, with_venv, virtual_env = state(loaded)
    mounts = [entry for entry in singularity.split(",") if "/user-software" in entry and str(site.root) in entry]
    assert mounts == {
        "nothing": [],
        "directory": [f"{store}:/user-software"],
        "packed": [f"{store}.squashfs:/user-software:ro"],
        "both": [f"{store}.squashfs:/user-software:ro"],
        "unpacked": [f"{store}:/user-software"],
    }[there]
    assert (":ro,image-src=." in singularity) == (there in ("packed", "both"))
    assert apptainer == singularity
    assert with_venv == ("true" if there == "nothing" else "source /user-software/venv/pytorch/bin/activate")
    assert virtual_env == (None if there == "nothing" else "/user-software/venv/pytorch")

    # unloading takes away what loading added, whatever is there by then
    site.run(
        f"""{SNAPSHOT.format(tmp_path / "before")}
module load {site.name}
rm -rf {store.parent}; {"mkdir -p " + str(store) if there == "nothing" else "true"}
module unload {site.name}
{SNAPSHOT.format(after)}"""
    )
    assert snapshot(after) == snapshot(tmp_path / "before")


def test_a_users_own_image_is_mounted_beside_the_packed_user_software_and_kept(testbed, image_site, tmp_path):
    site, packed = image_site, image_site.user_software.with_name(image_site.user_software.name + ".squashfs")
    packed.parent.mkdir(exist_ok=True)
    for name, image in [("ours", packed), ("theirs", tmp_path / "own.squashfs")]:
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
        subprocess.run(["mksquashfs", tmp_path / name, image, "-quiet"], stdout=subprocess.DEVNULL, check=True)
    own = f"{tmp_path}/own.squashfs:/data:ro,image-src=/"
    output = site.run(
        f"""export APPTAINER_BIND={own}
module load {site.name}
{testbed.layout.root}/bin/apptainer exec $SIF ls /user-software /data
module unload {site.name}
echo $APPTAINER_BIND ${{SINGULARITY_BIND-unset}}"""
    )
    # Lmod takes the slash from every list that a module extends; no path is the root as well
    kept = own.rstrip("/") if site.system.name == "Lmod" else own
    assert output.split() == ["/data:", "theirs", "/user-software:", "ours", kept, "unset"]


def test_the_search_path_in_the_image_begins_with_runscripts_and_what_users_install(image_site, tmp_path):
    names = ("SINGULARITYENV_PREPEND_PATH", "APPTAINERENV_PREPEND_PATH")
    image_site.run(f"module load {image_site.name}\n{SNAPSHOT.format(tmp_path / 'loaded')}")
    base = values(tmp_path / "loaded")["PYTHONUSERBASE"]
    assert state(tmp_path / "loaded", names) == [f"/runscripts:/user-software/venv/pytorch/bin:{base}/bin"] * 2


def test_the_commands_that_users_install_come_after_the_modules_and_before_the_hosts(written, tmp_path):
    site = written[VENV]
    before, loaded = tmp_path / "before", tmp_path / "loaded"
    script = """export HOME={}
{}
module load {}
{}
rm -rf $HOME/.local; mkdir -p $PYTHONUSERBASE  # whatever this changes, unloading takes away what loading added
module unload {}; echo $PATH"""
    after = site.run(script.format(tmp_path, SNAPSHOT.format(before), site.name, SNAPSHOT.format(loaded), site.name))
    path, new = values(before)["PATH"], values(loaded)
    root = site.installation
    assert new["PATH"] == f"{root}/bin:{root}/venv/bin:{new['PYTHONUSERBASE']}/bin:{path}"
    assert after == path + "\n"


def test_the_image_sees_the_hosts_files_by_which_programs_verify_servers(image_site, tmp_path):
    """Also where it has others of its own under their paths."""
    for name in ("ca.pem", "with,comma.pem", "target.pem"):
        (tmp_path / name).touch()
    (tmp_path / "link.pem").symlink_to("target.pem")
    (tmp_path / "directory").mkdir()
    output = image_site.run(
        f"""export PIP_CERT={tmp_path}/ca.pem SSL_CERT_FILE={tmp_path}/ca.pem REQUESTS_CA_BUNDLE={tmp_path}/link.pem
export CURL_CA_BUNDLE={tmp_path}/with,comma.pem AWS_CA_BUNDLE={tmp_path}/none.pem GIT_SSL_CAINFO={tmp_path}/directory
export PIP_CONFIG_FILE=ca.pem; cd {tmp_path}
module load {image_site.name}; echo $SINGULARITY_BIND; echo $APPTAINER_BIND
rm ca.pem; module unload {image_site.name}; echo ${{SINGULARITY_BIND-unset}}"""
    )
    first, second, after = output.splitlines()
    binds = [bind for bind in first.split(",") if str(tmp_path) in bind]
    assert binds == [f"{tmp_path}/ca.pem", f"{tmp_path}/link.pem"]
    assert (second, after) == (first, "unset")


def test_the_recipes_binds_are_those_that_exist_when_the_module_is_loaded(image_site):
    site = image_site
    output = site.run(f"module load {site.name}; echo $SINGULARITY_BIND")
    binds = output.strip().split(",")
    there = f"{site.root}/there"
    assert [bind for bind in binds if "there" in bind] == [there, f"{there}:/mnt/there"]
    assert f"{site.installation}/runscripts:/runscripts" in binds
    (site.root / "not-there").mkdir()
    try:
        assert f"{site.root}/not-there" in site.run(f"module load {site.name}; echo $SINGULARITY_BIND").split(",")
    finally:
        (site.root / "not-there").rmdir()


def test_a_removed_image_is_replaced_by_a_copy_of_the_sites_and_without_one_loading_fails(image_site):
    site = image_site
    image = site.installation / f"{CONTAINER}.sif"
    central = site.root / "elsewhere" / image.name
    target = image.readlink()
    reload = f"module unload {site.name}; module load {site.name}" if site.loads_once else f"module load {site.name}"
    try:
        central.symlink_to(target)
        output = site.run(f'module load {site.name}; echo $SIF; rm -f $SIF; {reload}; echo "$SIF $SIFPYTORCH"')
        assert output.split() == [str(image), str(central), str(central)]

        central.unlink()
        result = site.run_unchecked(f"module load {site.name}; echo $? ${{SIF-unset}} ${{EBROOTPYTORCH-unset}}")
        assert result.stdout == "1 unset unset\n"
        message = "".join(result.stderr.split())  # both break lines
        places = [image, site.root / "not-there" / image.name, central]
        assert f"Thereisnoimageat{'or'.join(map(str, places))}:installitagain" in message
        assert f"`eb--rebuild{CONTAINER}.eb`" in message
    finally:
        central.unlink(missing_ok=True)
        if not image.exists():
            image.symlink_to(target)


def test_another_version_replaces_the_first_or_is_refused_in_a_sentence(written, tmp_path):
    first, second = written[CONTAINER], written[VENV]
    before, after = tmp_path / "before", tmp_path / "after"
    result = first.run_unchecked(
        f"""{SNAPSHOT.format(before)}
module load {first.name}; module load {second.name}; echo $? $EBROOTPYTORCH ${{SIF-unset}}
module purge
{SNAPSHOT.format(after)}"""
    )
    message = " ".join(result.stderr.split())
    if first.system.name == "Lmod":
        assert result.stdout == f"0 {second.installation} unset\n"
        assert f"{first.name} => {second.name}" in message
    else:
        assert result.stdout.startswith(f"1 {first.installation} {first.installation}/")
        assert "cannot be loaded due to a conflict" in message
        assert "module unload PyTorch" in message
    assert snapshot(after) == snapshot(before)


@pytest.mark.parametrize("own", [OWN["nothing"], OWN["signs"]], ids=["nothing", "signs"])
def test_switching_is_unloading_and_loading(written, own, tmp_path):
    container, venv = written[CONTAINER], written[VENV]
    states = ["before", "container", "venv", "switched", "back", "after"]
    before, first, second, switched, back, after = (tmp_path / state for state in states)
    container.run(
        f"""{own}
{SNAPSHOT.format(before)}
module load {container.name}
{SNAPSHOT.format(first)}
module unload {container.name}
module load {venv.name}
{SNAPSHOT.format(second)}
module unload {venv.name}
module load {container.name}
module switch {container.name} {venv.name}
{SNAPSHOT.format(switched)}
module switch {venv.name} {container.name}
{SNAPSHOT.format(back)}
module unload {container.name}
{SNAPSHOT.format(after)}"""
    )
    assert values(switched) == values(second)
    assert values(back) == values(first)
    assert snapshot(after) == snapshot(before)


def test_a_pytorch_module_of_somebody_elses_is_not_loaded_beside_ours(site, tmp_path):
    (tmp_path / "pytorch").mkdir()
    (tmp_path / "pytorch" / "1.0").write_text("#%Module\nsetenv THEIRS 1\n")
    before, after = tmp_path / "before", tmp_path / "after"
    result = site.run_unchecked(
        f"""export MODULEPATH={tmp_path}:$MODULEPATH
module load pytorch/1.0
{SNAPSHOT.format(before)}
module load {site.name}; echo $?
{SNAPSHOT.format(after)}"""
    )
    assert result.stdout == "1\n"
    message = " ".join(result.stderr.split())
    assert re.search(r"[Cc]annot (load|be loaded)", message), message
    assert "pytorch" in message
    assert values(after) == values(before)


def test_a_users_own_constraints_and_extensions_are_kept_beside_the_modules(site):
    own = "https://example.org//their.txt file:///their%20own.txt"
    output = site.run(
        f"""export PIP_CONSTRAINT='{own}' TORCH_EXTENSIONS_DIR=/theirs
module load {site.name}
echo "$PIP_CONSTRAINT"; echo "$UV_CONSTRAINT"; echo "$TORCH_EXTENSIONS_DIR"
module unload {site.name}
echo "$PIP_CONSTRAINT" ${{UV_CONSTRAINT-unset}} "$TORCH_EXTENSIONS_DIR" """
    )
    ours = f"{site.installation}/constraints.txt"
    assert output.splitlines() == [f"{own} {ours}", ours, "/theirs", f"{own} unset /theirs"]


def test_the_users_packages_are_in_a_directory_of_this_installation_or_where_older_modules_had_them(site, tmp_path):
    show = "echo $PYTHONUSERBASE $TORCH_EXTENSIONS_DIR; module unload PyTorch"
    home = f"export HOME={tmp_path}; module load {site.name}; {show}"
    shared = tmp_path / ".local/easybuild" / site.name
    userbase, extensions = site.run(home).split()
    assert re.fullmatch(rf"{re.escape(str(shared))}-[0-9a-f]{{8}}", userbase)
    assert extensions == f"{userbase}/torch_extensions"
    shared.mkdir(parents=True)  # as older modules had it
    assert site.run(home).split() == [str(shared), f"{shared}/torch_extensions"]
    Path(userbase).mkdir()
    assert site.run(home).split()[0] == userbase


def documented_variables():
    """The table of docs/module.md: name -> what it says for the container, for the venv, for Shifter."""
    rows = {}
    for line in (Path(__file__).resolve().parents[2] / "docs" / "module.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[0].startswith("`"):
            rows.update(dict.fromkeys(re.findall(r"`([A-Z_]+)`", cells[0]), cells[1:4]))
    return rows


def test_the_module_sets_the_documented_variables_and_nothing_else(site, tmp_path):
    """With all that a recipe can say, and with user-software."""
    site.user_software.mkdir(parents=True, exist_ok=True)
    before, loaded = tmp_path / "before", tmp_path / "loaded"
    site.run(f"{SNAPSHOT.format(before)}\nmodule load {site.name}\n{SNAPSHOT.format(loaded)}")
    site.keep_no_user_software()
    old, new = values(before), values(loaded)
    changed = {name for name in new if new.get(name) != old.get(name)}
    said = {name: cells[list(ENTER).index(site.recipe)] for name, cells in documented_variables().items()}
    assert len(said) > 20
    promised = {name for name, cell in said.items() if cell != "-"}
    assert promised <= changed
    # the rest is EasyBuild's, notes of what to take away on unload, and what the cluster needs
    unexplained = {
        name for name in changed - promised
        if not re.match("EB(VERSION|DEVEL)|__", name) and f"__CLUSTER_SET_{name}" not in new
    }  # fmt: skip
    assert unexplained == {"MODULEPATH"}


def test_help_has_the_three_lines_the_variables_the_commands_and_where_packages_go(site):
    result = site.run_unchecked(f"module help {site.name}")
    lines = [line.strip() for line in result.stderr.splitlines()]
    enter = ENTER[site.recipe]
    start = lines.index(f"module load {site.name}")
    assert lines[start + 1 : start + 3] == [
        f"srun -N2 --ntasks-per-node=2 {enter}conda-python-distributed -u train.py",
        f"srun -N2 --ntasks-per-node=2 {enter}conda-python-distributed -u $PAYLOAD/mnist_ddp.py",
    ]
    text = " ".join(lines)
    named = " ".join(f"${{{name}:?}}" for name in re.findall(r"\$([A-Z]\w+)", text))
    assert site.run(f"module load {site.name}; echo {named}")
    if site.recipe != SHIFTER:  # which is installed where shifter is
        listed = text.split("Commands on the host")[1].split(":", 1)[1].split("More information")[0].strip(" =")
        commands = [path for path in (site.installation / "bin").iterdir() if not path.suffix]
        behind = {path.readlink().name for path in commands if path.is_symlink() and path.readlink().parent == Path()}
        assert set(listed.split(", ")) == {path.name for path in commands} - behind
    assert "pip install --user <name> into $PYTHONUSERBASE" in re.sub(" +", " ", text)


def test_whatis_and_a_search_by_keyword_tell_what_a_module_is(site):
    result = site.run_unchecked(f"module whatis {site.name}; module keyword distributed")
    text = " ".join(result.stderr.split())
    runtime = {CONTAINER: "image for Apptainer or Singularity", VENV: "Python virtual environment",
               SHIFTER: "image at the site's Shifter gateway"}[site.recipe]  # fmt: skip
    for line in (f"Version: {site.recipe.split('-')[1]}", "Homepage: https://", f"Runtime: {runtime}"):
        assert line in text
    recipe = (site.root / f"{site.recipe}.eb").read_text()
    assert ("GPU: NVIDIA (CUDA)" if "gpu = 'cuda'" in recipe else "GPU: none") in text
    assert f"Cluster profile: {'perlmutter' if site.recipe == SHIFTER else 'local'}" in text
    assert "Keywords: PyTorch, torch, machine learning" in text
    # `module keyword` found it as well
    assert len(re.findall(re.escape(site.name), text)) >= 2


def test_spider_finds_the_module_and_says_how_to_load_it(site):
    if site.system.name != "Lmod":
        pytest.skip("spider is Lmod's")
    text = " ".join(site.run_unchecked(f"module spider PyTorch; module spider {site.name}").stderr.split())
    assert "Description: PyTorch for" in text
    assert "This module can be loaded directly" in text


def test_show_tells_every_variable_that_loading_sets(site, tmp_path):
    before, loaded = tmp_path / "before", tmp_path / "loaded"
    site.run(f"{SNAPSHOT.format(before)}\nmodule load {site.name}\n{SNAPSHOT.format(loaded)}")
    old, new = values(before), values(loaded)
    shown = site.run_unchecked(f"module show {site.name}; module load {site.name}; module show cluster").stderr
    for name in new.keys() - old.keys():
        assert re.search(rf"\b{name}\b", shown), name
    assert os.environ["HOME"] in shown
