"""What logs the operations of a part of a run: values by digest, and the lines that make them."""
