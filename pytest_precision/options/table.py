"""The table of options: command line, environment, ini key, marker and messages come from it."""

from __future__ import annotations

from pytest_precision.options import option_values
from pytest_precision.options.option import Option


def key(name: str, value: str) -> str:
    """Return in words how to set an option without a flag: in the ini file, or by pytest's `-o`."""
    return f"precision_{name} in the ini file, or -o precision_{name}={value}"


OPTIONS = (
    Option("matrix", option_values.flag, "true or false", "", "run the matrix cells", "bool"),
    Option(
        "select",
        option_values.selection,
        "AXIS=VALUE[,VALUE...]",
        "AXIS=VALUE[,VALUE...]",
        "keep only the cells with these values; repeatable",
        "args",
    ),
    Option(
        "coverage",
        *option_values.one_of("full", "pairwise", "smoke"),
        "every cell; every pair of axis values; one cell per test",
        of_marker=True,
    ),
    Option(
        "shard",
        option_values.shard_of,
        "I/N with I from 1 to N",
        "I/N",
        "this runner's share of the cells",
    ),
    Option(
        "device", *option_values.one_of("auto", "cpu", "cuda"), "where ranks run", of_marker=True
    ),
    Option(
        "backend",
        *option_values.one_of("auto", "emulated", "native"),
        "emulated number formats, or the hardware's",
        of_marker=True,
    ),
    Option(
        "ranks",
        *option_values.one_of("reuse", "fresh", "inline"),
        "keep rank groups between cells; open a fresh group per run; run in the pytest process",
        of_marker=True,
    ),
    Option(
        "timeout",
        option_values.seconds,
        f"a number of seconds above 0 and at most {option_values.LONGEST_SECONDS}",
        "SECONDS",
        "deadline of one cell",
        "float",
        of_marker=True,
    ),
    Option("report", option_values.folder, "a folder", "DIR", "write report.json there"),
    Option(
        "report_host",
        option_values.flag,
        "true or false",
        "",
        "name this machine in the report",
        "bool",
        instead=key("report_host", "true"),
    ),
    Option(
        "strict_isolation",
        option_values.flag,
        "true or false",
        "",
        "fail a test whose job does not restore process-global state",
        "bool",
        instead=key("strict_isolation", "true"),
    ),
    Option(
        "ranks_per_device",
        option_values.whole_count,
        "an int from 1",
        "N",
        "how many ranks may share a GPU; ranks that share one communicate by gloo",
        instead=key("ranks_per_device", "N"),
    ),
    Option(
        "may_leave",
        option_values.leak_pattern,
        "a pattern whose brackets are closed",
        "PATTERN",
        "state that any job may leave changed, named as in the leak warning, one per line",
        "linelist",
        instead=key("may_leave", "PATTERN"),
    ),
    Option(
        "pure",
        option_values.flag,
        "true or false",
        "",
        "promise that all layouts, workloads and scripts depend on their arguments and their cell "
        "alone, so that references and ranks are kept for later checks",
        "bool",
        instead=key("pure", "true"),
    ),
    Option(
        "probes",
        *option_values.one_of("all", "none"),
        "judge each side also by itself, or compare alone what both have computed",
        instead=key("probes", "none"),
    ),
    Option(
        "require",
        option_values.flag,
        "true or false",
        "",
        "fail a session in which no cell ran, or one was skipped for want of ranks or devices",
        "bool",
    ),
    Option(
        "jitter",
        option_values.whole_count,
        "an int from 1",
        "N",
        "record each candidate N more times, each time with one rank late; expect equal bits",
        of_marker=True,
    ),
    Option(
        "fuzz",
        option_values.whole_count,
        "an int from 1",
        "N",
        "run each matrix test in N more cells, whose sequences hypothesis draws",
        of_marker=True,
    ),
    Option(
        "lines",
        *option_values.one_of("auto", "off"),
        "run a failed check once more, to name the line that made the first wrong value",
        of_marker=True,
        instead=key("lines", "off"),
    ),
    Option(
        "deterministic",
        *option_values.one_of("error", "warn"),
        "what an operator without a deterministic algorithm does: raise, or run with a warning",
        of_marker=True,
        instead=key("deterministic", "warn"),
    ),
    Option(
        "against",
        option_values.revision,
        "a revision, such as main or HEAD~1",
        "REVISION",
        "record each side once more by the code of this commit, and compare",
    ),
    Option(
        "against_python",
        option_values.program,
        "an interpreter",
        "PATH",
        "record each side once more by this interpreter, with its packages, and compare",
    ),
    Option(
        "against_build",
        option_values.pattern,
        "a command",
        "COMMAND",
        "make the compiled parts of that commit, in its work tree",
        instead=key("against_build", "COMMAND"),
    ),
    Option(
        "drift",
        *option_values.one_of("fail", "report"),
        "whether a check fails whose sides both moved and still agree",
        of_marker=True,
    ),
    Option(
        "baseline",
        *option_values.one_of("update", "check"),
        "keep what each side computes in the repository, or compare it with what was kept",
    ),
    Option(
        "baseline_dir",
        option_values.folder,
        "a folder",
        "DIR",
        "folder of the baselines, in place of precision_baselines beside the ini file",
        instead=key("baseline_dir", "DIR"),
    ),
    Option(
        "preload",
        option_values.module,
        "the name of a module, such as megatron.core",
        "MODULE",
        "modules, separated by blanks, that are imported once for all ranks that are started here",
        "args",
        instead=key("preload", "MODULE"),
    ),
    Option(
        "te",
        *option_values.one_of("auto", "cpu", "off"),
        "run layouts that use Transformer Engine on the CPU, over a stand-in for its kernels",
    ),
)

FORMER = (
    Option("mutate", str, "any text", "SHARE", "nothing any more", of_marker=True, alone="true"),
    Option("min_kill", str, "any text", "SHARE", "nothing any more"),
)
"""Options that do nothing any more, and warn for one release."""

MARKER_OPTIONS = tuple(option.name for option in (*OPTIONS, *FORMER) if option.of_marker)
"""Keywords of the marker `precision_matrix` that are options rather than axes."""
