"""Import this first: makes the checkout importable, and torch importable beside a torch_npu without CANN.

torch.compile keeps its cache in a folder of this process, which goes with it.
"""

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))
if importlib.util.find_spec("torch_npu") and not os.environ.get("ASCEND_HOME_PATH"):
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

_INDUCTOR = tempfile.TemporaryDirectory(prefix="inductor-")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = _INDUCTOR.name
