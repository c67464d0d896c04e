"""The contract on tiers: the core imports no probe and no extra (docs/architecture.md, "Tiers").

Which modules are probes and extras is said in `pyproject.toml`, in the contract of this type; the
core is what is left. The imports that it ignores may only become fewer.
"""

from __future__ import annotations

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output
from importlinter.application import contract_utils
from importlinter.application.contract_utils import AlertLevel
from importlinter.domain.helpers import module_expressions_to_modules


class TierContract(Contract):
    """Refuse direct imports of probes and extras by the modules that are neither.

    Attributes:
        probes: modules and packages that record beside a run, or judge it.
        extras: modules and packages that stand alone.
        ignore_imports: imports of today that the contract does not refuse yet.
    """

    type_name = "tiers"

    probes = fields.SetField(subfield=fields.ModuleExpressionField())
    extras = fields.SetField(subfield=fields.ModuleExpressionField())
    ignore_imports = fields.SetField(subfield=fields.ImportExpressionField(), required=False)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Return whether no import is left that runs from the core to another tier.

        An ignored import that no longer exists is an error, so that the list follows the code.
        """
        warnings = contract_utils.remove_ignored_imports_and_report(
            graph=graph,
            ignore_imports=self.ignore_imports,
            unmatched_alerting=AlertLevel.ERROR,
        )
        others = self.modules_of(graph, self.probes) | self.modules_of(graph, self.extras)
        core = {name for name in graph.modules if not graph.is_module_squashed(name)} - others
        refused = [
            f"{importer} imports {imported}"
            for importer in sorted(core)
            for imported in sorted(graph.find_modules_directly_imported_by(importer) & others)
        ]
        return ContractCheck(kept=not refused, metadata={"refused": refused}, warnings=warnings)

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print each import that is refused, and what to do instead."""
        for line in check.metadata["refused"]:
            output.print_error(line)
        output.print_error("The core calls probes by what they register; see docs/architecture.md.")

    @staticmethod
    def modules_of(graph: ImportGraph, expressions: set) -> set[str]:
        """Return the modules that expressions match, with all that is below them."""
        roots = {module.name for module in module_expressions_to_modules(graph, expressions)}
        return roots | {below for root in roots for below in graph.find_descendants(root)}
