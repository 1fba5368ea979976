"""The commands, the variables that they set, and the environment in which tests start them."""

import sys
from pathlib import Path

COMMANDS = ("conda-python-simple", "conda-python-distributed", "torchrun-distributed", "ddp-env", "get-master")
PYTHON_DIRECTORY = str(Path(sys.executable).parent)
PATH = f"{PYTHON_DIRECTORY}:/usr/bin:/bin"
SHOW_ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"
_OF_TORCH = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT PYTORCH_LAUNCH_ID"
TORCH_VARIABLES = {*_OF_TORCH.split(), "OMP_NUM_THREADS"}
_OF_CACHES = "MIOPEN_USER_DB_PATH MIOPEN_CUSTOM_CACHE_DIR TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR CUDA_CACHE_PATH"
CACHE_VARIABLES = {*_OF_CACHES.split(), "AITER_JIT_DIR"}
