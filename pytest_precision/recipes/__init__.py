"""Recipes: what a recorder must be told of a framework whose optimizer keeps flat partitions.

Each module has a `locate` for `record(locate=...)`, and `on_cpu` where the framework needs help
there. Nothing is imported here; import the module of your framework.
"""
