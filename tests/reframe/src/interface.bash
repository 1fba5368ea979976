# shellcheck shell=bash
# Sourced by a job that has loaded a PyTorch module, so that `module` is defined:
#   interface.bash MODULE VARIABLE...
# Checks what the module sets; that loading it twice changes nothing, and unloading it restores the environment.
module=$1
shift
failed=0

for name in EBROOTPYTORCH CONTAINERROOT RUNSCRIPTS RUNSCRIPTSPYTORCH PAYLOAD PAYLOADPYTORCH "$@"; do
  [ -e "${!name:-}" ] || { echo "FAIL $name: no such file: '${!name:-}'"; failed=1; }
done
for command in conda-python-distributed conda-python-simple torchrun-distributed get-master ddp-env pytorch-doctor python pip; do
  type -P "$command" >/dev/null || { echo "FAIL $command: not found on PATH"; failed=1; }
done
case $(type -P python) in "$EBROOTPYTORCH"/*) ;; *) echo "FAIL python: $(type -P python) comes first on PATH"; failed=1 ;; esac
case ${PYTHONUSERBASE:-} in /*) ;; *) echo "FAIL PYTHONUSERBASE: '${PYTHONUSERBASE:-}' is not a path"; failed=1 ;; esac
module help "$module" 2>&1 | grep -q conda-python-distributed || { echo "FAIL help: no launch line"; failed=1; }

# Lmod and Environment Modules keep a state of their own
environment() { env -0 | sort -z | grep -zvE '^(_|SHLVL|_ModuleTable[^=]*|_LMFILES_[^=]*|__LMOD[^=]*|LMOD[^=]*|__MODULES[^=]*)=' | tr '\0' '\n'; }
module unload "$module"
environment >before
module load "$module"
environment >loaded
module load "$module"
environment >twice
module unload "$module"
environment >after
diff loaded twice || { echo "FAIL load: loading twice changes the environment"; failed=1; }
diff before after || { echo "FAIL unload: the environment is not restored"; failed=1; }
[ "$failed" = 1 ] || echo "interface: ok"
