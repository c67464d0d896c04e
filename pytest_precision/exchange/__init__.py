"""Exchange recordings with other tools, as safetensors with a JSON sidecar."""
