"""Repository: one of a user's, with several commits, as tests of commands need it, too."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

TRAIN = """
import sys
import torch
from scaling import scaled

torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    scaled(model(torch.ones(3, 4)).square().mean()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""

SCALED = "def scaled(loss):\n    return loss * {}\n"


class Repository:
    """A git repository in a folder.

    Args:
        root: the folder, which is made.

    Attributes:
        root: the folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")
        (root / ".gitignore").write_text("__pycache__/\n")

    @classmethod
    def copy_of(cls, other: Repository, root: Path) -> Repository:
        """Return a copy of a repository in a new folder, which takes no call of git."""
        made = cls.__new__(cls)
        made.root = root
        shutil.copytree(other.root, root, symlinks=True)
        return made

    def git(self, *words: str) -> str:
        """Run git; return what it prints."""
        names = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"]
        done = subprocess.run(
            ["git", *names, *words],
            cwd=self.root,
            check=True,
            capture_output=True,
            text=True,
            env=os.environ | {"GIT_CONFIG_GLOBAL": os.devnull},
        )
        return done.stdout.strip()

    def write(self, **files: str) -> None:
        """Write files, named without `.py`; `__` stands for a slash."""
        for name, text in files.items():
            file = self.root / f"{name.replace('__', '/')}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def commit(self, message: str, **files: str) -> str:
        """Write and commit files; return the name of the commit."""
        self.write(**files)
        self.git("add", "--all")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def raw_tree(self, *entries: tuple[str, str, str]) -> str:
        """Write a tree of (mode, name, object) as it is given, however git likes it; return it."""
        rows = [
            f"{mode} ".encode() + os.fsencode(name) + b"\0" + bytes.fromhex(object)
            for mode, name, object in entries
        ]
        return self._written(b"".join(rows), "-t", "tree", "--literally")

    def blob(self, text: str) -> str:
        """Write a blob with this text; return it."""
        return self._written(text.encode())

    def commit_of_tree(self, tree: str) -> str:
        """Return a new commit of a tree, on a branch of its own."""
        commit = self.git("commit-tree", "-m", "of others", tree)
        self.git("update-ref", "refs/heads/strangers", commit)
        return commit

    def _written(self, data: bytes, *options: str) -> str:
        words = ["git", "hash-object", "-w", "--stdin", *options]
        return (
            subprocess.run(words, cwd=self.root, input=data, check=True, capture_output=True)
            .stdout.decode()
            .strip()
        )

    def trees(self) -> int:
        """Return how many work trees git knows, the user's own included."""
        return len(self.git("worktree", "list").splitlines())
