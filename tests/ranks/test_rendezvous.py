"""Where ranks meet."""

from __future__ import annotations

import socket
import sys

import pytest

from pytest_precision.ranks.process.rendezvous import reserved_port


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets both have the port")
@pytest.mark.parametrize("libuv", [False, True])
def test_a_reserved_port_is_kept_for_a_store(libuv: bool) -> None:
    """Nobody else gets it until the store listens, however late that is; then it is free."""
    import torch.distributed as dist

    with reserved_port() as port:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("", port))
        store = dist.TCPStore("localhost", port, is_master=True, use_libuv=libuv)
        store.set("key", "value")
        assert store.get("key") == b"value"
        del store
    socket.create_server(("", port)).close()
