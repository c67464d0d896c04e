"""What writes a recording while a run goes on: of an engine, its updates, and what perturbs it."""
