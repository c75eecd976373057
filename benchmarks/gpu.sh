#!/usr/bin/env bash
# What one GPU does, in about ten minutes: benchmarks/gpu.sh [--tiny] [--output FILE] [--only SECTION...]
#
# Needs PyTorch, transformers and the small packages that the trainer imports; nothing is installed. PYTHON chooses the
# interpreter. --tiny runs the same path with small shapes on whatever is there, also a CPU: a test, not a measurement.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
export PYTHONPATH="$PWD:$PWD/benchmarks${PYTHONPATH:+:$PYTHONPATH}" TOKENIZERS_PARALLELISM=false
"$PYTHON" - <<'END'
import importlib.util, sys
needed = {"torch": "torch", "transformers": "transformers", "gymnasium": "gymnasium", "pydantic": "pydantic",
          "rapidfuzz": "rapidfuzz", "httpx": "httpx", "yaml": "pyyaml", "rich": "rich", "matplotlib": "matplotlib",
          "tensorboard": "tensorboard"}
missing = [package for module, package in needed.items() if importlib.util.find_spec(module) is None]
if missing:
    sys.exit(f"{sys.executable} lacks {', '.join(missing)}; install them: pip install {' '.join(missing)}")
END
# Environments are found by the package's entry points, which a plain checkout does not have.
if ! "$PYTHON" -c 'import importlib.metadata as m; m.distribution("roll-envs")' 2>/dev/null; then
    "$PYTHON" setup.py -q egg_info
fi
exec "$PYTHON" benchmarks/gpu.py "$@"
