from __future__ import annotations

from single_thread import one_thread  # noqa: F401
