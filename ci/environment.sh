# Sourced by the set-up commands: makes .venv with the package and what its tests need, and sets
# $bin and $python. Made anew only when what is to be installed has changed.
bin="$root/.venv/bin"
python="$bin/python"
# Images turn bytecode off to stay small; each session that a test starts would then compile this
# package again, and pytest rewrite its asserts.
unset PYTHONDONTWRITEBYTECODE

wanted() {
    cat "$root/pyproject.toml" "$root/ci/constraints.txt" "$root/ci/environment.sh"
}

if [ ! -f "$root/.venv/installed" ] || ! wanted | cmp -s - "$root/.venv/installed"; then
    base=${PYTHON:-python3}
    if ! "$base" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
        echo "expected Python 3.10 or later but got $("$base" --version 2>&1) from '$base';" \
            "name another one: PYTHON=python3.12 $0" >&2
        exit 1
    fi
    echo "+ setting up .venv with $("$base" --version)"
    rm -rf "$root/.venv"
    "$base" -m venv "$root/.venv"
    pip() {
        echo "+ pip install $*"
        "$python" -m pip install --quiet --disable-pip-version-check --constraint "$root/ci/constraints.txt" "$@"
    }
    # torch first and pinned, so that nothing that depends on it picks another build.
    pip torch
    pip --editable "$root[dev]"
    wanted > "$root/.venv/installed"
fi
