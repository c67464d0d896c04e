"""Record a sequence of an engine; keep it; read it back."""
