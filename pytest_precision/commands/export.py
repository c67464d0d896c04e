"""Give a recording to other tools as safetensors, and take one from them.

A JSON sidecar beside the safetensors file, FILE.json, says which tensor is which, and when it was
observed. docs/reference/recording-format.md describes both.

Exit status 0 if it is written, 2 if not.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pytest_precision._visible import visible
from pytest_precision.commands import add_command, add_force, say
from pytest_precision.commands._arguments import folder_argument, place_argument
from pytest_precision.errors import RecordingError, expected_but_got
from pytest_precision.trace.remote_folder import at_hand


def add_to(commands: Any) -> None:
    """Add the commands `export` and `import` to a parser."""
    for name, text, run in (
        ("export", "write a recording as a safetensors file and a sidecar", export),
        ("import", "make a recording of a safetensors file and its sidecar", take),
    ):
        parser = add_command(commands, name, run, text, __doc__)
        folder, file = "folder of a recording", "safetensors file"
        source, metavar = ("recording", "FILE") if name == "export" else ("file", "DIR")
        texts = (folder, file) if name == "export" else (file, folder)
        kind = place_argument if name == "export" else Path
        parser.add_argument(source, metavar=source.upper(), type=kind, help=texts[0])
        parser.add_argument(
            "--out", metavar=metavar, type=folder_argument, required=True, help=f"new {texts[1]}"
        )
        if name == "export":
            add_force(parser, "FILE or FILE.json")


def export(args: argparse.Namespace) -> int:
    """Write a recording as a safetensors file and a JSON file; return the exit status."""
    from pytest_precision.exchange.conversion import export_recording
    from pytest_precision.exchange.export_files import sidecar_of

    if args.out.suffix == ".json":
        args.parser.error(
            f"expected --out to name a safetensors file but got {args.out}; name it "
            "*.safetensors: the JSON file is written beside it"
        )
    try:
        with at_hand(args.recording) as folder:
            export_recording(folder, args.out, force=args.force)
    except (RecordingError, OSError) as error:
        why = str(error)
        if isinstance(error, OSError) and error.strerror:
            got = f"--out={args.out} ({error.strerror})"
            why = expected_but_got("a place where a file can be made", got, "name another")
        args.parser.error(visible(why))
    say(visible(f"{args.out} and {sidecar_of(args.out)}"))
    return 0


def take(args: argparse.Namespace) -> int:
    """Convert a safetensors file and its JSON file to a recording; return the exit status."""
    from pytest_precision.exchange.conversion import import_recording

    try:
        if args.out.exists() and any(args.out.iterdir()):
            args.parser.error(
                f"expected a new or empty folder but got --out={args.out}; name another folder"
            )
        import_recording(args.file, args.out)
    except (RecordingError, OSError) as error:
        args.parser.error(visible(str(error)))
    say(visible(str(args.out)))
    return 0
