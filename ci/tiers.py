"""The contract on tiers: the core imports no probe and no extra (docs/architecture.md, "Tiers").

Which modules are probes and extras is said in `pyproject.toml`, in the contract of this type; the
core is what is left. The imports that it ignores may only become fewer.
"""

from __future__ import annotations

from collections.abc import Iterable

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class TierContract(Contract):
    """Refuse direct imports of probes and extras by the modules that are neither.

    Attributes:
        probes: modules and packages that record beside a run, or judge it.
        extras: modules and packages that stand alone.
        ignore_imports: imports of today, `IMPORTER -> IMPORTED`, that are not refused yet; one that
            is gone must go here as well.
    """

    type_name = "tiers"

    probes = fields.SetField(subfield=fields.StringField())
    extras = fields.SetField(subfield=fields.StringField())
    ignore_imports = fields.SetField(subfield=fields.StringField(), required=False)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Return whether the imports from the core to other tiers are those that are ignored."""
        others = modules_of(graph, self.probes) | modules_of(graph, self.extras)
        crossing = {
            f"{importer} -> {imported}"
            for importer in graph.modules - others
            for imported in graph.find_modules_directly_imported_by(importer) & others
        }
        ignored = set(self.ignore_imports or ())
        wrong = [f"{line} is refused" for line in sorted(crossing - ignored)]
        wrong += [f"{line} is ignored, but no longer there" for line in sorted(ignored - crossing)]
        return ContractCheck(kept=not wrong, metadata={"wrong": wrong})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print each import that is wrong, and what to do instead."""
        for line in check.metadata["wrong"]:
            output.print_error(line)
        output.print_error("The core reaches probes by what they register, not by an import.")


def modules_of(graph: ImportGraph, roots: Iterable[str]) -> set[str]:
    """Return the modules of these names, with all that is below them.

    Raises:
        ValueError: the package has no such module.
    """
    modules = set()
    for root in roots:
        if root not in graph.modules:
            raise ValueError(f"expected a module of the package but got {root}; mend the contract")
        modules |= {root} | graph.find_descendants(root)
    return modules
