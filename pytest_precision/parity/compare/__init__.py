"""Two recordings, tensor by tensor: pairs, criteria, differences."""
