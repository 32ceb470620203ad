"""Makes `terngrad.lab` importable without the rest of the package, hence without torch.

For programs that are started often, or by a user who may not read what is installed.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

package = types.ModuleType("terngrad")
package.__path__ = [str(Path(__file__).resolve().parents[2] / "src" / "terngrad")]
sys.modules["terngrad"] = package
